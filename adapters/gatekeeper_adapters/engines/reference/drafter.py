"""A trained drafter's folder: few weights of its own, the large tables taken from the target.

``config.json`` and ``*.safetensors``. ``shared_rows`` says that embedding and head are the target's
rows and not in the file; ``d2t`` int64 [R] names the target id of each head row, ascending. A matrix
may be stored as int8 [out, in] beside ``NAME.scale`` float32 [out]: weight = int8 × scale.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from gatekeeper.errors import Incompatible

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = ["Drafter", "head_rows", "read_drafter", "read_tensors", "spread"]

_HEAD, _EMBED = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Drafter:
    """``config`` and ``tensors`` of a drafter by name, in one dtype; ``ids`` int64 [R], or None."""

    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    ids: Tensor | None

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of the given shape.

        Raises:
            Incompatible: it is missing or has another shape.
        """
        found = self.tensors.get(name)
        if found is None or tuple(found.shape) != shape:
            raise Incompatible(
                f"has {None if found is None else list(found.shape)} for {name}, not {list(shape)}",
                field="proposer.source",
                value=str(self.config.get("architectures")),
                remedy="train or convert the drafter again",
            )
        return found


def read_drafter(folder: Path, *, dtype: torch.dtype, device: str) -> Drafter:
    """Read a folder; int8 matrices become ``dtype``.

    Raises:
        Incompatible: the token map is not ascending, or not as long as the config says.
    """
    config = json.loads((folder / "config.json").read_text())
    raw = read_tensors(folder)
    ids = raw.pop("d2t", None)
    tensors = {name: value.to(device=device, dtype=dtype) for name, value in raw.items()}
    if ids is not None:
        ids = ids.to(device=device, dtype=torch.int64)
        rising = ids.ndim == 1 and bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0
        if not rising or len(ids) != config.get("draft_vocab_size"):
            raise Incompatible(
                "is no ascending list of as many ids as draft_vocab_size",
                field="proposer.token_map",
                value=len(ids),
                remedy="train or convert the drafter again",
            )
    return Drafter(config, tensors, ids)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors; int8 matrices are multiplied out to float32."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                tensors[name] = file.get_tensor(name)
    for name in [name for name in tensors if name.endswith(".scale")]:
        matrix = name.removesuffix(".scale")
        tensors[matrix] = tensors[matrix].float() * tensors.pop(name).unsqueeze(1)
    return tensors


def head_rows(
    target: Path, ids: Tensor | None, *, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    """The target's embedding [V, H] and its head's rows ``ids`` [R, H] (all of them for None)."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in {_HEAD, _EMBED} & set(file.keys()):
                tensors[name] = file.get_tensor(name)
    embed = tensors[_EMBED].to(device=device, dtype=dtype)
    head = tensors[_HEAD].to(device=device, dtype=dtype) if _HEAD in tensors else embed
    return embed, head if ids is None else head[ids]


def spread(rows: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Draft logits [n, R] over the target's vocabulary [n, V]; −inf where the draft has no row."""
    if ids is None:
        return rows[:, :vocab_size]
    wide = rows.new_full((rows.shape[0], vocab_size), float("-inf"))
    wide[:, ids] = rows
    return wide
