"""Several proposers in one engine: each request names the one that drafts for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.engines.reference.proposers.base import Proposer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["Several"]


class Several(Proposer):
    """Hands every call to the proposer that a sequence's request names, None meaning the first.

    Sequences of one proposer are still drafted together.
    """

    name = "several"

    def __init__(self, proposers: Mapping[str, Proposer]) -> None:
        self._proposers = dict(proposers)
        self._first = next(iter(self._proposers))
        self.reads_states = any(one.reads_states for one in self._proposers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may call them."""
        return tuple(self._proposers)

    def most_candidates(self, gamma: int) -> int:
        """The most that any of them proposes."""
        return max(one.most_candidates(gamma) for one in self._proposers.values())

    def admit(self, sequence: Seq) -> None:
        """Only its own proposer hears of a sequence."""
        self._of(sequence).admit(sequence)

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:
        """Prompt pieces by proposer."""
        for name, places in self._grouped(chunks).items():
            self._proposers[name].prefill([chunks[place] for place in places])

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """One call of each proposer that is asked at all."""
        found: dict[int, CandidateTree] = {}
        for name, places in self._grouped(windows).items():
            trees = self._proposers[name].propose([windows[place] for place in places])
            found.update(zip(places, trees, strict=True))
        return [found[place] for place in range(len(windows))]

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:
        """As ``admit``."""
        self._of(sequence).settle(sequence, before, accepted)

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:
        """States for those that read them."""
        one = self._of(sequence)
        if one.reads_states:
            one.learn(sequence, start, states)

    def release(self, sequence: Seq) -> None:
        """As ``admit``."""
        self._of(sequence).release(sequence)

    def held(self) -> tuple[int, int]:
        """Bytes of all of them, used or not."""
        weights, caches = zip(*(one.held() for one in self._proposers.values()), strict=True)
        return sum(weights), sum(caches)

    def beside_target(self) -> int:
        """As ``held``."""
        return sum(one.beside_target() for one in self._proposers.values())

    def statistics(self) -> list[dict[str, Any]]:
        """Rows of all of them, with the proposer's name."""
        return [
            {"proposer": name, **row}
            for name, one in self._proposers.items()
            for row in one.statistics()
        ]

    def _of(self, sequence: Seq) -> Proposer:
        return self._proposers[sequence.request.proposer or self._first]

    def _grouped(self, items: Sequence[tuple[Seq, int]]) -> dict[str, list[int]]:
        """Places of the items by proposer."""
        places: dict[str, list[int]] = {}
        for place, (sequence, _) in enumerate(items):
            places.setdefault(sequence.request.proposer or self._first, []).append(place)
        return places
