"""Schedules and their fires. The unique (schedule, trigger, time) makes a slot fire once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, delete, func, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from gatekeeper.core.schedules import BEFORE_EXPIRY, CRON
from gatekeeper.store import schema
from gatekeeper.store.database import Session, clock
from gatekeeper.store.rows import page
from gatekeeper.store.schema_schedules import schedule as table
from gatekeeper.store.schema_schedules import schedule_fire as fire_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "FireRecord",
    "Governing",
    "ScheduleRecord",
    "Version",
    "add",
    "add_fire",
    "add_missed",
    "candidates",
    "delete_schedule",
    "every",
    "fires",
    "get",
    "governing",
    "in_flight",
    "is_recorded",
    "last_slot",
    "listing",
    "look_again",
    "remove_fires",
    "replace",
    "see_version",
    "settle_fire",
    "versions",
]


@dataclass(frozen=True)
class ScheduleRecord:
    """When a route is gated again; see ``core.schedules.Rule`` for what fires it."""

    id: str
    name: str
    route: str
    gates: list[str] | None
    cron: str | None
    zone: str | None
    jitter_s: float
    before_expiry_s: float | None
    on_new_version: bool
    priority: int
    revision: int
    created_at: float
    created_by: str
    updated_at: float
    paused_at: float | None
    since_at: float
    next_at: float | None
    seen_artifact: str | None


@dataclass(frozen=True)
class FireRecord:
    """What became of one time of a schedule: the runs queued, or a note why there are none."""

    id: int
    schedule: str
    trigger: str
    fire_at: float
    outcome: str
    runs: list[str]
    note: str | None
    recorded_at: float


@dataclass(frozen=True)
class Version:
    """Artifact that a route serves now, its policy, and when the route or its alias was last set."""

    artifact: str
    policy: str
    changed_at: float


@dataclass(frozen=True)
class Governing:
    """The result of a gate that counts for a route's present artifact and policy."""

    outcome: str
    expires_at: float


def add(session: Session, record: ScheduleRecord) -> ScheduleRecord:
    """Store a new schedule; a name that is taken is the database's error."""
    session.execute(table.insert().values(**asdict(record)))
    return record


def replace(session: Session, record: ScheduleRecord) -> ScheduleRecord:
    """Store a schedule that was read with its lock, one revision on."""
    values = {**asdict(record), "revision": record.revision + 1}
    statement = update(table).where(table.c.id == record.id).values(**values).returning(table)
    return ScheduleRecord(**session.execute(statement).mappings().one())


def get(session: Session, name: str, *, lock: bool = False) -> ScheduleRecord | None:
    """Schedule by name; ``lock`` holds it to the end of the transaction."""
    query = select(table).where(table.c.name == name)
    if lock:
        # As for routes: fires refer to the schedule's key, and must not wait for this.
        query = query.with_for_update(key_share=True)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else ScheduleRecord(**row)


def listing(
    session: Session, *, after: str | None, limit: int, route: str | None = None
) -> list[ScheduleRecord]:
    """Page of schedules by name."""
    where = [] if route is None else [table.c.route == route]
    rows = page(session, table, table.c.name, after=after, limit=limit, where=where)
    return [ScheduleRecord(**row) for row in rows]


def every(session: Session) -> list[ScheduleRecord]:
    """Every schedule, by name in the same order on every database."""
    rows = session.execute(select(table)).mappings()
    return sorted((ScheduleRecord(**row) for row in rows), key=lambda one: one.name)


def delete_schedule(session: Session, schedule_id: str) -> int:
    """Remove a schedule and its fires; return how many those were. The runs stay."""
    gone = session.execute(delete(fire_table).where(fire_table.c.schedule == schedule_id))
    session.execute(delete(table).where(table.c.id == schedule_id))
    return int(gone.rowcount)


def candidates(session: Session, *, at: float) -> list[ScheduleRecord]:
    """Schedules that are not paused and may have something to do at ``at``."""
    watching = or_(table.c.before_expiry_s.is_not(None), table.c.on_new_version)
    query = (
        select(table)
        .where(table.c.paused_at.is_(None), or_(table.c.next_at <= at, watching))
        .order_by(table.c.id)
    )
    return [ScheduleRecord(**row) for row in session.execute(query).mappings()]


def last_slot(session: Session, schedule_id: str) -> float | None:
    """Newest cron slot that is recorded."""
    query = select(func.max(fire_table.c.fire_at)).where(
        fire_table.c.schedule == schedule_id, fire_table.c.trigger == CRON
    )
    at = session.execute(query).scalar_one()
    return None if at is None else float(at)


def is_recorded(session: Session, schedule_id: str, trigger: str, fire_at: float) -> bool:
    """Whether this time of the schedule was dealt with."""
    query = select(fire_table.c.id).where(
        fire_table.c.schedule == schedule_id,
        fire_table.c.trigger == trigger,
        fire_table.c.fire_at == fire_at,
    )
    return session.execute(query).first() is not None


def add_fire(
    session: Session,
    schedule_id: str,
    trigger: str,
    fire_at: float,
    *,
    outcome: str,
    note: str | None = None,
) -> int | None:
    """Take a time of a schedule; None where any replica has taken it before."""
    statement = (
        _insert(session)
        .values(**_fire(schedule_id, trigger, fire_at, outcome, note), recorded_at=clock())
        .on_conflict_do_nothing()
        .returning(fire_table.c.id)
    )
    taken = session.execute(statement).scalar_one_or_none()
    return None if taken is None else int(taken)


def add_missed(
    session: Session, schedule_id: str, times: Sequence[float], *, outcome: str, note: str | None
) -> None:
    """Record cron slots that nobody will serve; those recorded before stay as they are."""
    if times:
        statement = _insert(session).values(recorded_at=clock()).on_conflict_do_nothing()
        session.execute(statement, [_fire(schedule_id, CRON, at, outcome, note) for at in times])


def _insert(session: Session) -> sqlite.Insert | postgresql.Insert:
    insert = sqlite.insert if session.dialect.name == "sqlite" else postgresql.insert
    return insert(fire_table)


def _fire(
    schedule_id: str, trigger: str, fire_at: float, outcome: str, note: str | None
) -> dict[str, Any]:
    return {
        "schedule": schedule_id,
        "trigger": trigger,
        "fire_at": fire_at,
        "outcome": outcome,
        "runs": [],
        "note": note,
    }


def settle_fire(
    session: Session, fire_id: int, *, outcome: str, runs: Sequence[str], note: str | None
) -> FireRecord:
    """Say what came of a time that this transaction has taken."""
    statement = (
        update(fire_table)
        .where(fire_table.c.id == fire_id)
        .values(outcome=outcome, runs=list(runs), note=note)
        .returning(fire_table)
    )
    return FireRecord(**session.execute(statement).mappings().one())


def look_again(session: Session, record: ScheduleRecord, next_at: float | None) -> None:
    """Note when a cron is due next, unless the schedule was changed since it was read."""
    session.execute(
        update(table)
        .where(table.c.id == record.id, table.c.revision == record.revision)
        .values(next_at=next_at)
    )


def see_version(session: Session, record: ScheduleRecord, artifact: str) -> bool:
    """Note the artifact that a route now serves; False where another replica has done so."""
    statement = (
        update(table)
        .where(table.c.id == record.id, table.c.seen_artifact == record.seen_artifact)
        .values(seen_artifact=artifact)
        .returning(table.c.id)
    )
    return session.execute(statement).first() is not None


def fires(session: Session, schedule_id: str, *, after: int | None, limit: int) -> list[FireRecord]:
    """Page of a schedule's history, newest record first."""
    where = [fire_table.c.schedule == schedule_id]
    rows = page(
        session,
        fire_table,
        fire_table.c.id,
        after=after,
        limit=limit,
        where=where,
        newest_first=True,
    )
    return [FireRecord(**row) for row in rows]


def remove_fires(
    session: Session, *, before: float, kept: Sequence[tuple[str, float]], limit: int
) -> int:
    """Remove up to ``limit`` fires recorded before a time; return how many.

    The newest of each schedule and trigger stays: the next is counted from it. So do ``kept``,
    (schedule, time) of evidence that still counts: without its fire it would be renewed again.
    """
    later = fire_table.alias("later")
    newest = (
        select(func.max(later.c.fire_at))
        .where(
            later.c.schedule == fire_table.c.schedule,
            later.c.trigger == fire_table.c.trigger,
        )
        .scalar_subquery()
    )
    old = [fire_table.c.recorded_at < before, fire_table.c.fire_at < newest]
    if kept:
        one = tuple_(fire_table.c.schedule, fire_table.c.fire_at)
        old.append((fire_table.c.trigger != BEFORE_EXPIRY) | one.not_in(kept))
    query = select(fire_table.c.id).where(*old).order_by(fire_table.c.id).limit(limit)
    chosen = list(session.execute(query).scalars())
    gone = session.execute(delete(fire_table).where(fire_table.c.id.in_(chosen)))
    return int(gone.rowcount)


def versions(session: Session, routes: Sequence[str]) -> dict[str, Version]:
    """What each of these routes serves now; a route that points nowhere is left out."""
    route, alias, artifact = schema.route, schema.alias, schema.artifact
    moved = func.coalesce(alias.c.moved_at, route.c.updated_at)
    query = (
        select(
            route.c.name,
            artifact.c.digest,
            schema.policy_name.c.digest,
            case((moved > route.c.updated_at, moved), else_=route.c.updated_at),
        )
        .join_from(route, alias, alias.c.alias == route.c.artifact, isouter=True)
        .join(artifact, artifact.c.digest == func.coalesce(alias.c.digest, route.c.artifact))
        .join(schema.policy_name, schema.policy_name.c.name == route.c.policy)
        .where(route.c.name.in_(sorted(set(routes))))
    )
    return {
        str(name): Version(str(digest), str(policy), float(changed))
        for name, digest, policy, changed in session.execute(query)
    }


def governing(session: Session, found: Mapping[str, Version]) -> dict[str, dict[str, Governing]]:
    """By route and gate, the result that counts, by the rule of ``results.governing_results``."""
    result = schema.gate_result
    present = [(route, one.artifact, one.policy) for route, one in sorted(found.items())]
    query = (
        select(result.c.route, result.c.gate, result.c.outcome, result.c.expires_at)
        .where(
            tuple_(result.c.route, result.c.artifact, result.c.policy).in_(present),
            result.c.outcome != "CANCELLED",
        )
        .order_by(
            case((result.c.outcome == "FAIL", 0), else_=1),
            result.c.finished_at.desc(),
            result.c.run.desc(),
        )
    )
    by_route: dict[str, dict[str, Governing]] = {}
    for route, gate, outcome, expires_at in session.execute(query):
        by_route.setdefault(route, {}).setdefault(gate, Governing(outcome, float(expires_at)))
    return by_route


def in_flight(session: Session, route: str, version: Version) -> dict[str, str]:
    """Gates of which a run waits or runs for the route's present artifact and policy: its id."""
    run = schema.run
    query = (
        select(run.c.gate, run.c.id)
        .where(
            run.c.route == route,
            run.c.artifact == version.artifact,
            run.c.policy == version.policy,
            run.c.state.in_(("pending", "running")),
            run.c.cancel_requested.is_(False),
        )
        .order_by(run.c.id)
    )
    return {str(gate): str(run_id) for gate, run_id in session.execute(query)}
