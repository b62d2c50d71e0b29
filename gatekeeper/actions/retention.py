"""Retention: what is old is removed a bounded amount at a time, beside a server that runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.actions.delivered_due import open_window
from gatekeeper.store import access, catalog, decisions, retention, rollouts, schedules
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database, Session

__all__ = [
    "Removed",
    "remove_abandoned_uploads",
    "remove_old_fires",
    "remove_old_outcomes",
    "remove_old_spans",
]

BATCH = 100
"""Tasks in one transaction: nobody waits long for it."""

FIRES = 1_000
"""Fires of schedules in one transaction."""

OUTCOMES = 1_000
"""Outcomes of tasks in one transaction."""

UPLOAD_S = 86_400.0
"""No upload takes a day: a file that has lain as long was left by a process that was killed."""


@dataclass(frozen=True)
class Removed:
    """So many spans of so many tasks; ``before`` is the time, in seconds since 1970, up to which."""

    tasks: int
    spans: int
    before: float


def remove_old_spans(db: Database, actor: Actor, *, age_s: float) -> Removed:
    """Remove the spans of tasks that are complete and have had no new span for ``age_s`` seconds.

    Their figures stay, and are final. Open tasks, and conversations that still grow, keep all
    their spans.
    """
    with db.read() as session:
        before = now(session) - age_s
    tasks = spans = 0
    while True:
        with db.read() as session:
            names = retention.removable(session, before=before, limit=BATCH)
        if not names:
            break
        with db.write() as session:
            spans += retention.remove_spans(session, names, before=before)
        tasks += len(names)
    if tasks:
        detail = {"tasks": tasks, "spans": spans, "before": before}
        _record(db, actor, action="spans.remove", target="spans", detail=detail)
    return Removed(tasks, spans, before)


def remove_old_fires(db: Database, actor: Actor, *, age_s: float) -> int:
    """Remove what schedules recorded more than ``age_s`` seconds ago; return how many fires.

    The runs stay, and so does whatever a schedule counts its next time from.
    """
    with db.read() as session:
        before = now(session) - age_s
    removed = 0
    while True:
        with db.write() as session:
            kept = list(_renewed(session))
            gone = schedules.remove_fires(session, before=before, kept=kept, limit=FIRES)
        removed += gone
        if gone < FIRES:
            break
    if removed:
        detail = {"fires": removed, "before": before}
        _record(db, actor, action="fires.remove", target="schedules", detail=detail)
    return removed


def remove_old_outcomes(db: Database, actor: Actor, *, age_s: float) -> int:
    """Remove task outcomes told more than ``age_s`` seconds ago; return how many.

    Windows that were judged keep their figures, and one that is still open keeps its outcomes. An
    outcome that is told again afterwards counts as a new one.
    """
    with db.read() as session:
        before = now(session) - age_s
        names = [route.name for route in catalog.all_routes(session)]
    removed = 0
    for name in names:
        gone = OUTCOMES
        while gone == OUTCOMES:
            with db.write() as session:
                settled = min(before, _open_since(session, name))
                gone = rollouts.remove_outcomes(session, name, before=settled, limit=OUTCOMES)
            removed += gone
    if removed:
        detail = {"outcomes": removed, "before": before}
        _record(db, actor, action="outcomes.remove", target="outcomes", detail=detail)
    return removed


def _record(
    db: Database, actor: Actor, *, action: str, target: str, detail: dict[str, float]
) -> None:
    with db.write() as session:
        access.audit(session, actor=actor, action=action, target=target, detail=detail)


def _open_since(session: Session, name: str) -> float:
    """When the window of a route began that is not judged yet; endless where there is none."""
    route = catalog.route(session, name)
    decision = decisions.latest_decision(session, name)
    window = None if route is None else open_window(session, route, decision)
    return math.inf if window is None else window.since


def _renewed(session: Session) -> Iterator[tuple[str, float]]:
    """(schedule, time) at which the evidence that counts now was, or will be, renewed."""
    watching = [one for one in schedules.every(session) if one.before_expiry_s is not None]
    versions = schedules.versions(session, [one.route for one in watching])
    governing = schedules.governing(session, versions)
    for one in watching:
        for result in governing.get(one.route, {}).values():
            yield one.id, result.expires_at - (one.before_expiry_s or 0.0)


def remove_abandoned_uploads(folder: Path, *, at: float) -> int:
    """Remove the files of uploads that were cut off by a kill; return how many."""
    removed = 0
    for path in (folder / "incoming").glob("*"):
        try:
            if path.stat().st_mtime < at - UPLOAD_S:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # it was renamed or removed meanwhile
    return removed
