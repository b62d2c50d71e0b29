"""A route's rollout: its steps and holdout, and when the next step may come.

A step is left for the next one only when what it delivered has been judged and holds. Time alone moves
nothing, and neither does silence: an alarm, an expiry, a failed gate or another artifact starts the
ramp again at its first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gatekeeper.core.arms import Split
from gatekeeper.core.documents import check, plain, read

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BYPASS_BELOW", "REGATE_BELOW", "RampState", "Rollout", "advance", "split_of"]

BYPASS_BELOW, REGATE_BELOW = "bypass", "regate"
"""What follows when less is delivered than was promised."""

_MIN_TASKS = 20
_HALF = 0.5


@dataclass(frozen=True)
class Rollout:
    """How far an enable reaches, as a route declares it. Shares, not per cent.

    Args:
        steps: shares of the keys outside the holdout, rising; one step of 1 is no ramp.
        holdout: share of all keys that never speculate.
        min_tasks: complete tasks that a window needs on either side before it is judged.
        min_step_s: seconds over which tasks must have come in on either side.
        confidence: two-sided, of the intervals by which a window is judged.
        below_promise: ``bypass`` the route, or ``regate``: leave it at its step and queue its gates.
    """

    steps: tuple[float, ...] = (1.0,)
    holdout: float = 0.0
    min_tasks: int = 200
    min_step_s: float = 86_400.0
    confidence: float = 0.99
    below_promise: str = BYPASS_BELOW

    def __post_init__(self) -> None:
        steps = list(self.steps)
        rising = bool(steps) and steps == sorted(set(steps)) and all(0 < s <= 1 for s in steps)
        something = self.holdout > 0 or steps != [1.0]
        checks: list[tuple[str, object, bool, str]] = [
            ("rollout.steps", steps, rising, "list rising shares in (0, 1]: [0.05, 0.25, 1]"),
            ("rollout.holdout", self.holdout, 0 <= self.holdout <= _HALF, "use a share up to 0.5"),
            ("rollout.steps", steps, something, "give steps below 1 or a holdout, or no rollout"),
            (
                "rollout.min_tasks",
                self.min_tasks,
                self.min_tasks >= _MIN_TASKS,
                f"use {_MIN_TASKS} or more",
            ),
            ("rollout.min_step_s", self.min_step_s, self.min_step_s >= 0, "use seconds, 0 or more"),
            (
                "rollout.confidence",
                self.confidence,
                _HALF < self.confidence < 1,
                "use a value in (0.5, 1), such as 0.99",
            ),
            (
                "rollout.below_promise",
                self.below_promise,
                self.below_promise in {BYPASS_BELOW, REGATE_BELOW},
                f"use {BYPASS_BELOW} or {REGATE_BELOW}",
            ),
        ]
        check(checks)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, field: str = "rollout") -> Rollout:
        """Read a route's ``rollout``.

        Raises:
            UnknownKey: a key that nothing reads.
            InputError: a wrong type, or a value out of range.
        """
        return read(cls, dict(document), field=field)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        document: dict[str, Any] = plain(self)
        return document


@dataclass(frozen=True)
class RampState:
    """Where a route's ramp stands: the shares in force, since when, and for which artifact.

    ``since`` None: nothing is in force, and the next enable begins at the first step. All that is
    compared was allotted under one pair of shares, so a change of either begins anew.
    """

    share: float = 0.0
    holdout: float = 0.0
    since: datetime | None = None
    artifact: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        since = None if self.since is None else self.since.timestamp()
        return {
            "share": self.share,
            "holdout": self.holdout,
            "since": since,
            "artifact": self.artifact,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RampState:
        """Read ``to_dict`` back."""
        since = document["since"]
        return cls(
            share=float(document["share"]),
            holdout=float(document["holdout"]),
            since=None if since is None else datetime.fromtimestamp(since, UTC),
            artifact=str(document["artifact"]),
        )


def advance(
    rollout: Rollout,
    state: RampState,
    *,
    enabled: bool,
    artifact: str,
    delivered: bool,
    now: datetime,
) -> RampState:
    """Where the ramp stands after one more look.

    Args:
        rollout: what the route declares now.
        state: where it stood.
        enabled: whether the evidence has the route enabled (an override has not).
        artifact: what it serves.
        delivered: whether the window that was judged last, and began no earlier than the present
            step, holds what was promised. No window, or an undecided one, is False.
        now: the database's time.
    """
    if not enabled:
        return RampState()
    if state.since is None or state.artifact != artifact:
        return RampState(rollout.steps[0], rollout.holdout, now, artifact)
    if state.share not in rollout.steps or state.holdout != rollout.holdout:
        # declared anew meanwhile: never further than it was, unless the first step is
        reached = [step for step in rollout.steps if step <= state.share]
        share = max(reached, default=rollout.steps[0])
        return RampState(share, rollout.holdout, now, artifact)
    above = [step for step in rollout.steps if step > state.share]
    if not delivered or not above:
        return state
    return RampState(above[0], rollout.holdout, now, artifact)


def split_of(rollout: Rollout, state: RampState, *, route: str, overridden: bool = False) -> Split:
    """Who takes part: by the ramp's step, everybody but the holdout under an enabling override."""
    steps = len(rollout.steps)
    if overridden:
        return Split(route, 1.0, rollout.holdout, None, steps)
    if state.since is None:
        return Split(route, 0.0, rollout.holdout, 0, steps)
    step = rollout.steps.index(state.share) + 1
    return Split(route, state.share, rollout.holdout, step, steps)
