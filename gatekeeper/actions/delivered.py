"""Promised against delivered: a full window is judged once, and what follows from it is done at once.

In one transaction: the window is stored; the ramp goes on, or an alarm bypasses the route, or its gates
are queued; the route is decided. Whoever stops in between leaves nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog

from gatekeeper.actions.alarms import raise_alarms
from gatekeeper.actions.catalog import get_route
from gatekeeper.actions.decide import current, derive, present_pricing, stamp
from gatekeeper.actions.delivered_due import OpenWindow, judged_window, open_window
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.actions.ramp import ramp_of
from gatekeeper.actions.submit import enqueue
from gatekeeper.core.arms import MIXED
from gatekeeper.core.delivered import (
    BELOW,
    HARM,
    Delivered,
    Promise,
    judge,
    promise_of,
    table_of,
)
from gatekeeper.core.delivered_window import ArmTask, counted, missing
from gatekeeper.core.policies import Policy
from gatekeeper.core.ramp import REGATE_BELOW, Rollout
from gatekeeper.errors import GatekeeperError
from gatekeeper.store import access, catalog, decisions, results, rollouts, schedules
from gatekeeper.store.database import now
from gatekeeper.store.rollouts import WindowRecord

if TYPE_CHECKING:
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import DecisionRecord, RouteRecord

__all__ = ["WINDOWS", "delivered_view", "judge_window"]

WINDOWS = 20
"""Judged windows that a view lists."""

SOURCE = "rollout"
"""Who raised an alarm about what was delivered."""

ALARMS = {("saving", BELOW): "below_promise", ("saving", HARM): "slower_than_holdout"}
"""Finding and outcome to the alarm's reason."""

_SUCCESS_DROPPED = "success_dropped"

_log = structlog.get_logger()


@dataclass(frozen=True)
class _Judged:
    """A window with its tasks, what it lacks, and what it shows so far."""

    window: OpenWindow
    tasks: list[ArmTask]
    promise: Promise
    needed: tuple[str, ...]
    found: Delivered


def judge_window(db: Database, name: str) -> list[DecisionRecord]:
    """Judge a route's window if it is full; return the decision if it changed."""
    with db.read() as session:
        route = catalog.route(session, name)
        decision = decisions.latest_decision(session, name)
        judged = None if route is None else _look(session, route, decision)
    if judged is None or judged.needed:
        return []
    with db.write() as session:
        route = catalog.route(session, name, lock=True)
        decision = decisions.latest_decision(session, name)
        # a replica was faster, or the step is over
        if route is None or open_window(session, route, decision) != judged.window:
            return []
        _store(session, route, judged)
        _act(session, route, judged)
        changed = derive(session, [name])
    _log.info("window judged", route=name, outcome=judged.found.outcome)
    return changed


def _look(session: Session, route: RouteRecord, decision: DecisionRecord | None) -> _Judged | None:
    window = open_window(session, route, decision)
    if window is None or decision is None:
        return None
    policy = catalog.policy(session, decision.policy)
    if policy is None:
        return None
    promise, priced = _promise(session, route, decision, Policy.from_dict(policy.document))
    tasks = rollouts.arm_tasks(session, route.name, since=window.since)
    needed = missing(
        counted(tasks),
        window.rollout,
        since=window.since,
        success_needed=promise.success_needed,
    )
    if not priced:
        # a window that is judged is spent: it waits for what it is to be held against
        needed = (*needed, "a pricing of the present evidence, which follows within seconds")
    found = judge(table_of(tasks), promise, confidence=window.rollout.confidence)
    return _Judged(window, tasks, promise, needed, found)


def _promise(
    session: Session, route: RouteRecord, decision: DecisionRecord, policy: Policy
) -> tuple[Promise, bool]:
    """What a window is held against, and whether the present evidence has been priced at all."""
    governing = results.governing_results(
        session, route=route.name, artifact=decision.artifact, policy=decision.policy
    )
    priced = present_pricing(session, route, decision.artifact, decision.policy, governing)
    promise = Promise(
        saving=promise_of(None if priced is None else priced.document),
        margin=policy.outcome.margin,
        success_needed="outcome" in policy.mandatory_gates,
    )
    return promise, priced is not None


def _store(session: Session, route: RouteRecord, judged: _Judged) -> WindowRecord:
    window = judged.window
    step_since = window.ramp.since
    return rollouts.add_window(
        session,
        WindowRecord(
            id=0,
            route=route.name,
            artifact=window.ramp.artifact,
            share=window.ramp.share,
            step_since=0.0 if step_since is None else step_since.timestamp(),
            since_at=window.since,
            until_at=now(session),
            outcome=judged.found.outcome,
            document=_figures(judged),
        ),
    )


def _figures(judged: _Judged) -> dict[str, Any]:
    sides = counted(judged.tasks)
    return {
        **judged.found.to_dict(),
        "promised": {
            "saving_s": None if judged.promise.saving is None else dict(judged.promise.saving),
            "success_margin": judged.promise.margin,
        },
        "confidence": judged.window.rollout.confidence,
        "sides": {
            name: {k: v for k, v in asdict(side).items() if k != "newest_at"}
            for name, side in sides.items()
        },
        "mixed": sum(task.arm == MIXED for task in judged.tasks),
    }


def _act(session: Session, route: RouteRecord, judged: _Judged) -> None:
    """Raise the alarms, or queue the gates, that a broken promise asks for."""
    broken = [f for f in judged.found.findings if f.outcome in {BELOW, HARM}]
    harm = any(f.outcome == HARM for f in broken)
    if not broken:
        return
    if judged.window.rollout.below_promise == REGATE_BELOW and not harm:
        _regate(session, route, judged)
        return
    wanted = [
        (ALARMS.get((f.name, f.outcome), _SUCCESS_DROPPED), f"{f.name}: {f.says}.") for f in broken
    ]
    raise_alarms(
        session,
        wanted,
        route=route.name,
        artifact=judged.window.ramp.artifact,
        source=SOURCE,
        actor=SYSTEM,
    )


def _regate(session: Session, route: RouteRecord, judged: _Judged) -> None:
    """Queue the serving gate, whose speed-up the promise rests on, unless it is in flight."""
    version = schedules.versions(session, [route.name]).get(route.name)
    if version is None or "serving" in schedules.in_flight(session, route.name, version):
        return
    try:
        with session.begin_nested():
            run = enqueue(
                session,
                SYSTEM,
                route=route.name,
                gate="serving",
                parameters={},
                priority=0,
                key=secrets.token_hex(16),
            )
    except GatekeeperError as error:
        _log.error("gate could not be queued", route=route.name, error=str(error))
        return
    access.audit(
        session,
        actor=SYSTEM,
        action="rollout.regate",
        target=route.name,
        detail={"run": run.id, "findings": [asdict(f) for f in judged.found.findings]},
    )


def delivered_view(db: Database, name: str) -> dict[str, Any]:
    """Return what a route's rollout delivered, as a JSON-able document.

    ``window`` holds the present window's figures so far, null where nothing is in force; its
    ``outcome`` stays ``unknown`` until it is full. ``windows`` are the judged ones, newest first.

    Raises:
        NotFound: no such route.
    """
    route = get_route(db, name)
    decision, lease = current(db, name)
    with db.read() as session:
        judged = _look(session, route, decision)
        before = rollouts.windows(session, name, after=None, limit=WINDOWS)
    return {
        "route": name,
        "artifact": decision.artifact,
        "action": lease.action,
        "reason": lease.reason,
        "rollout": None if route.rollout is None else Rollout.from_dict(route.rollout).to_dict(),
        "split": None if lease.rollout is None else lease.rollout.to_dict(),
        "step_since": _since(decision),
        "window": None if judged is None else _shown(judged),
        "windows": [judged_window(one) for one in before],
    }


def _since(decision: DecisionRecord) -> str | None:
    since = ramp_of(decision).since
    return None if since is None else since.isoformat()


def _shown(judged: _Judged) -> dict[str, Any]:
    figures = _figures(judged)
    if judged.needed:  # too little evidence is never success, nor a broken promise
        figures["outcome"] = "unknown"
    return {
        "since": stamp(judged.window.since),
        **figures,
        "still_needed": list(judged.needed),
    }
