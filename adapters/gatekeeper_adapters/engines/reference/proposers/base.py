"""What a proposer is: it suggests tokens, the target decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["Proposal", "Proposer"]


@dataclass(frozen=True)
class Proposal:
    """Draft tokens for one sequence.

    ``q`` float32 [len(tokens) or one more, V] is the processed distribution each token was drawn
    from, with the bonus position's row last where evidence was asked for; None means point masses.
    ``following`` is a deterministic proposer's guess at the bonus position, for evidence only.
    """

    tokens: tuple[int, ...] = ()
    q: Tensor | None = None
    following: int | None = None


class Proposer(Protocol):
    """Keeps what it needs for each sequence between ``admit`` and ``release``.

    It is asked only about sequences whose request has gamma > 0, so ordinary decoding pays
    nothing for it.
    """

    name: str

    def admit(self, sequence: Seq) -> None:
        """A sequence got its slot."""
        ...

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:
        """The target is about to cache each sequence's prompt up to a position."""
        ...

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[Proposal]:
        """Propose at most the given number of tokens for each sequence."""
        ...

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:
        """A round ended: of the tokens proposed after position ``before``, so many were accepted."""
        ...

    def release(self, sequence: Seq) -> None:
        """The sequence is gone."""
        ...

    def held(self) -> tuple[int, int]:
        """Bytes of weights and of caches."""
        ...
