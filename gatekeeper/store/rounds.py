"""Watches, the counts that were sent to them, and their alarms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from gatekeeper.store import schema_rounds as schema
from gatekeeper.store.database import Session, clock
from gatekeeper.store.rows import page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping, Table

__all__ = [
    "ENGINE",
    "ROUNDS",
    "AlarmRecord",
    "RoundsRecord",
    "WatchRecord",
    "add_alarm",
    "add_rounds",
    "alarms",
    "count_watches",
    "drop_old_rounds",
    "drop_silent",
    "newest_alarms",
    "put_watch",
    "rounds_by_key",
    "watch",
    "watches",
]

ENGINE, ROUNDS = "engine", "rounds"
"""Kinds of a watch: looks at an engine's metrics, or rounds that somebody sends."""


@dataclass(frozen=True)
class WatchRecord:
    """What one source last showed of one artifact on one route."""

    id: int
    route: str
    artifact: str
    source: str
    kind: str
    interval_s: float | None
    outcome: str
    findings: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]
    looks: int
    last_key: str | None
    first_at: float
    last_at: float


@dataclass(frozen=True)
class RoundsRecord:
    """One post of rounds, as counts."""

    id: int
    idempotency_key: str
    route: str
    artifact: str
    source: str
    counts: Mapping[str, Any]
    received_at: float


@dataclass(frozen=True)
class AlarmRecord:
    """One alarm. It ends by evidence alone, so nothing here says that it has."""

    id: str
    route: str
    artifact: str
    reason: str
    explanation: str
    source: str
    actor: str
    raised_at: float


def watch(
    session: Session, *, route: str, artifact: str, source: str, kind: str
) -> WatchRecord | None:
    """One watch; None before its first look."""
    table = schema.watch
    query = select(table).where(
        table.c.route == route,
        table.c.artifact == artifact,
        table.c.source == source,
        table.c.kind == kind,
    )
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else WatchRecord(**row)


def put_watch(
    session: Session,
    before: WatchRecord | None,
    *,
    route: str,
    artifact: str,
    source: str,
    kind: str,
    interval_s: float | None,
    outcome: str,
    findings: Sequence[Mapping[str, Any]],
    state: Mapping[str, Any],
    key: str | None,
) -> WatchRecord:
    """Store a look. The caller holds the route, so that no other look comes in between."""
    table = schema.watch
    seen = {
        "interval_s": interval_s,
        "outcome": outcome,
        "findings": list(findings),
        "state": dict(state),
        "last_key": key,
        "last_at": clock(),
    }
    if before is None:
        named = {"route": route, "artifact": artifact, "source": source, "kind": kind}
        added = table.insert().values(**named, **seen, looks=1, first_at=clock()).returning(table)
        return WatchRecord(**session.execute(added).mappings().one())
    changed = (
        table.update()
        .where(table.c.id == before.id)
        .values(**seen, looks=before.looks + 1)
        .returning(table)
    )
    return WatchRecord(**session.execute(changed).mappings().one())


def count_watches(session: Session, route: str) -> int:
    """Watches of a route, of any artifact."""
    table = schema.watch
    query = select(func.count()).select_from(table).where(table.c.route == route)
    return int(session.execute(query).scalar_one())


def drop_silent(session: Session, route: str, *, silent_s: float) -> None:
    """Forget the watches of a route that have shown nothing for so long."""
    table = schema.watch
    old = table.c.last_at < clock() - silent_s
    session.execute(delete(table).where(table.c.route == route, old))


def _newest(
    session: Session, table: Table, *, route: str | None, after: int | str | None, limit: int
) -> Sequence[RowMapping]:
    where = [] if route is None else [table.c.route == route]
    return page(
        session, table, table.c.id, after=after, limit=limit, where=where, newest_first=True
    )


def watches(
    session: Session, *, route: str | None, after: int | None, limit: int
) -> list[WatchRecord]:
    """Page of watches, newest first."""
    rows = _newest(session, schema.watch, route=route, after=after, limit=limit)
    return [WatchRecord(**row) for row in rows]


def add_rounds(
    session: Session,
    *,
    key: str,
    route: str,
    artifact: str,
    source: str,
    counts: Mapping[str, Any],
) -> None:
    """Store one post; its key is what a repeated one is known by."""
    session.execute(
        schema.live_rounds.insert().values(
            idempotency_key=key,
            route=route,
            artifact=artifact,
            source=source,
            counts=dict(counts),
            received_at=clock(),
        )
    )


def rounds_by_key(session: Session, key: str) -> RoundsRecord | None:
    """One post by its key."""
    table = schema.live_rounds
    query = select(table).where(table.c.idempotency_key == key)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else RoundsRecord(**row)


def drop_old_rounds(session: Session, *, age_s: float, at_most: int) -> None:
    """Remove some posts older than ``age_s``; their watches hold the sums."""
    table = schema.live_rounds
    old = (
        select(table.c.id)
        .where(table.c.received_at < clock() - age_s)
        .order_by(table.c.received_at)
        .limit(at_most)
        .with_for_update(skip_locked=True)  # two that remove must not wait for each other
    )
    session.execute(delete(table).where(table.c.id.in_(old.scalar_subquery())))


def add_alarm(session: Session, record: AlarmRecord) -> AlarmRecord:
    """Store an alarm raised now."""
    values = {**asdict(record), "raised_at": clock()}
    statement = schema.alarm.insert().values(values).returning(schema.alarm)
    return AlarmRecord(**session.execute(statement).mappings().one())


def newest_alarms(session: Session, route: str, artifact: str) -> list[AlarmRecord]:
    """Newest alarm of each reason: evidence that ends it ends all before it."""
    table = schema.alarm
    newest = (
        select(table.c.reason, func.max(table.c.raised_at).label("at"))
        .where(table.c.route == route, table.c.artifact == artifact)
        .group_by(table.c.reason)
        .subquery()
    )
    query = (
        select(table)
        .join(newest, (table.c.reason == newest.c.reason) & (table.c.raised_at == newest.c.at))
        .where(table.c.route == route, table.c.artifact == artifact)
        .order_by(table.c.raised_at, table.c.id)
    )
    return [AlarmRecord(**row) for row in session.execute(query).mappings()]


def alarms(
    session: Session, *, route: str | None, after: str | None, limit: int
) -> list[AlarmRecord]:
    """Page of alarms, newest first."""
    rows = _newest(session, schema.alarm, route=route, after=after, limit=limit)
    return [AlarmRecord(**row) for row in rows]
