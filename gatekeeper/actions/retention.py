"""Retention: old spans are removed a bounded amount at a time, beside a server that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.store import access, retention
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database

__all__ = ["Removed", "remove_old_spans"]

BATCH = 100
"""Tasks in one transaction: nobody waits long for it."""


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
        with db.write() as session:
            access.audit(
                session, actor=actor.name, action="spans.remove", target="spans", detail=detail
            )
    return Removed(tasks, spans, before)
