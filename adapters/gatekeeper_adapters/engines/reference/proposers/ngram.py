"""Prompt look-up: propose what followed the last occurrence of the current suffix.

Prompt Lookup Decoding (Saxena, 2023): needs no model; pays where output repeats its context. The
candidates are deterministic, so verification treats them as point masses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["NgramProposer", "SuffixIndex"]


class SuffixIndex:
    """Where each n-gram of a growing text was last continued; a constant cost per token."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._sizes = tuple(range(max_match, min_match - 1, -1))
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the text up to its last token but one: the last has no continuation yet."""
        for place in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= place:
                    self._next[tuple(tokens[place - size : place])] = place
        self._indexed = max(self._indexed, len(tokens) - 1)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Position after the most recent earlier occurrence of the longest suffix, or None."""
        length = len(tokens)
        for size in self._sizes:
            if size <= length:
                place = self._next.get(tuple(tokens[length - size :]))
                if place is not None:
                    return place
        return None


class NgramProposer(Proposer):
    """Look up the longest suffix of ``max_match`` down to ``min_match`` tokens.

    Only committed tokens are ever indexed: nothing to roll back.
    """

    name = "ngram"

    def __init__(self, *, min_match: int = 1, max_match: int = 3) -> None:
        self._sizes = (min_match, max_match)
        self._indices: dict[str, SuffixIndex] = {}

    def admit(self, sequence: Seq) -> None:
        """Start an index; the prompt is indexed at the first proposal."""
        self._indices[sequence.id] = SuffixIndex(*self._sizes)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Copy what followed; an empty proposal where the suffix is new."""
        out = []
        for sequence, gamma in windows:
            index = self._indices[sequence.id]
            index.extend(sequence.tokens)
            place = index.find(sequence.tokens)
            if place is None:
                out.append(NOTHING)
                continue
            copied = sequence.tokens[place : place + gamma + 1]
            following = copied[gamma] if len(copied) > gamma else None
            out.append(CandidateTree.chain(copied[:gamma], following=following))
        return out

    def release(self, sequence: Seq) -> None:
        """Drop the index."""
        self._indices.pop(sequence.id, None)
