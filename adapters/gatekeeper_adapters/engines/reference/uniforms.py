"""Uniform random numbers by (seed, position): independent of batch, round and other requests.

Each output position owns one Philox block for each rank among siblings, and each use in it one
number: drawing the draft, accepting it, drawing the correction or bonus. A position drafted in vain
and drafted again later reuses its draft number; that is exact, because nothing emitted before
depended on it. So do the branches of a tree that reach the same position: at most one is judged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Numbers", "Uniforms", "uniforms"]

_MASK = (1 << 64) - 1
_STREAM = 0x6761746B  # one key word separates us from other users of the same seed


class Uniforms(NamedTuple):
    """Three independent numbers in [0, 1) of one output position and rank."""

    draft: float
    accept: float
    sample: float


def uniforms(seed: int, start: int, count: int, *, rank: int = 0) -> list[Uniforms]:
    """The numbers of output positions ``start``, ``start + 1``, … (0 is the first generated token).

    Philox4x64 (Salmon et al., 2011) turns a counter into a block of four words: one block a position.
    """
    key = np.array([seed & _MASK, _STREAM], dtype=np.uint64)
    counter = np.array([start, rank, 0, 0], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return [Uniforms(*row[:3]) for row in generator.random((count, 4)).tolist()]


class Numbers:
    """The numbers of one round by (depth below ``start``, rank), made when first asked for."""

    def __init__(self, seed: int, start: int, count: int) -> None:
        self._seed = seed
        self._start = start
        self._count = count
        self._made: dict[int, list[Uniforms]] = {}

    def __call__(self, depth: int, rank: int = 0) -> Uniforms:
        """The numbers of one candidate; ``depth`` is below the ``count`` given."""
        if rank not in self._made:
            self._made[rank] = uniforms(self._seed, self._start, self._count, rank=rank)
        return self._made[rank][depth]
