"""What a proposer is: it suggests tokens, the target decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["Proposer"]


class Proposer(ABC):
    """Keeps what it needs for each sequence between ``admit`` and ``release``.

    It is asked only about sequences whose request has gamma > 0, so ordinary decoding pays nothing
    for it; and ``propose`` may skip any round of theirs. ``reads_states``: whether it wants ``learn``.
    """

    name: str
    reads_states: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What a request may name as its proposer."""
        return (self.name,)

    def most_candidates(self, gamma: int) -> int:
        """Most tokens proposed in a round whose branches are at most ``gamma`` long."""
        return gamma

    def admit(self, sequence: Seq) -> None:  # noqa: B027 - most keep nothing
        """A sequence got its slot."""

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:  # noqa: B027 - as above
        """The target is about to cache each sequence's prompt up to a position, and no window."""

    @abstractmethod
    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Propose branches of at most the given length for each sequence; length 0 asks for evidence."""

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:  # noqa: B027 - as above
        """A round ended: of the tokens proposed after position ``before``, so many were accepted."""

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:  # noqa: B027 - as above
        """The target's last hidden states [n, H], after its final norm, of committed text from ``start``.

        Called after every forward, prompt pieces included, and before ``settle``: once a position,
        in order.
        """

    def release(self, sequence: Seq) -> None:  # noqa: B027 - as above
        """The sequence is gone."""

    def held(self) -> tuple[int, int]:
        """Bytes of weights and of caches."""
        return (0, 0)

    def beside_target(self) -> int:
        """Of these, the bytes on the target's own device."""
        return sum(self.held())

    def statistics(self) -> list[dict[str, Any]]:
        """Rows about where proposals came from and what became of them, since the start."""
        return []
