from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.errors import EvidenceError, Incompatible, InputError, MissingExtra, NotFound
from gatekeeper.protocols import Engine, EngineProvider

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference import PROVIDER  # noqa: E402 - after the skip

SECTIONS = ("source", "revision", "files", "tokenizer", "vocab_size", "architecture", "padding_ids")


def artifact(tiny: Any, cache: Any, draft: Any = None) -> dict[str, Any]:
    target = PROVIDER.manifest(f"file:{tiny}", cache=cache)
    proposer: dict[str, Any] = {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}}
    if draft is not None:
        found = PROVIDER.manifest(f"file:{draft}", cache=cache)
        keys = ("source", "files", "tokenizer", "vocab_size", "token_map")
        proposer = {"kind": "draft_lm", "parameters": {}, **{key: found[key] for key in keys}}
    return {
        "target": {key: target[key] for key in SECTIONS},
        "proposer": proposer,
        "gamma": 2,
        "acceptance": {"method": "standard", "contract": "exact"},
        "engine": {
            "name": "reference",
            "version": PROVIDER.version(),
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }


def open_it(document: dict[str, Any], cache: Any) -> Engine:
    return PROVIDER.open(document, cache=cache, max_batch=2, device="cpu")


@pytest.mark.parametrize("with_draft", [False, True])
def test_from_manifest_to_tokens(
    with_draft: Any,
    tiny: Any,
    tiny_draft: Any,
    tmp_path: Any,
) -> None:
    document = artifact(tiny, tmp_path, tiny_draft if with_draft else None)
    assert json.loads(json.dumps(document)) == document
    engine = open_it(document, tmp_path)
    assert isinstance(engine, Engine)
    assert isinstance(PROVIDER, object)
    assert engine.info.end_tokens == (2,)
    assert engine.info.vocab_size == document["target"]["vocab_size"] == 97
    assert engine.tokenize("t5 t6 t96") == (5, 6, 96)
    assert engine.detokenize((5, 6)) == "t5 t6"
    engine.submit(DecodeRequest("a", (5, 6), 3, gamma=2))
    assert engine.step().emitted
    ledger = engine.memory()
    assert (ledger.draft_weights > 0) == (ledger.draft_kv > 0) == with_draft
    assert ledger.target_weights > 0
    assert ledger.workspace > 0
    assert ledger.complete
    engine.close()


def test_the_provider_has_the_protocol() -> None:
    provider: EngineProvider = PROVIDER
    assert provider.name == "reference"
    assert provider.version().startswith("2+torch")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_file_is_named(name: str, tiny: Any, tmp_path: Any) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    document = artifact(folder, tmp_path)
    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": "9"}))
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        open_it(document, tmp_path)
    assert caught.value.field == f"target.files.{name}"
    assert str(path) in str(caught.value)


def test_a_file_that_was_not_registered_is_named(tiny: Any, tmp_path: Any) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    document = artifact(folder, tmp_path)
    (folder / "extra.safetensors").write_bytes(b"")
    with pytest.raises(EvidenceError, match=r"extra\.safetensors"):
        open_it(document, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("proposer.kind", "oracle", "proposer.kind"),
        ("proposer.kind", "medusa", "proposer.parameters.max_match"),
        ("proposer.parameters", {"max_match": 1, "min_match": 2}, "proposer.parameters"),
        ("proposer.parameters", {"width": 3}, "proposer.parameters.width"),
        ("engine.dtype", "float16", "engine.kv_dtype"),
        ("engine.kv_dtype", "bfloat16", "engine.kv_dtype"),
        ("engine.tensor_parallel", 2, "engine.tensor_parallel"),
        ("engine.version", "0+torch1.0", "engine.version"),
        ("engine.device", "cuda", "engine.device"),
        ("engine.name", "vllm", "engine.name"),
        ("acceptance.method", "typical", "acceptance.method"),
        ("target.vocab_size", 98, "target.vocab_size"),
    ],
)
def test_what_this_engine_cannot_do_is_refused(
    path: str, value: Any, field: str, tiny: Any, tmp_path: Any
) -> None:
    document = artifact(tiny, tmp_path)
    section, _, key = path.partition(".")
    document[section][key] = value
    with pytest.raises((InputError, EvidenceError)) as caught:
        open_it(document, tmp_path)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle2", "draft_lm"])
def test_a_kind_with_weights_needs_them(kind: str, tiny: Any, tmp_path: Any) -> None:
    document = artifact(tiny, tmp_path)
    document["proposer"] = {"kind": kind, "parameters": {}}
    with pytest.raises(InputError) as caught:
        open_it(document, tmp_path)
    assert caught.value.field == "proposer.source"


@pytest.mark.parametrize(
    ("kind", "parameters"), [("medusa", {"tree": [3, 2]}), ("eagle", {}), ("eagle2", {})]
)
def test_a_drafter_that_shares_the_targets_rows_opens_from_its_manifest(
    kind: str, parameters: Any, tiny: Any, tmp_path: Any
) -> None:
    from tiny_drafters import TRIMMED, write_tiny_eagle, write_tiny_medusa

    write = write_tiny_medusa if kind == "medusa" else write_tiny_eagle
    found = PROVIDER.manifest(
        f"file:{write(tmp_path / 'draft', tiny, ids=TRIMMED)}", cache=tmp_path
    )
    document = artifact(tiny, tmp_path)
    keys = ("source", "files", "tokenizer", "vocab_size", "token_map")
    document["proposer"] = {
        "kind": kind,
        "parameters": parameters,
        **{key: found[key] for key in keys},
    }
    whole = {"schema": 1, **document, "sampling": [{"temperature": 1.0}]}
    assert parse_artifact(whole).proposer.vocab_size == len(TRIMMED)
    engine = open_it(document, tmp_path)
    engine.submit(DecodeRequest("a", (5, 6), 6, gamma=2))
    while not engine.step().finished:
        continue
    assert engine.info.details["proposer"] == kind
    assert engine.memory().draft_weights > 0
    engine.close()


def test_typical_acceptance_has_to_be_declared_approximate(tiny: Any, tmp_path: Any) -> None:
    document = artifact(tiny, tmp_path)
    document["acceptance"] = {"method": "typical", "contract": "approximate"}
    engine = open_it(document, tmp_path)
    assert engine.info.details["acceptance"] == "typical"
    engine.close()
    document["acceptance"]["method"] = "threshold"
    with pytest.raises(Incompatible) as caught:
        open_it(document, tmp_path)
    assert caught.value.field == "acceptance.method"


def test_a_draft_without_the_map_it_needs_is_refused(tiny: Any, tmp_path: Any) -> None:
    from tiny_models import write_tiny_llama

    other = write_tiny_llama(tmp_path / "other", vocab=96)
    document = artifact(tiny, tmp_path, other)
    with pytest.raises(Incompatible, match="tokenizer"):
        open_it(document, tmp_path)
    document["proposer"]["tokenizer"] = document["target"]["tokenizer"]
    with pytest.raises((Incompatible, EvidenceError)):
        open_it(document, tmp_path)


@pytest.mark.parametrize("source", ["", "file:", "hf:name", "pypi:x#y", "s3://bucket", "pypi:a==1"])
def test_a_source_without_a_known_form_is_refused(source: str, tmp_path: Any) -> None:
    with pytest.raises(InputError) as caught:
        PROVIDER.manifest(source, cache=tmp_path)
    assert caught.value.field == "source"


def test_a_missing_folder_is_named(tmp_path: Any) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        PROVIDER.manifest(f"file:{tmp_path}/nowhere", cache=tmp_path)


def test_a_missing_extra_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def absent(package: str) -> str:
        if package == "torch":
            raise metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(MissingExtra, match=r"pip install gatekeeper\[torch\]"):
        PROVIDER.version()


def test_importing_the_provider_loads_no_torch() -> None:
    code = (
        "import sys, gatekeeper_adapters.engines.reference as r; r.PROVIDER.version();"
        "print([m for m in ('torch', 'transformers', 'safetensors', 'gguf') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
