"""Where a route's ramp stands, worked out with each of its decisions and kept with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.lease import ENABLE
from gatekeeper.core.ramp import RampState, Rollout, advance, split_of
from gatekeeper.store import rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gatekeeper.core.arms import Split
    from gatekeeper.core.policies import Verdict
    from gatekeeper.store.database import Session
    from gatekeeper.store.records import DecisionRecord, RouteRecord

__all__ = ["HELD", "ramp_of", "ramped"]

HELD = "held"
"""Outcome of a window that leaves its step for the next one."""

_KEY = "ramp"


def ramp_of(decision: DecisionRecord | None) -> RampState:
    """Where the ramp stood at a decision; at its beginning where there was none."""
    return _recall({} if decision is None else decision.state)


def _recall(state: Mapping[str, Any]) -> RampState:
    known = state.get(_KEY)
    return RampState() if known is None else RampState.from_dict(known)


def ramped(
    session: Session,
    route: RouteRecord,
    verdict: Verdict,
    remembered: Mapping[str, Any],
    *,
    artifact: str,
    now: datetime,
) -> tuple[Split | None, dict[str, Any]]:
    """Return whom a verdict is for, and what to remember of it; None is everybody.

    An enabling override is for everybody but the holdout, and the ramp begins anew after it.
    """
    if route.rollout is None:
        return None, {}
    rollout = Rollout.from_dict(route.rollout)
    overridden = verdict.reason == "override"
    enabled = verdict.action == ENABLE
    before = _recall(remembered)
    state = advance(
        rollout,
        before,
        enabled=enabled and not overridden,
        artifact=artifact,
        delivered=_held(session, route.name, before),
        now=now,
    )
    split = split_of(rollout, state, route=route.name, overridden=overridden and enabled)
    return split, {_KEY: state.to_dict()}


def _held(session: Session, route: str, state: RampState) -> bool:
    """Whether the window that was judged last in this step holds its promise."""
    if state.since is None:
        return False
    found = rollouts.latest_window(
        session, route, artifact=state.artifact, step_since=state.since.timestamp()
    )
    return found is not None and found.outcome == HELD
