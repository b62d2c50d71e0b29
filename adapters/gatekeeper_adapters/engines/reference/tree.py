"""Candidate trees: the draft tokens of one round, below the last committed token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["NOTHING", "CandidateTree", "ancestry", "depths"]


@dataclass(frozen=True)
class CandidateTree:
    """Draft tokens of one sequence. In a chain every token hangs below the one before it.

    ``parents[i]`` is the token that token i follows, −1 for the last committed token; parents come
    before their children, and siblings are distinct. *Context* 0 is the place after the last
    committed token, context i + 1 the place after token i. ``q`` maps a context to the processed
    distribution float32 [V] from which its children were drawn, in order and without replacement
    (the distribution before the first draw); the children of a context without one are deterministic
    candidates, point masses. Where shape or order depends on drawn tokens all must be deterministic:
    pruning sampled siblings is not exact. A context without children may have a ``q`` too: evidence
    for the bonus position, as is ``following``, a deterministic chain's guess there.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: Mapping[int, Tensor] = field(default_factory=dict)
    following: int | None = None

    @classmethod
    def chain(
        cls, tokens: Sequence[int], rows: Sequence[Tensor] = (), following: int | None = None
    ) -> CandidateTree:
        """Each token below the one before; ``rows[k]`` [V] is the distribution at position k."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, dict(enumerate(rows)), following)

    @cached_property
    def is_chain(self) -> bool:
        """Whether no token has a sibling."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tokens below each context, in the order of their judgement."""
        below: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for index, parent in enumerate(self.parents):
            below[parent + 1].append(index)
        return tuple(tuple(found) for found in below)

    @cached_property
    def depth(self) -> int:
        """Tokens on the longest branch."""
        return len(self.tokens) if self.is_chain else 1 + max(depths(self.parents))

    def row(self, context: int) -> Tensor | None:
        """The distribution at a context, or None."""
        return self.q.get(context)

    @property
    def bytes(self) -> int:
        """Bytes of tokens, parents and distributions."""
        rows = sum(row.numel() * row.element_size() for row in self.q.values())
        return int(16 * len(self.tokens) + rows)


NOTHING = CandidateTree()
"""No candidates: ordinary decoding."""


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each token, 0 directly below the last committed token."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def ancestry(parents: Sequence[int]) -> Tensor:
    """Bool [n, n]: token i sees itself and the tokens above it."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for index, parent in enumerate(parents):
        if parent >= 0:
            sees[index] |= sees[parent]
    return sees
