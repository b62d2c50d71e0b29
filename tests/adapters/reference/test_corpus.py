from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive

from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.errors import EvidenceError, Incompatible, InputError, Unavailable

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference import PROVIDER, corpus  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.proposers.corpus_index import (  # noqa: E402 - as above
    CorpusIndex,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "t5 t6 t7 t8 t9 t10\nt11 t12 t13 t14\n" * 3


def as_text(folder: Path, text: str = TEXT) -> Path:
    path = folder / "corpus.txt"
    path.write_text(text)
    return path


def document(tiny: Path, cache: Path, path: Path) -> dict[str, Any]:
    target, found = (PROVIDER.manifest(f"file:{at}", cache=cache) for at in (tiny, path))
    kept = ("source", "files", "tokenizer", "vocab_size", "token_map")
    return {
        "target": {key: target[key] for key in (*kept[:-1], "revision", "architecture")},
        "proposer": {
            "kind": "ngram",
            "parameters": {"max_match": 4},
            **{key: found[key] for key in kept},
        },
        "acceptance": {"method": "standard", "contract": "exact"},
        "engine": {
            "name": "reference",
            "version": PROVIDER.version(),
            "dtype": "float32",
            "device": "cpu",
        },
    }


def test_text_is_read_in_the_targets_tokens(tiny: Path, tmp_path: Path) -> None:
    tokens = corpus.read_corpus(as_text(tmp_path), tiny / "tokenizer.json")
    assert tokens.tolist() == [*range(5, 15)] * 3


def test_text_in_pieces_is_the_whole_text(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_text(tmp_path, TEXT * 20)
    whole = corpus.read_corpus(path, tiny / "tokenizer.json")
    monkeypatch.setattr(corpus, "PIECE", 50)  # longer than a line
    assert corpus.read_corpus(path, tiny / "tokenizer.json").tolist() == whole.tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint16", "int32"])
def test_token_ids_are_taken_as_they_are(dtype: str, tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(90).astype(dtype))
    tokens = corpus.read_corpus(tmp_path / "ids.npy", tiny / "tokenizer.json")
    assert tokens.tolist() == list(range(90))


@pytest.mark.parametrize(
    "ids",
    [
        np.array([5, 97]),
        np.array([-1, 5]),
        np.array([5.0]),
        np.zeros((2, 2), int),
        np.array([], int),
    ],
)
def test_what_is_no_list_of_the_targets_ids_is_refused(
    ids: Any, tiny: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(InputError, match="token ids below 97") as caught:
        corpus.read_corpus(tmp_path / "ids.npy", tiny / "tokenizer.json")
    assert caught.value.field == "proposer.source"


@pytest.mark.parametrize(("name", "match"), [("c.txt", "UTF-8"), ("c.npy", "NumPy")])
def test_other_bytes_are_refused(name: str, match: str, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00broken")
    with pytest.raises(InputError, match=match):
        corpus.read_corpus(tmp_path / name, tiny / "tokenizer.json")


def test_a_corpus_that_is_too_long_is_refused_before_it_is_read_to_its_end(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MOST_TOKENS", 15)
    monkeypatch.setattr(corpus, "PIECE", 20)
    with pytest.raises(InputError, match="more than 15 tokens"):
        corpus.read_corpus(as_text(tmp_path), tiny / "tokenizer.json")


def test_an_index_is_built_once_and_says_what_it_took(tiny: Path, tmp_path: Path) -> None:
    path, said = as_text(tmp_path), []
    folders = [
        corpus.index_corpus(path, tiny / "tokenizer.json", tmp_path, max_match=4, note=said.append)
        for _ in range(2)
    ]
    assert folders[0] == folders[1]
    assert len(said) == 2  # begun and done, the first time only
    found = json.loads((folders[0] / "index.json").read_text())
    assert found["corpus"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found["tokens"], found["bytes"]) == (30, 30 * 2 + 26 * 4)
    assert found["read_s"] > 0 < found["sort_s"]
    assert CorpusIndex.load(folders[0]).max_match == 4
    assert [p.name for p in (tmp_path / "corpora").iterdir()] == [folders[0].name]


@pytest.mark.parametrize("changed", ["corpus", "length", "tokenizer"])
def test_another_corpus_length_or_tokenizer_is_another_index(
    changed: str, tiny: Path, tmp_path: Path
) -> None:
    path, words = as_text(tmp_path), tiny / "tokenizer.json"
    first = corpus.index_corpus(path, words, tmp_path, max_match=4)
    if changed == "corpus":
        path.write_text(TEXT + "t20\n")
    elif changed == "tokenizer":
        words = tmp_path / "tokenizer.json"
        words.write_text((tiny / "tokenizer.json").read_text() + "\n")
    length = 3 if changed == "length" else 4
    assert corpus.index_corpus(path, words, tmp_path, max_match=length) != first


def test_a_cache_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "corpora").write_text("in the way")
    with pytest.raises(Unavailable) as caught:
        corpus.index_corpus(as_text(tmp_path), tiny / "tokenizer.json", tmp_path, max_match=4)
    assert caught.value.field == "cache"


def test_from_an_artifact_to_matches_in_the_corpus(tiny: Path, tmp_path: Path) -> None:
    described = document(tiny, tmp_path, as_text(tmp_path))
    assert list(described["proposer"]["files"]) == ["corpus.txt"]
    engine: Any = PROVIDER.open(described, cache=tmp_path, max_batch=2, device="cpu")
    # 11 12 13 stand in the corpus and once in the prompt
    record = drive(engine, [DecodeRequest("a", (1, 11, 12, 13), 4, gamma=2)])
    assert record.rounds[0].drafted == 2
    assert engine.memory().draft_weights == 30 * 2 + 26 * 4
    matches = {(row["origin"], row["length"]) for row in engine._proposer.statistics()}
    assert ("corpus", 3) in matches
    assert engine.info.details["draft_device"] == "cpu"


def test_a_corpus_never_changes_greedy_text(tiny: Path, tmp_path: Path, open_tiny: Any) -> None:
    described = document(tiny, tmp_path, as_text(tmp_path))
    engine: Any = PROVIDER.open(described, cache=tmp_path, max_batch=2, device="cpu")
    requests = [DecodeRequest(str(i), (5, 6, 7 + i), 20, gamma=4) for i in range(4)]
    plain = [DecodeRequest(str(i), (5, 6, 7 + i), 20) for i in range(4)]
    assert drive(engine, requests).tokens == drive(open_tiny(), plain).tokens


def test_a_changed_corpus_is_named(tiny: Path, tmp_path: Path) -> None:
    path = as_text(tmp_path)
    described = document(tiny, tmp_path, path)
    path.write_text(TEXT.replace("t5", "t6"))
    with pytest.raises(EvidenceError) as caught:
        PROVIDER.open(described, cache=tmp_path, max_batch=2, device="cpu")
    assert caught.value.field == "proposer.files.corpus.txt"
    assert str(path) in str(caught.value)


def test_an_index_in_other_tokens_is_refused(tiny: Path, tmp_path: Path) -> None:
    from gatekeeper_adapters.engines.reference.loader import load_engine

    CorpusIndex.build(np.arange(200), 3).save(tmp_path)
    with pytest.raises(Incompatible) as caught:
        load_engine(tiny, {"kind": "ngram", "parameters": {}}, tmp_path, version="t")
    assert caught.value.field == "proposer.source"
    CorpusIndex.build(np.arange(90), 4).save(tmp_path)
    with pytest.raises(Incompatible, match="sorted by 3"):
        load_engine(tiny, {"kind": "ngram", "parameters": {}}, tmp_path, version="t")
