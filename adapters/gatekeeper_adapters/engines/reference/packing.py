"""Pack the tokens of one step, from many sequences, into one row dimension."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache

__all__ = ["BLOCK", "PackedBatch", "Segment", "pack"]

BLOCK = 16
"""Prompts are cached in pieces of a multiple of this, and aligned attention works in it."""


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
    are wanted; ``spans`` (slot, first row, end row, context length), one per sequence unless
    the cache is ``aligned``; ``masks`` bool
    [q, context] per span or None where one row sees everything before it.
    """

    tokens: Tensor
    positions: Tensor
    cache_rows: Tensor
    rows: Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    masks: tuple[Tensor | None, ...]


def pack(segments: Sequence[Segment], cache: SlotCache) -> PackedBatch:
    """Pack segments for a cache's slots."""
    place: list[int] = []
    flat: list[int] = []
    rows: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    first = 0
    for segment in segments:
        count = len(segment.tokens)
        end, context = first + count, segment.start + count
        place.extend(range(segment.start, context))
        base = segment.slot * cache.positions + segment.start
        flat.extend(range(base, base + count))
        rows.extend(range(end - segment.wanted, end))
        if cache.aligned:
            spans.extend(_aligned(segment, first))
        else:
            spans.append((segment.slot, first, end, context))
        first = end
    masks = [_causal(end - start, context, cache.device) for _, start, end, context in spans]
    tokens = list(chain.from_iterable(segment.tokens for segment in segments))
    packed = torch.tensor([tokens, place, flat], dtype=torch.int64).to(cache.device)
    wanted = torch.tensor(rows, dtype=torch.int64).to(cache.device)
    return PackedBatch(packed[0], packed[1], packed[2], wanted, tuple(spans), tuple(masks))


def _aligned(segment: Segment, first: int) -> Iterator[tuple[int, int, int, int]]:
    """Spans that depend on positions alone, not on what else shares the step.

    Attention over several rows at once is not bitwise that of one row. So wanted rows, and what
    does not fill a block of positions [16k, 16k + 16), go one by one; the rest goes in such blocks.
    """
    place, stop = segment.start, segment.start + len(segment.tokens)
    whole = stop - segment.wanted
    while place < stop:
        step = BLOCK if place % BLOCK == 0 and place + BLOCK <= whole else 1
        at = first + place - segment.start
        place += step
        yield (segment.slot, at, at + step, place)


def _causal(count: int, context: int, device: str) -> Tensor | None:
    """Bool [count, context], aligned to the lower right: the last row sees everything."""
    if count == 1:
        return None
    full = torch.ones(count, context, dtype=torch.bool, device=device)
    return full.tril(diagonal=context - count)
