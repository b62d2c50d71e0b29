"""Outcomes of tasks, the tasks of a rollout's window, and the windows that were judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from gatekeeper.core.arms import MIXED
from gatekeeper.core.delivered_window import ArmTask
from gatekeeper.store import schema_rollouts as schema
from gatekeeper.store.database import Session, clock
from gatekeeper.store.rows import page
from gatekeeper.store.schema_traces import task, task_route
from gatekeeper.store.tasks import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping

__all__ = [
    "MOST_TASKS",
    "OutcomeRecord",
    "WindowRecord",
    "add_outcomes",
    "add_window",
    "arm_tasks",
    "arrivals",
    "latest_window",
    "outcomes",
    "remove_outcomes",
    "windows",
]

MOST_TASKS = 50_000
"""Most tasks of one window, the oldest first: one that is not full by then never is."""


@dataclass(frozen=True)
class OutcomeRecord:
    """What somebody told of one task of a route; None is not told."""

    route: str
    task: str
    arm: str | None
    session: str | None
    success: bool | None
    wall_s: float | None
    received_at: float = 0.0


@dataclass(frozen=True)
class WindowRecord:
    """One judged window: of which step, over which time, and what it delivered."""

    id: int
    route: str
    artifact: str
    share: float
    step_since: float
    since_at: float
    until_at: float
    outcome: str
    document: Mapping[str, Any]


def outcomes(session: Session, route: str, tasks: Sequence[str]) -> dict[str, OutcomeRecord]:
    """What is stored of these tasks, by task."""
    table = schema.outcome
    query = select(table).where(table.c.route == route, table.c.task.in_(list(tasks)))
    return {row["task"]: _outcome(row) for row in session.execute(query).mappings()}


def add_outcomes(session: Session, records: Sequence[OutcomeRecord]) -> None:
    """Store outcomes of tasks that have none yet."""
    rows = [{**asdict(record), "received_at": clock()} for record in records]
    for row in rows:
        session.execute(schema.outcome.insert().values(row))


def remove_outcomes(session: Session, route: str, *, before: float, limit: int) -> int:
    """Remove so many outcomes of a route that arrived before a time, oldest first; return how many."""
    table = schema.outcome
    old = (
        select(table.c.id)
        .where(table.c.route == route, table.c.received_at < before)
        .order_by(table.c.received_at)
        .limit(limit)
    )
    return int(session.execute(delete(table).where(table.c.id.in_(old))).rowcount)


def _outcome(row: RowMapping) -> OutcomeRecord:
    return OutcomeRecord(**{name: row[name] for name in OutcomeRecord.__dataclass_fields__})


def arrivals(session: Session, route: str, *, since: float) -> dict[str, int]:
    """Tasks and outcomes of a window by arm: an upper bound, quickly counted."""
    table = schema.outcome
    queries = (
        select(task_route.c.arm, func.count())
        .join(task, task.c.id == task_route.c.task)
        .where(
            task_route.c.route == route,
            task_route.c.arm.is_not(None),
            task.c.state == COMPLETE,
            task.c.created_at >= since,
        )
        .group_by(task_route.c.arm),
        select(table.c.arm, func.count())
        .where(table.c.route == route, table.c.arm.is_not(None), table.c.received_at >= since)
        .group_by(table.c.arm),
    )
    found: dict[str, int] = {}
    for query in queries:
        for arm, number in session.execute(query):
            found[str(arm)] = found.get(str(arm), 0) + int(number)
    return found


def arm_tasks(session: Session, route: str, *, since: float) -> list[ArmTask]:
    """Complete tasks with an arm that began and arrived since a time, the oldest first.

    A task is known from its trace, from an outcome, or from both: then the trace times it, and arms
    that contradict each other make it ``mixed``. An outcome of a trace that is part of a conversation is
    the conversation's.
    """
    told, traced = _told(session, route, since=since)
    query = (
        select(
            task.c.id,
            task.c.created_at,
            task_route.c.arm,
            task_route.c.session,
            task_route.c.wall_s,
        )
        .join(task_route, task_route.c.task == task.c.id)
        .where(
            task_route.c.route == route,
            task.c.state == COMPLETE,
            task.c.created_at >= since,
            task.c.started_at >= since,
        )
        .order_by(task.c.created_at, task.c.id)
        .limit(MOST_TASKS)
    )
    found = []
    for row in session.execute(query).mappings():
        outcome = told.pop(row["id"], None)
        arms = {row["arm"], None if outcome is None else outcome.arm} - {None}
        if arms:
            found.append(
                ArmTask(
                    task=row["id"],
                    arm=MIXED if len(arms) > 1 else str(arms.pop()),
                    session=row["session"],
                    wall_s=float(row["wall_s"]),
                    success=None if outcome is None else outcome.success,
                    arrived_at=float(row["created_at"]),
                )
            )
    found += [
        ArmTask(
            task=name,
            arm=one.arm,
            session=one.session or name,
            wall_s=one.wall_s,
            success=one.success,
            arrived_at=one.received_at,
        )
        for name, one in told.items()
        # an outcome alone says no more of when its task began than how long it took
        if one.arm is not None
        and name not in traced
        and one.received_at - (one.wall_s or 0.0) >= since
    ]
    return sorted(found, key=lambda one: (one.arrived_at, one.task))[:MOST_TASKS]


def _told(
    session: Session, route: str, *, since: float
) -> tuple[dict[str, OutcomeRecord], set[str]]:
    """Outcomes that arrived since a time, by the task that they belong to (the newest counts).

    With them those of these tasks that have a trace, which may be of before.
    """
    table = schema.outcome
    whole = func.coalesce(task.c.part_of, table.c.task).label("whole")
    query = (
        select(table, whole, task.c.id.label("trace"))
        .outerjoin(task, task.c.id == table.c.task)
        .where(table.c.route == route, table.c.received_at >= since)
        .order_by(table.c.received_at, table.c.id)
        .limit(MOST_TASKS)
    )
    rows = session.execute(query).mappings().all()
    traced = {str(row["whole"]) for row in rows if row["trace"] is not None}
    return {str(row["whole"]): _outcome(row) for row in rows}, traced


def add_window(session: Session, record: WindowRecord) -> WindowRecord:
    """Store a judged window; the database numbers it."""
    values = {name: value for name, value in asdict(record).items() if name != "id"}
    statement = schema.window.insert().values(values).returning(schema.window)
    return WindowRecord(**session.execute(statement).mappings().one())


def latest_window(
    session: Session, route: str, *, artifact: str, step_since: float
) -> WindowRecord | None:
    """Newest judged window of one step; None where there is none."""
    table = schema.window
    query = (
        select(table)
        .where(
            table.c.route == route,
            table.c.artifact == artifact,
            table.c.step_since == step_since,
        )
        .order_by(table.c.id.desc())
        .limit(1)
    )
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else WindowRecord(**row)


def windows(session: Session, route: str, *, after: int | None, limit: int) -> list[WindowRecord]:
    """Page of a route's judged windows, newest first."""
    rows = page(
        session,
        schema.window,
        schema.window.c.id,
        after=after,
        limit=limit,
        where=[schema.window.c.route == route],
        newest_first=True,
    )
    return [WindowRecord(**row) for row in rows]
