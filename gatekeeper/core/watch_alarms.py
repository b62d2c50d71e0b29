"""An alarm of the live watch, or of a rollout: a bypass that only evidence begun after it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gatekeeper.core.lease import BYPASS, Envelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from gatekeeper.core.policies import Verdict

__all__ = ["REARMED_BY", "Alarm", "barred", "raised_by"]

REARMED_BY: Mapping[str, tuple[str, ...]] = {
    "version_mismatch": ("equivalence", "serving", "outcome"),
    "target_changed": ("equivalence", "serving", "outcome"),
    "success_dropped": ("equivalence", "outcome"),
    "high_acceptance": ("equivalence", "serving"),
    "low_acceptance": ("serving",),
    "memory_pressure": ("serving",),
    "draft_overloaded": ("serving",),
    "slower_than_holdout": ("serving",),
    "below_promise": ("serving",),
}
"""Reason of an alarm to the gates that must have passed since, as far as the policy demands them.

Something else is running, or more is accepted than was: nothing that was shown need hold, or at least
not its exactness. The others speak of load alone, which is the serving gate's, or of what it promised.
"""

_DELIVERED = {"success_dropped", "slower_than_holdout", "below_promise"}
"""Reasons that a rollout gives, by what it delivered."""


@dataclass(frozen=True)
class Alarm:
    """What the watch saw, when, and which gates have not passed since: ``needed``."""

    reason: str
    explanation: str
    raised_at: datetime
    needed: tuple[str, ...]


def raised_by(reason: str) -> str:
    """Name what raises alarms of a reason."""
    return "rollout" if reason in _DELIVERED else "live watch"


def barred(verdict: Verdict, alarms: Sequence[Alarm]) -> Verdict:
    """Turn an enable into a bypass where an alarm stands; a bypass keeps the reason it has."""
    standing = [alarm for alarm in alarms if alarm.needed]
    if verdict.action == BYPASS or not standing:
        return verdict
    order = list(REARMED_BY)
    first = min(standing, key=lambda alarm: (order.index(alarm.reason), alarm.raised_at))
    needed = tuple(
        f"run the {gate} gate again: the {raised_by(alarm.reason)} raised {alarm.reason} at "
        f"{alarm.raised_at.isoformat()}"
        for alarm in standing
        for gate in alarm.needed
    )
    rules = verdict.envelope
    return replace(
        verdict,
        action=BYPASS,
        gamma=0,
        gamma_by_concurrency={},
        reason=first.reason,
        explanation=f"The {raised_by(first.reason)} saw this: {first.explanation} "
        f"Bypass stands until evidence newer than {first.raised_at.isoformat()} passes "
        f"({', '.join(first.needed)}).",
        # the limits of every bypass: the measured region belongs to an enable
        envelope=Envelope(
            min_remaining_tokens=rules.min_remaining_tokens,
            min_acceptance=rules.min_acceptance,
            max_memory_utilisation=rules.max_memory_utilisation,
            max_draft_queue=rules.max_draft_queue,
        ),
        evidence_expires_at=None,
        still_needed=tuple(dict.fromkeys(needed)),
    )
