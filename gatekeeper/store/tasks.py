"""Tasks made of spans, and each route's part of them: always the newest version, and only it.

A row's ``generation`` rises with every change of its spans. Figures carry the generation that they
were computed from and are stored only while it is still the newest, so that any number of
servers may compute one task at a time and no late span is ever lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, case, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from gatekeeper.core.arms import CANDIDATE, MIXED
from gatekeeper.store.database import Session, clock, now
from gatekeeper.store.schema_traces import task as table
from gatekeeper.store.schema_traces import task_route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Executable, RowMapping

__all__ = [
    "COMPLETE",
    "OPEN",
    "Figures",
    "TaskRecord",
    "TaskRoute",
    "Unsettled",
    "changed_parts",
    "close",
    "due",
    "file_under",
    "get",
    "ordinary",
    "page_of_tasks",
    "postpone",
    "route_tasks",
    "settle",
    "touch",
    "unmatched",
    "unsettled",
]

OPEN, COMPLETE = "open", "complete"


@dataclass(frozen=True)
class TaskRecord:
    """One task; what is not computed yet is None.

    ``state`` is ``open`` while spans may still come. ``session`` is the cluster to which the task
    belongs. ``document`` is its row of ``profile --json``. ``spans_removed_at``: its figures
    outlive its spans, and are final.
    """

    id: str
    version: int
    state: str
    session: str | None
    routes: tuple[str, ...]
    calls: int | None
    unmatched_calls: int | None
    grade: str | None
    reconciled: bool | None
    wall_s: float | None
    segments_s: Mapping[str, float] | None
    critical_path_s: Mapping[str, float] | None
    started_at: float | None
    updated_at: float
    document: Mapping[str, Any] | None
    spans_removed_at: float | None


@dataclass(frozen=True)
class TaskRoute:
    """One route's part of a task.

    The curves are lists of [x, makespan in seconds] with only this route's decode scaled by x;
    None where the task must not be priced, and so are ``decode_on_path_s`` and ``ceiling_s``. ``arm`` is
    the rollout's that its calls carried, ``mixed`` where they differed, None where none did.
    """

    task: str
    version: int
    session: str
    route: str
    calls: int
    grade: str
    reconciled: bool
    wall_s: float
    decode_on_path_s: float | None
    curve: list[list[float]] | None
    curve_low: list[list[float]] | None
    curve_high: list[list[float]] | None
    ceiling_s: float | None
    arm: str | None = None


@dataclass(frozen=True)
class Unsettled:
    """What computing a task has to know of its row."""

    id: str
    part_of: str | None
    source_format: str
    notes: tuple[str, ...]
    generation: int
    computed: int
    routing: str | None
    state: str
    touched_at: float
    spans_removed_at: float | None


@dataclass(frozen=True)
class Figures:
    """A computed task: the columns of its row, and its routes without task and version."""

    session: str
    calls: int
    unmatched_calls: int
    grade: str
    reconciled: bool
    wall_s: float
    started_at: float
    document: Mapping[str, Any]
    routes: tuple[TaskRoute, ...] = field(default=())


def touch(
    session: Session,
    task_ids: Sequence[str],
    *,
    source_format: str,
    quiet_s: float,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Note that spans were added to these tasks: they are open, and due when it has been quiet."""
    at = now(session)
    rows = [
        {
            "id": task_id,
            "source_format": source_format,
            "notes": list((notes or {}).get(task_id, ())),
            "generation": 1,
            "computed": 0,
            "state": OPEN,
            "version": 0,
            "created_at": at,
            "touched_at": at,
            "due_at": at + quiet_s,
            "updated_at": at,
        }
        for task_id in sorted(set(task_ids))
    ]
    if rows:
        session.execute(_touching(session.dialect.name), rows)


@cache  # to build it for every request takes longer than to run it
def _touching(dialect: str) -> Executable:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    return statement.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "generation": table.c.generation + 1,
            "state": OPEN,
            "touched_at": statement.excluded.touched_at,
            "due_at": statement.excluded.due_at,
            "updated_at": statement.excluded.updated_at,
        },
        where=table.c.spans_removed_at.is_(None),
    )


def due(session: Session, *, routing: str, limit: int) -> list[str]:
    """Tasks to compute now: quiet for long enough, or computed under other rules; oldest first."""
    quiet = (table.c.state == OPEN) & (table.c.due_at <= clock())
    other = (table.c.state == COMPLETE) & (table.c.routing != routing)
    found: list[str] = []
    for condition in (quiet, other):
        query = select(table.c.id).where(condition).order_by(table.c.due_at, table.c.id)
        found += session.execute(query.limit(limit - len(found))).scalars()
    return found


def unsettled(session: Session, task_id: str) -> Unsettled | None:
    """Row of a task as far as computing it goes."""
    columns = [table.c[name] for name in Unsettled.__dataclass_fields__]
    row = session.execute(select(*columns).where(table.c.id == task_id)).mappings().one_or_none()
    return None if row is None else Unsettled(**{**row, "notes": tuple(row["notes"])})


def postpone(session: Session, seen: Unsettled, *, due_at: float) -> None:
    """Leave a task open until another moment, unless new spans have moved it already."""
    session.execute(table.update().where(*_as(seen)).values(due_at=due_at))


def changed_parts(session: Session, task_id: str) -> list[str]:
    """Traces of a conversation that have spans its figures do not know."""
    changed = (table.c.part_of == task_id) & (table.c.generation != table.c.computed)
    return [str(name) for name in session.execute(select(table.c.id).where(changed)).scalars()]


def close(session: Session, seen: Unsettled) -> bool:
    """Declare a task complete whose figures know all its spans; its version stays."""
    statement = table.update().where(*_as(seen)).values(state=COMPLETE, updated_at=clock())
    return bool(session.execute(statement).rowcount)


def settle(
    session: Session, seen: Unsettled, figures: Figures, *, routing: str, state: str
) -> int | None:
    """Store a task's figures as a new version; None when it has changed since it was read."""
    values = asdict(figures)
    values.pop("routes")
    statement = (
        table.update()
        .where(*_as(seen))
        .values(
            **values,
            part_of=None,
            computed=seen.generation,
            routing=routing,
            state=state,
            version=table.c.version + 1,
            updated_at=clock(),
        )
        .returning(table.c.version)
    )
    version = session.execute(statement).scalar_one_or_none()
    if version is None:
        return None
    _forget_routes(session, seen.id)
    if figures.routes:
        rows = [{**asdict(r), "task": seen.id, "version": version} for r in figures.routes]
        session.execute(task_route.insert(), rows)
    return int(version)


def file_under(
    session: Session, seen: Unsettled, conversation: str | None, *, routing: str
) -> bool:
    """Make a trace part of a conversation's task, whose figures it then shares.

    None removes a conversation that has no traces any more. False when the task has changed since
    it was read.
    """
    if conversation is None:
        _forget_routes(session, seen.id)
        return bool(session.execute(table.delete().where(*_as(seen))).rowcount)
    blank = dict.fromkeys(name for name in Figures.__dataclass_fields__ if name != "routes")
    statement = (
        table.update()
        .where(*_as(seen))
        .values(
            **blank,
            part_of=conversation,
            computed=seen.generation,
            routing=routing,
            state=COMPLETE,
            updated_at=clock(),
        )
    )
    if not session.execute(statement).rowcount:
        return False
    _forget_routes(session, seen.id)
    return True


def _as(seen: Unsettled) -> tuple[ColumnElement[bool], ...]:
    """The row is as it was read: no new span, and nobody else has computed it."""
    return (
        table.c.id == seen.id,
        table.c.generation == seen.generation,
        table.c.computed == seen.computed,
        table.c.routing.is_(None) if seen.routing is None else table.c.routing == seen.routing,
    )


def _forget_routes(session: Session, task_id: str) -> None:
    session.execute(task_route.delete().where(task_route.c.task == task_id))


def get(session: Session, task_id: str) -> TaskRecord | None:
    """Task by id; for a trace that is part of a conversation, the conversation's task."""
    query = select(table).where(table.c.id == task_id)
    row = session.execute(query).mappings().one_or_none()
    if row is not None and row["part_of"] is not None:
        return get(session, row["part_of"])
    return None if row is None else _records(session, [row])[0]


def page_of_tasks(
    session: Session,
    *,
    after: str | None,
    limit: int,
    route: str | None = None,
    state: str | None = None,
) -> list[TaskRecord]:
    """Page of tasks, the newest first; traces that are part of a conversation are left out."""
    query = select(table).where(table.c.part_of.is_(None))
    if route is not None:
        mine = select(task_route.c.task).where(task_route.c.route == route)
        query = query.where(table.c.id.in_(mine))
    if state is not None:
        query = query.where(table.c.state == state)
    if after is not None:
        start = select(table.c.created_at, table.c.id).where(table.c.id == after)
        query = query.where(tuple_(table.c.created_at, table.c.id) < start.scalar_subquery())
    query = query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)
    return _records(session, session.execute(query).mappings().all())


def _records(session: Session, rows: Sequence[RowMapping]) -> list[TaskRecord]:
    routes: dict[str, list[str]] = {row["id"]: [] for row in rows}
    query = select(task_route.c.task, task_route.c.route).where(task_route.c.task.in_(list(routes)))
    for task_id, name in session.execute(query.order_by(task_route.c.route)):
        routes[task_id].append(name)
    kept = [name for name in TaskRecord.__dataclass_fields__ if name in table.c]
    return [
        TaskRecord(
            **{name: row[name] for name in kept},
            routes=tuple(routes[row["id"]]),
            segments_s=(row["document"] or {}).get("segments_s"),
            critical_path_s=(row["document"] or {}).get("critical_path_s"),
        )
        for row in rows
    ]


def ordinary() -> ColumnElement[bool]:
    """The part was decoded without speculation, as far as its arm tells: what may be priced.

    A candidate's decode is faster already, and pricing it would count the saving twice.
    """
    arm = task_route.c.arm
    return arm.is_(None) | arm.not_in([CANDIDATE, MIXED])


def route_tasks(session: Session, route: str, *, newest: int | None = None) -> list[TaskRoute]:
    """A route's ordinary parts of all complete tasks, or of so many that came last, by task id."""
    query = (
        select(task_route)
        .join(table, table.c.id == task_route.c.task)
        .where(task_route.c.route == route, table.c.state == COMPLETE, ordinary())
        .order_by(table.c.created_at.desc(), task_route.c.task.desc())
        .limit(newest)
    )
    found = [TaskRoute(**row) for row in session.execute(query).mappings()]
    return sorted(found, key=lambda part: part.task)


def unmatched(session: Session) -> int:
    """Model calls in complete tasks that belong to no route: counted, shown, never priced."""
    counted = case((table.c.state == COMPLETE, table.c.unmatched_calls), else_=0)
    return int(session.execute(select(func.coalesce(func.sum(counted), 0))).scalar_one())
