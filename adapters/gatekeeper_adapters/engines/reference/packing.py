"""Pack the tokens of one step, from many sequences, into one row dimension."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["PackedBatch", "Segment", "pack"]


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one sequence: ``start`` is the position of the first one.

    ``wanted`` counts the trailing rows whose logits are needed.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    wanted: int


@dataclass(frozen=True)
class PackedBatch:
    """Inputs of one forward over N rows.

    ``tokens``, ``positions``, ``cache_rows`` int64 [N]; ``rows`` int64 [R] the rows whose logits
    are wanted; ``spans`` one (slot, first row, end row, context length) per sequence; ``masks`` bool
    [q, context] per span or None where one row sees everything before it.
    """

    tokens: Tensor
    positions: Tensor
    cache_rows: Tensor
    rows: Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    masks: tuple[Tensor | None, ...]


def pack(segments: Sequence[Segment], *, positions: int, device: str) -> PackedBatch:
    """Pack segments for a cache with ``positions`` rows per slot."""
    place: list[int] = []
    flat: list[int] = []
    rows: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    masks: list[Tensor | None] = []
    first = 0
    for segment in segments:
        count = len(segment.tokens)
        end, context = first + count, segment.start + count
        place.extend(range(segment.start, context))
        base = segment.slot * positions + segment.start
        flat.extend(range(base, base + count))
        rows.extend(range(end - segment.wanted, end))
        spans.append((segment.slot, first, end, context))
        masks.append(None if count == 1 else _causal(count, context, device))
        first = end
    tokens = list(chain.from_iterable(segment.tokens for segment in segments))
    packed = torch.tensor([tokens, place, flat], dtype=torch.int64).to(device)
    wanted = torch.tensor(rows, dtype=torch.int64).to(device)
    return PackedBatch(packed[0], packed[1], packed[2], wanted, tuple(spans), tuple(masks))


def _causal(count: int, context: int, device: str) -> Tensor:
    """Bool [count, context], aligned to the lower right: the last row sees everything."""
    full = torch.ones(count, context, dtype=torch.bool, device=device)
    return full.tril(diagonal=context - count)
