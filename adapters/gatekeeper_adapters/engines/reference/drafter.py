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
from gatekeeper_adapters.engines.reference.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = [
    "Borrowed",
    "Drafter",
    "Lender",
    "borrow",
    "head_rows",
    "read_drafter",
    "read_tensors",
    "spread",
]

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
    # copies, for what is read lies in the mapped file, and one tensor would keep all of it
    tensors = {name: value.to(device=device, dtype=dtype, copy=True) for name, value in raw.items()}
    if ids is not None:
        ids = ids.to(device=device, dtype=torch.int64, copy=True)
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
    """The target's embedding [V, H] and its head's rows ``ids`` [R, H] (all of them for None).

    Raises:
        Incompatible: the target keeps them under names this engine does not know.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in {_HEAD, _EMBED} & set(file.keys()):
                tensors[name] = file.get_tensor(name)
    if _EMBED not in tensors:
        raise Incompatible(
            f"has no {_EMBED}, whose rows the drafter shares",
            field="target.source",
            value=target.name,
            remedy="use a proposer without weights of its own, or a whole draft model",
        )
    where = {"device": device, "dtype": dtype, "copy": True}  # as in ``read_drafter``
    embed = tensors[_EMBED].to(**where)
    head = tensors[_HEAD].to(**where) if _HEAD in tensors else embed
    return embed, head if ids is None else head[ids]


@dataclass(frozen=True)
class Lender:
    """A target whose tables a drafter uses: its ``folder``, and its own ``embed`` and ``head`` where
    the drafter computes on the same device and dtype, so that no copies are read.
    """  # noqa: D205 - one sentence

    folder: Path
    vocab_size: int
    embed: Tensor | None = None
    head: Linear | None = None


@dataclass(frozen=True)
class Borrowed:
    """``embed`` [V, H] and the product with the head's rows; bytes of each beyond the target's own."""

    embed: Tensor
    head: Linear
    embed_bytes: int
    head_bytes: int


def borrow(
    lender: Lender,
    config: Mapping[str, Any],
    ids: Tensor | None,
    *,
    dtype: torch.dtype,
    device: str,
    invariant: bool = False,
) -> Borrowed:
    """The target's tables for a drafter with ``shared_rows``, by its ``config`` and head ``ids``.

    Raises:
        Incompatible: the drafter is of another vocabulary, or the target has no such tables.
    """
    needs = max(int(config["vocab_size"]), 0 if ids is None else 1 + int(ids.max()))
    if needs != lender.vocab_size:
        raise Incompatible(
            f"does not fit the target's {lender.vocab_size} ids",
            field="proposer.vocab_size",
            value=needs,
            remedy="use the target that this drafter was trained for",
        )
    embed, head = lender.embed, lender.head if ids is None else None
    embed_bytes = head_bytes = 0
    if embed is None or head is None:
        table, rows = head_rows(lender.folder, ids, dtype=dtype, device=device)
        if embed is None:
            embed, embed_bytes = table, table.numel() * table.element_size()
        if head is None:
            head = Linear(rows, invariant=invariant)
            head_bytes = head.bytes
    if embed.shape[1] != config["hidden_size"]:
        raise Incompatible(
            f"does not fit the target's states of size {embed.shape[1]}",
            field="proposer.source",
            value=config["hidden_size"],
            remedy="use the target that this drafter was trained for",
        )
    return Borrowed(embed, head, embed_bytes, head_bytes)


def spread(rows: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Draft logits [n, R] over the target's vocabulary [n, V]; −inf where the draft has no row."""
    if ids is None:
        return rows[:, :vocab_size]
    wide = rows.new_full((rows.shape[0], vocab_size), float("-inf"))
    wide[:, ids] = rows
    return wide
