"""From a verdict to the lease that is handed out: hysteresis, cool-down and lifetime."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from gatekeeper.core.lease import BYPASS, ENABLE, Lease

if TYPE_CHECKING:
    from datetime import datetime

    from gatekeeper.core.arms import Split
    from gatekeeper.core.policies import Policy, Verdict

__all__ = ["Hold", "grant", "ready_at", "settle"]


@dataclass(frozen=True)
class Hold:
    """What a route remembers between decisions, for hysteresis and cool-down.

    ``enable_since``: start of the unbroken run of enable verdicts; ``fell_back_at``: when an
    enable in force last turned into a bypass.
    """

    action: str = BYPASS
    enable_since: datetime | None = None
    fell_back_at: datetime | None = None


def settle(policy: Policy, verdict: Verdict, hold: Hold, now: datetime) -> tuple[Verdict, Hold]:
    """Delay an enable until it is stable; a bypass, and any override, takes effect at once.

    An enable already in force stays in force. Otherwise it must have been the verdict for
    ``hysteresis_s``, and ``cooldown_s`` must have passed since the last fall-back.
    """
    if verdict.reason == "override":
        # once it lapses, the evidence starts from a bypass again and has to prove stable
        fell = now if hold.action == ENABLE and verdict.action == BYPASS else hold.fell_back_at
        return verdict, Hold(BYPASS, None, fell)
    if verdict.action == BYPASS:
        fell = now if hold.action == ENABLE else hold.fell_back_at
        return verdict, Hold(BYPASS, None, fell)
    if hold.action == ENABLE:
        return verdict, hold
    since = hold.enable_since or now
    waiting_hold = Hold(BYPASS, since, hold.fell_back_at)
    ready = ready_at(policy, waiting_hold) or since
    if now >= ready:
        return verdict, Hold(ENABLE, since, hold.fell_back_at)
    wait = f"the enable verdict must hold until {ready.isoformat()}"
    waiting = replace(
        verdict,
        action=BYPASS,
        gamma=0,
        gamma_by_concurrency={},
        reason="insufficient_evidence",
        explanation=f"Every gate passed, and policy {policy.name} waits for stability: {wait}.",
        still_needed=(wait,),
    )
    return waiting, waiting_hold


def ready_at(policy: Policy, hold: Hold) -> datetime | None:
    """When a held-back enable may take effect; None where none is held back and nothing fell."""
    times = [
        time + timedelta(seconds=wait)
        for time, wait in (
            (hold.enable_since, policy.hysteresis_s),
            (hold.fell_back_at, policy.cooldown_s),
        )
        if time is not None
    ]
    return max(times, default=None)


def grant(
    policy: Policy,
    verdict: Verdict,
    *,
    route: str,
    artifact: str | None,
    version: tuple[int, int],
    now: datetime,
    rollout: Split | None = None,
) -> Lease:
    """Make the lease of a verdict; it never outlives the evidence it rests on."""
    left = math.inf
    if verdict.evidence_expires_at is not None:
        left = max(0.0, (verdict.evidence_expires_at - now).total_seconds())
    label = "approximate-" if verdict.approximate else ""
    enabled = verdict.action == ENABLE
    return Lease(
        route=route,
        action=verdict.action,
        variant=f"{label}gamma-{verdict.gamma}" if enabled else "ordinary",
        gamma=verdict.gamma,
        gamma_by_concurrency=verdict.gamma_by_concurrency,
        artifact=artifact,
        reason=verdict.reason,
        explanation=verdict.explanation + (_reach(rollout) if enabled and rollout else ""),
        gates=verdict.gates,
        value=verdict.value,
        envelope=verdict.envelope,
        version=version,
        decided_at=now,
        evidence_expires_at=verdict.evidence_expires_at,
        ttl_s=min(policy.decision_ttl_s, left),
        max_stale_s=min(policy.max_stale_s, left),
        rollout=rollout,
    )


def _reach(rollout: Split) -> str:
    """Whom an enable is for, in words."""
    step = f" (step {rollout.step} of {rollout.steps})" if rollout.step else ""
    if rollout.holdout:
        return (
            f" Of all targeting keys {rollout.holdout:.3g} are held out, and of the others "
            f"{rollout.share:.3g} are in{step}."
        )
    return f" Of all targeting keys {rollout.share:.3g} are in{step}."
