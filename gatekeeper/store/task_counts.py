"""How many tasks a route has, by state and evidence grade."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from gatekeeper.store.schema_traces import task, task_route
from gatekeeper.store.tasks import COMPLETE, OPEN, unmatched

if TYPE_CHECKING:
    from gatekeeper.store.database import Session

__all__ = ["task_counts"]


def task_counts(session: Session, route: str) -> dict[str, Any]:
    """Count a route's tasks.

    ``complete`` and ``open``; ``grades`` of the complete ones; ``unmatched_calls`` of all complete
    tasks, whatever their route: no route has them.
    """
    query = (
        select(task.c.state, task_route.c.grade, func.count())
        .join(task_route, task_route.c.task == task.c.id)
        .where(task_route.c.route == route)
        .group_by(task.c.state, task_route.c.grade)
    )
    states: Counter[str] = Counter()
    grades: Counter[str] = Counter()
    for state, grade, number in session.execute(query):
        states[state] += number
        if state == COMPLETE:
            grades[grade] += number
    return {
        "complete": states[COMPLETE],
        "open": states[OPEN],
        "unmatched_calls": unmatched(session),
        "grades": dict(sorted(grades.items())),
    }
