"""A proposer on a device of its own: what crosses between it and the target, and nothing else.

Token ids are plain numbers and cross with every step's inputs. The target's hidden states go to the
drafter's device, distributions of its candidates come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.engines.reference.proposers.base import Proposer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.devices import Transfers
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["Elsewhere"]


class Elsewhere(Proposer):
    """``inner`` lives on ``draft_device``, the target on ``device``."""

    def __init__(
        self, inner: Proposer, *, device: str, draft_device: str, transfers: Transfers
    ) -> None:
        self.name = inner.name
        self.reads_states = inner.reads_states
        self._inner = inner
        self._device, self._draft_device = device, draft_device
        self._transfers = transfers

    def most_candidates(self, gamma: int) -> int:
        """As the proposer itself."""
        return self._inner.most_candidates(gamma)

    def admit(self, sequence: Seq) -> None:
        """As the proposer itself."""
        self._inner.admit(sequence)

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:
        """As the proposer itself."""
        self._inner.prefill(chunks)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Propose there; all distributions come to the target's device in one move."""
        trees = self._inner.propose(windows)
        rows = [row for tree in trees for row in tree.q.values()]
        moved = iter(self._transfers.moved_rows(rows, self._device))
        return [
            replace(tree, q={context: next(moved) for context in tree.q}) if tree.q else tree
            for tree in trees
        ]

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:
        """As the proposer itself."""
        self._inner.settle(sequence, before, accepted)

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:
        """Bring the target's hidden states to the drafter's device."""
        self._inner.learn(sequence, start, self._transfers.moved(states, self._draft_device))

    def release(self, sequence: Seq) -> None:
        """As the proposer itself."""
        self._inner.release(sequence)

    def held(self) -> tuple[int, int]:
        """As the proposer itself."""
        return self._inner.held()

    def beside_target(self) -> int:
        """Nothing: its memory is another device's."""
        return 0

    def statistics(self) -> list[dict[str, Any]]:
        """As the proposer itself."""
        return self._inner.statistics()
