"""Which rollouts have a window that may be full: asked often, and mostly for nothing.

So it needs no more than the database; ``actions.delivered`` computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from gatekeeper.actions import on_demand
from gatekeeper.actions.decide import stamp
from gatekeeper.actions.ramp import ramp_of
from gatekeeper.core.arms import CANDIDATE, ORDINARY
from gatekeeper.core.ramp import RampState, Rollout
from gatekeeper.errors import GatekeeperError
from gatekeeper.store import catalog, decisions, rollouts

if TYPE_CHECKING:
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import DecisionRecord, RouteRecord
    from gatekeeper.store.rollouts import WindowRecord

__all__ = ["OpenWindow", "judge_due", "judged_window", "open_window"]

_log = structlog.get_logger()


@dataclass(frozen=True)
class OpenWindow:
    """The window that a route's rollout is in: its step, and the time since which tasks count."""

    rollout: Rollout
    ramp: RampState
    since: float


def open_window(
    session: Session, route: RouteRecord, decision: DecisionRecord | None
) -> OpenWindow | None:
    """Return a route's window; None where nothing is in force to be compared."""
    ramp = ramp_of(decision)
    if route.rollout is None or ramp.since is None:
        return None
    rollout = Rollout.from_dict(route.rollout)
    step_since = ramp.since.timestamp()
    before = rollouts.latest_window(
        session, route.name, artifact=ramp.artifact, step_since=step_since
    )
    return OpenWindow(rollout, ramp, step_since if before is None else before.until_at)


def judge_due(db: Database) -> list[DecisionRecord]:
    """Judge the windows that are full; one that cannot be judged keeps no other waiting."""
    changed: list[DecisionRecord] = []
    for route in _due(db):
        try:
            changed += on_demand.delivered.judge_window(db, route)
        except GatekeeperError as error:
            _log.error("window could not be judged", route=route, error=str(error))
    return changed


def _due(db: Database) -> list[str]:
    """Routes with enough tasks on either side, as far as counting tells."""
    found = []
    with db.read() as session:
        ramping = [route for route in catalog.all_routes(session) if route.rollout is not None]
        latest = {one.route: one for one in decisions.latest_decisions(session)} if ramping else {}
        for route in ramping:
            window = open_window(session, route, latest.get(route.name))
            if window is None:
                continue
            number = rollouts.arrivals(session, route.name, since=window.since)
            ordinary = sum(number.get(arm, 0) for arm in ORDINARY)
            if min(number.get(CANDIDATE, 0), ordinary) >= window.rollout.min_tasks:
                found.append(route.name)
    return found


def judged_window(record: WindowRecord) -> dict[str, Any]:
    """Return what a judged window delivered, as a JSON-able document."""
    return {
        "id": record.id,
        "artifact": record.artifact,
        "share": record.share,
        "since": stamp(record.since_at),
        "until": stamp(record.until_at),
        **record.document,
        "outcome": record.outcome,
    }
