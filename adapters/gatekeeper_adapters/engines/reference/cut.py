"""Make a smaller draft model out of a target's own layers."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["cut_layers"]


def cut_layers(
    folder: Path, layers: Sequence[int], keep_tokens: Sequence[int] | None, out: Path
) -> Path:
    """Write a Llama-family draft that keeps ``layers`` of the model in ``folder``; return ``out``.

    With ``keep_tokens`` the head keeps only those rows, and the tensor ``d2t`` int64 maps its ids,
    in ascending order, to the target's; the embedding stays whole, because the draft reads any
    token. ``out`` appears by one rename; where it already holds the same cut, nothing is done.

    Raises:
        InputError: a layer or token the model does not have, or ``out`` holds something else.
    """
    config = json.loads((folder / "config.json").read_text())
    kept = None if keep_tokens is None else sorted(set(keep_tokens))
    _check(config, layers, kept)
    origin = {"cut_from": _weights_digest(folder), "layers": list(layers)}
    changed = {
        **config,
        "num_hidden_layers": len(layers),
        "gatekeeper": {**origin, "keep_tokens": None if kept is None else _digest(kept)},
    }
    if out.exists():
        made = out / "config.json"
        if (
            made.is_file()
            and json.loads(made.read_text()).get("gatekeeper") == changed["gatekeeper"]
        ):
            return out
        raise InputError(
            "exists and holds another model", field="out", value=str(out), remedy="remove it first"
        )
    tensors = _tensors(folder, layers)
    if kept is not None:
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        tensors["lm_head.weight"] = np.ascontiguousarray(head[kept])
        tensors["d2t"] = np.asarray(kept, dtype=np.int64)
        changed |= {
            "tie_word_embeddings": False,
            "draft_vocab_size": len(kept),
            "token_map": _digest(kept),
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cut-", dir=out.parent) as work:
        ready = Path(work) / "ready"
        ready.mkdir()
        for path in folder.iterdir():
            if path.name.startswith("tokenizer") or path.name == "chat_template.jinja":
                shutil.copy2(path, ready / path.name)
        save_file(tensors, ready / "model.safetensors", metadata={"format": "pt"})
        (ready / "config.json").write_text(json.dumps(changed, indent=1, sort_keys=True))
        ready.rename(out)
    return out


def _check(config: dict[str, object], layers: Sequence[int], kept: Sequence[int] | None) -> None:
    have, vocab = int(str(config["num_hidden_layers"])), int(str(config["vocab_size"]))
    if not layers or not all(0 <= layer < have for layer in layers):
        raise InputError(
            "names a layer that does not exist",
            field="layers",
            value=list(layers),
            remedy=f"use numbers from 0 to {have - 1}",
        )
    if kept is not None and not (kept and kept[0] >= 0 and kept[-1] < vocab):
        raise InputError(
            "is empty or names a token that does not exist",
            field="keep_tokens",
            value=len(kept),
            remedy=f"use ids from 0 to {vocab - 1}",
        )


def _tensors(folder: Path, layers: Sequence[int]) -> dict[str, NDArray[np.generic]]:
    renumber = {f"model.layers.{old}.": f"model.layers.{new}." for new, old in enumerate(layers)}
    tensors: dict[str, NDArray[np.generic]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                prefix = ".".join(name.split(".")[:3]) + "."
                if not name.startswith("model.layers."):
                    tensors[name] = file.get_tensor(name)
                elif prefix in renumber:
                    tensors[renumber[prefix] + name.removeprefix(prefix)] = file.get_tensor(name)
    return tensors


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()


def _weights_digest(folder: Path) -> str:
    # sizes and headers suffice to tell cuts apart; whole files are digested when registered
    state = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            state.update(f"{path.name}:{path.stat().st_size}".encode())
            state.update(file.read(1 << 16))
    return state.hexdigest()
