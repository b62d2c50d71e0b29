"""Outcomes of tasks: whether they succeeded, and under which arm of a rollout they ran."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gatekeeper.errors import Conflict, InputError, NotFound
from gatekeeper.store import catalog, rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.store.database import Database
    from gatekeeper.store.rollouts import OutcomeRecord

__all__ = ["record_outcomes"]


def record_outcomes(db: Database, records: Sequence[OutcomeRecord]) -> tuple[int, int]:
    """Store outcomes, all or none; return how many are new and how many were known.

    Raises:
        InputError: an outcome that tells nothing, or a task told twice.
        NotFound: no such route.
        Conflict: another outcome of the same task is stored.
    """
    by_route: dict[str, dict[str, OutcomeRecord]] = {}
    for record in records:
        mine = by_route.setdefault(record.route, {})
        if record.task in mine:
            raise InputError(
                "is given twice", field="task", value=record.task, remedy="give one outcome a task"
            )
        if record.success is None and record.wall_s is None:
            raise InputError(
                "tells nothing", field="task", value=record.task, remedy="give success or wall_s"
            )
        mine[record.task] = record
    new = 0
    with db.write() as session:
        for route in sorted(by_route):
            # held, so that two posts of one task come one after the other
            if catalog.route(session, route, lock=True) is None:
                raise NotFound(
                    "is not a route", field="route", value=route, remedy="see gatekeeper route list"
                )
            mine = by_route[route]
            known = rollouts.outcomes(session, route, list(mine))
            for task, before in known.items():
                if replace(before, received_at=0.0) != mine[task]:
                    raise Conflict(
                        "has another outcome already",
                        field="task",
                        value=task,
                        remedy="send each task's outcome once",
                    )
            fresh = [record for task, record in mine.items() if task not in known]
            rollouts.add_outcomes(session, fresh)
            new += len(fresh)
    return new, len(records) - new
