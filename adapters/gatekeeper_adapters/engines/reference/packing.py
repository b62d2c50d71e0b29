"""Pack the tokens of one step, from many sequences, into one row dimension."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch

from gatekeeper_adapters.engines.reference.tree import ancestry, depths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache

__all__ = ["BLOCK", "PackedBatch", "Segment", "Span", "pack"]

BLOCK = 16
"""Prompts are cached in pieces of a multiple of this, and aligned attention works in it."""


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one sequence: ``start`` is the position of the first one.

    ``wanted`` counts the trailing rows whose logits are needed. The last ``len(parents)`` tokens are
    a candidate tree below the token before them: each sees its own branch only and has the position
    of its depth, while their cache rows follow one another. Where ``parents`` are more than the
    tokens, the tree's first ones were cached before.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    wanted: int
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """Rows of one attention call: ``sequences`` neighbouring slots from ``slot`` on, ``count`` rows
    of each from row ``first`` on, over the first ``context`` positions of every slot.

    ``mask`` bool [sequences, count, context], or None where one row sees everything before it.
    """  # noqa: D205 - one sentence

    slot: int
    sequences: int
    first: int
    count: int
    context: int
    mask: Tensor | None


@dataclass(frozen=True)
class PackedBatch:
    """Inputs of one forward over N rows.

    ``tokens``, ``positions``, ``cache_rows`` int64 [N]; ``rows`` int64 [R] the rows whose logits
    are wanted; ``spans`` in row order, finer than a sequence where the cache is ``aligned``. They
    cover all rows, or the wanted ones alone, numbered among themselves.
    """

    tokens: Tensor
    positions: Tensor
    cache_rows: Tensor
    rows: Tensor
    spans: tuple[Span, ...]


def pack(
    segments: Sequence[Segment], cache: SlotCache, *, wanted_only: bool = False
) -> PackedBatch:
    """Pack segments for a cache's slots; ``wanted_only``: the other rows attend to nothing."""
    place: list[int] = []
    flat: list[int] = []
    rows: list[int] = []
    parts: list[_Part] = []
    first = attending = 0
    for segment in segments:
        count = len(segment.tokens)
        end, context = first + count, segment.start + count
        top = context - len(segment.parents)
        place.extend(range(segment.start, top))
        place.extend(top + depth for depth in depths(segment.parents)[-count:])
        base = segment.slot * cache.positions + segment.start
        flat.extend(range(base, base + count))
        rows.extend(range(end - segment.wanted, end))
        asking = segment.wanted if wanted_only else count
        if cache.aligned:
            parts.extend(_aligned(segment, attending, asking))
        elif asking:
            parts.append(_Part(segment.slot, attending, asking, context, segment.parents))
        first, attending = end, attending + asking
    runs = [[part] for part in parts] if cache.aligned else _runs(parts)
    tokens = list(chain.from_iterable(segment.tokens for segment in segments))
    packed = torch.tensor([tokens, place, flat], dtype=torch.int64).to(cache.device)
    wanted = torch.tensor(rows, dtype=torch.int64).to(cache.device)
    spans = tuple(_span(run, cache.device) for run in runs)
    return PackedBatch(packed[0], packed[1], packed[2], wanted, spans)


class _Part(NamedTuple):
    """Rows of one sequence that attend together; its last ``len(parents)`` cache rows are a tree."""

    slot: int
    first: int
    rows: int
    context: int
    parents: tuple[int, ...] = ()


def _runs(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Neighbouring slots with equally many rows, joined while padding at most doubles the keys."""
    runs: list[list[_Part]] = []
    for part in parts:
        run = runs[-1] if runs else []
        longest = max((other.context for other in run), default=0)
        padded = max(longest, part.context) * (len(run) + 1)
        if (
            run
            and (part.slot, part.rows) == (run[-1].slot + 1, run[-1].rows)
            and padded <= 2 * (sum(other.context for other in run) + part.context)
        ):
            run.append(part)
        else:
            runs.append([part])
    return runs


def _span(run: Sequence[_Part], device: str) -> Span:
    slot, first, count = run[0].slot, run[0].first, run[0].rows
    context = max(part.context for part in run)
    mask = None
    if count > 1 or len(run) > 1 or run[0].parents:
        # Row r of a sequence of length n sees the positions up to n − count + r.
        last = torch.tensor([part.context for part in run], device=device).view(-1, 1, 1)
        row = torch.arange(count, device=device).view(1, -1, 1)
        mask = torch.arange(context, device=device) <= last - count + row
        for index, part in enumerate(run):
            if part.parents:
                n, end = len(part.parents), part.context
                sees = ancestry(part.parents)[-count:].to(device)
                mask[index, max(0, count - n) :, end - n : end] = sees
    return Span(slot, len(run), first, count, context, mask)


def _aligned(segment: Segment, first: int, count: int) -> Iterator[_Part]:
    """Parts of the last ``count`` rows that depend on positions alone, not on what else shares the step.

    Attention over several rows at once is not bitwise that of one row. So wanted rows, and what
    does not fill a block of positions [16k, 16k + 16), go one by one; the rest goes in such blocks.
    A tree attends in one piece: its mask makes it another sum than ordinary decoding's in any case.
    """
    end = segment.start + len(segment.tokens)
    start, stop = end - count, end - len(segment.parents)
    place, whole = start, end - segment.wanted
    while place < stop:
        step = BLOCK if place % BLOCK == 0 and place + BLOCK <= whole else 1
        at = first + place - start
        place += step
        yield _Part(segment.slot, at, step, place)
    if segment.parents and count:
        yield _Part(segment.slot, first + place - start, end - place, end, segment.parents)
