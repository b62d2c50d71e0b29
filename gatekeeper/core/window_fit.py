"""What a window that was not run would bring, from two that were.

The cost model of the founding essay, E[P]·T1 / (Td + Tv + To): progress from the pooled acceptance by
position, times by a straight line between the windows measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.documents import check
from gatekeeper.core.progress import marginal_from_curve, progress_from_curve, speedup
from gatekeeper.core.window import WindowOption
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.acceptance import AcceptanceCounts

__all__ = ["WindowRun", "predict_window", "success_curve"]


@dataclass(frozen=True)
class WindowRun:
    """Rounds decoded at one gamma, and all the ``seconds`` they took, drafting and verifying included."""

    gamma: int
    counts: AcceptanceCounts
    seconds: float

    def __post_init__(self) -> None:
        check(
            [
                ("gamma", self.gamma, self.gamma >= 1, "give a window of 1 or more"),
                ("rounds", self.counts.rounds, self.counts.rounds >= 1, "decode some rounds"),
            ]
        )

    @property
    def depth(self) -> int:
        """Longest proposal of any round: ``gamma``, or less where the proposer has no more to say."""
        return min(self.gamma, len(self.counts.reached))

    @property
    def draft_s(self) -> float:
        """Td: mean seconds of drafting in a round."""
        return self.counts.draft_s / self.counts.rounds

    @property
    def verify_s(self) -> float:
        """Tv: mean seconds of the target's forward in a round."""
        return self.counts.verify_s / self.counts.rounds

    @property
    def overhead_s(self) -> float:
        """To: mean seconds of all the rest of a round, never below 0."""
        return max(0.0, self.seconds / self.counts.rounds - self.draft_s - self.verify_s)


def success_curve(runs: Sequence[WindowRun]) -> tuple[float, ...]:
    """P(draft position k is proposed and accepted | those before it were), as far as a window reached.

    Pooled over the windows longer than k. Unlike conditional acceptance a round without a proposal
    counts as a failure, because it is a round all the same: a look-up often finds nothing.
    """
    curve = []
    for position in range(max((run.gamma for run in runs), default=0)):
        reaching = [run.counts for run in runs if run.gamma > position]
        tried = sum(_accepted(c, position - 1) if position else c.rounds for c in reaching)
        done = sum(_accepted(c, position) for c in reaching)
        curve.append(done / tried if tried else 0.0)
    return tuple(curve)


def predict_window(runs: Sequence[WindowRun], gamma: int, *, ordinary_s: float) -> WindowOption:
    """Progress and speed-up of ``gamma`` from runs at a shorter and a longer window.

    ``ordinary_s`` is T1, the mean seconds of an ordinary step. Times lie on the line between the
    depths that were really proposed: a tree four deep costs at gamma 8 what it costs at 4.

    Raises:
        InputError: ``gamma`` does not lie between two windows that were run.
    """
    below = max((r for r in runs if r.gamma <= gamma), key=lambda r: r.gamma, default=None)
    above = min((r for r in runs if r.gamma >= gamma), key=lambda r: r.gamma, default=None)
    if below is None or above is None:
        raise InputError(
            "does not lie between two windows that were run",
            field="gamma",
            value=gamma,
            remedy="run a shorter and a longer window",
        )
    curve = success_curve(runs)
    share = (min(gamma, above.depth) - below.depth) / max(1, above.depth - below.depth)
    draft_s, verify_s, overhead_s = (
        low + share * (high - low)
        for low, high in (
            (below.draft_s, above.draft_s),
            (below.verify_s, above.verify_s),
            (below.overhead_s, above.overhead_s),
        )
    )
    progress = progress_from_curve(curve, gamma)
    return WindowOption(
        gamma=gamma,
        progress=progress,
        marginal_tokens=marginal_from_curve(curve, gamma),
        speedup=speedup(progress, ordinary_s, draft_s, verify_s, overhead_s),
    )


def _accepted(counts: AcceptanceCounts, position: int) -> int:
    return counts.accepted_at[position] if position < len(counts.accepted_at) else 0
