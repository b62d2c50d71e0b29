from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.documents import read
from gatekeeper.core.running_pair import (
    declared_weights,
    is_running_pair,
    pair_document,
    scorer_document,
    server_url,
)
from gatekeeper.errors import InputError, UnknownKey

A, B = "http://127.0.0.1:8000", "http://127.0.0.1:8001"


def pair(**options: Any) -> dict[str, Any]:
    return pair_document(A, B, **{"model": None, "gamma": 4, "version": "1", **options})


def test_a_pair_is_an_artifact_that_says_what_it_does_not_know() -> None:
    artifact = parse_artifact(pair())
    assert is_running_pair(artifact.document)
    assert (artifact.target.tokenizer, artifact.target.vocab_size) == (None, None)
    assert artifact.engine.tensor_parallel is None
    assert artifact.gamma == 4
    assert parse_artifact(pair(gamma=None)).gamma is None


def test_addresses_model_and_window_are_part_of_the_digest() -> None:
    digests = {
        parse_artifact(pair(**options)).digest
        for options in ({}, {"gamma": None}, {"model": "m"}, {"version": "2"})
    }
    assert len(digests) == 4


WEIGHTS: dict[str, Any] = {
    "engine": "reference",
    "source": "file:/models/target",
    "revision": None,
    "files": {"model.safetensors": "a" * 64},
    "tokenizer": "b" * 64,
    "vocab_size": 100,
}


def test_declared_weights_are_part_of_the_artifact_and_open_an_engine() -> None:
    plain, declared = parse_artifact(pair()), parse_artifact(pair(weights=WEIGHTS))
    assert plain.digest != declared.digest
    assert declared_weights(plain.document) is None
    assert "weights" not in plain.document["target"], "every pair would have another digest"
    weights = declared_weights(declared.document)
    assert weights is not None
    assert weights.files == WEIGHTS["files"]
    opened = parse_artifact(scorer_document(weights, version="2"))
    assert (opened.engine.name, opened.engine.dtype) == ("reference", "float32")
    assert opened.target.source == WEIGHTS["source"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"files": {}}, r"target\.weights\.files"),
        ({"files": {"x": "1"}}, r"target\.weights\.files\[x\]"),
        ({"tokenizer": "b"}, r"target\.weights\.tokenizer"),
        ({"vocab_size": 0}, r"target\.weights\.vocab_size"),
        ({"engine": ""}, r"target\.weights\.engine"),
        ({"source": "models"}, r"target\.weights\.source"),
        ({"extra": 1}, r"target\.weights\.extra"),
    ],
)
def test_weights_that_cannot_be_checked_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        parse_artifact(pair(weights=WEIGHTS | change))


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/llm/v1", "https://host/llm"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_an_address_is_cut_to_the_servers_root(given: str, root: str) -> None:
    assert server_url(given, field="url") == root


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://host:port",
        "http://me:secret@host",
        "http://host/?key=secret",
        "http://host#x",
        "http://[::1",
        "http://ho st",
        "http://host\n",
    ],
)
def test_what_is_no_servers_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"baseline_url=.*http://HOST:PORT"):
        pair_document(url, B, model=None, gamma=None, version="1")


def test_one_server_is_no_pair() -> None:
    with pytest.raises(InputError, match=r"candidate_url=.*two servers"):
        pair_document(A, f"{A}/v1", model=None, gamma=None, version="1")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("target.tokenizer", "a" * 64),
        ("target.vocab_size", 10),
        ("target.files", {"model": "a" * 64}),
        ("engine.dtype", "float32"),
        ("engine.kv_dtype", "float32"),
        ("engine.device", "cpu"),
        ("engine.draft_device", "cuda"),
        ("engine.tensor_parallel", 1),
        ("acceptance.method", "standard"),
        ("proposer.files", {"model": "a" * 64}),
        ("proposer.tokenizer", "a" * 64),
        ("proposer.source", A),
        ("proposer.source", f"{B}/v1"),
        ("proposer.parameters", {"model": ""}),
        ("gamma", 0),
    ],
)
def test_a_pair_states_nothing_that_nobody_can_check(path: str, value: Any) -> None:
    document = copy.deepcopy(pair())
    *parents, last = path.split(".")
    inner: Any = document
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    with pytest.raises(InputError, match=path):
        parse_artifact(document)


def test_a_pair_reads_no_other_parameter() -> None:
    document = copy.deepcopy(pair())
    document["proposer"]["parameters"]["max_match"] = 3
    with pytest.raises(UnknownKey, match="max_match"):
        parse_artifact(document)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("target", "tokenizer", None),
        ("target", "vocab_size", None),
        ("engine", "dtype", "undisclosed"),
        ("engine", "kv_dtype", "undisclosed"),
        ("engine", "tensor_parallel", None),
        ("engine", "device", "undisclosed"),
        ("acceptance", "method", "undisclosed"),
    ],
)
def test_no_other_artifact_may_leave_anything_open(section: str, name: str, value: Any) -> None:
    document: dict[str, Any] = {
        "schema": 1,
        "target": {
            "source": "file:model",
            "revision": None,
            "files": {"model.gguf": "c" * 64},
            "tokenizer": "a" * 64,
            "vocab_size": 100,
            "architecture": "LlamaForCausalLM",
        },
        "proposer": {"kind": "ngram", "parameters": {}},
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{}],
        "engine": {
            "name": "reference",
            "version": "1",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    assert parse_artifact(document).gamma == 4
    document[section][name] = value
    with pytest.raises(InputError, match=f"{section}.{name}"):
        parse_artifact(document)
    document[section][name] = "standard" if name == "method" else value
    with pytest.raises(InputError):
        parse_artifact({**document, "gamma": None})


@pytest.mark.parametrize(
    "url", ["http://me:secret@host", "me:secret@h:80", "http://h/?key=secret", "http://h#secret"]
)
def test_a_secret_in_a_refused_address_is_not_repeated(url: str) -> None:
    with pytest.raises(InputError) as refused:
        server_url(url, field="url")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://a..b:1", "http://%00:1", "http://é.de", "http://x\\y"])
def test_a_host_that_can_be_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="address of a server"):
        server_url(url, field="url")


def test_one_server_spelled_in_two_ways_is_no_pair() -> None:
    with pytest.raises(InputError, match="two servers"):
        pair_document("http://HOST", "http://host:80/", model=None, gamma=None, version="1")


@dataclass(frozen=True)
class Point:
    value: float


def test_a_whole_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(InputError, match="is not finite"):
        read(Point, {"value": 10**400}, field="point")
