"""Decision history, the version counter and overrides."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from gatekeeper.errors import Unavailable
from gatekeeper.store import schema
from gatekeeper.store.database import TELLS, Session, clock, now
from gatekeeper.store.records import DecisionRecord, OverrideRecord, Version
from gatekeeper.store.rows import page, upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "active_override",
    "add_decision",
    "add_override",
    "advance",
    "clear_overrides",
    "decisions",
    "latest_decision",
    "latest_decisions",
    "new_epoch",
    "override_by_key",
    "overrides",
    "overrides_of",
    "version",
]


def version(session: Session) -> Version | None:
    """Version of the newest decision; None before the first start."""
    table = schema.counter
    row = session.execute(select(table.c.epoch, table.c.counter)).one_or_none()
    return None if row is None else Version(int(row.epoch), int(row.counter))


def advance(session: Session) -> Version:
    """Take the next version and hold the counter row until the transaction ends.

    A database sequence would hand out numbers that become visible in another order.

    Raises:
        Unavailable: the counter row is missing, so the database was never started.
    """
    table = schema.counter
    statement = table.update().values(counter=table.c.counter + 1).returning(table)
    row = session.execute(statement).mappings().one_or_none()
    if row is None:
        raise Unavailable(
            "has no decision counter", field="database", remedy="run gatekeeper db upgrade"
        )
    session.info[TELLS] = True
    return Version(int(row["epoch"]), int(row["counter"]))


def new_epoch(session: Session) -> Version:
    """Begin an epoch above every earlier one: at the first start, and after a restore."""
    before = version(session)
    at = int(now(session))
    epoch = at if before is None else max(at, before.epoch + 1)
    upsert(session, schema.counter, {"id": 1}, {"epoch": epoch, "counter": 0})
    session.info[TELLS] = True
    return Version(epoch, 0)


def add_decision(
    session: Session,
    *,
    route: str,
    at: Version,
    artifact: str,
    policy: str,
    document: Mapping[str, Any],
    state: Mapping[str, Any],
    decided_at: float,
    evidence_expires_at: float | None,
) -> DecisionRecord:
    """Append to a route's history. ``document`` is the lease, ``state`` what hysteresis needs."""
    statement = (
        schema.decision.insert()
        .values(
            route=route,
            epoch=at.epoch,
            counter=at.counter,
            action=document["action"],
            reason=document["reason"],
            artifact=artifact,
            policy=policy,
            document=dict(document),
            state=dict(state),
            decided_at=decided_at,
            evidence_expires_at=evidence_expires_at,
        )
        .returning(schema.decision)
    )
    return DecisionRecord(**session.execute(statement).mappings().one())


def latest_decision(session: Session, route: str) -> DecisionRecord | None:
    """Newest decision of a route."""
    found = decisions(session, route=route, after=None, limit=1)
    return found[0] if found else None


def latest_decisions(session: Session) -> list[DecisionRecord]:
    """Newest decision of every route, by route."""
    table = schema.decision
    newest = select(func.max(table.c.id)).group_by(table.c.route)
    rows = session.execute(select(table).where(table.c.id.in_(newest)).order_by(table.c.route))
    return [DecisionRecord(**row) for row in rows.mappings()]


def decisions(
    session: Session, *, route: str | None, after: int | None, limit: int
) -> list[DecisionRecord]:
    """Page of the history, newest first."""
    where = [] if route is None else [schema.decision.c.route == route]
    rows = page(
        session,
        schema.decision,
        schema.decision.c.id,
        after=after,
        limit=limit,
        where=where,
        newest_first=True,
    )
    return [DecisionRecord(**row) for row in rows]


def add_override(session: Session, record: OverrideRecord, *, ttl_s: float) -> OverrideRecord:
    """Store an override that lapses ``ttl_s`` from now."""
    values = {**asdict(record), "created_at": clock(), "expires_at": clock() + ttl_s}
    statement = schema.override.insert().values(values).returning(schema.override)
    return OverrideRecord(**session.execute(statement).mappings().one())


def override_by_key(session: Session, key: str) -> OverrideRecord | None:
    """Override by idempotency key."""
    table = schema.override
    query = select(table).where(table.c.idempotency_key == key)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else OverrideRecord(**row)


def active_override(session: Session, route: str, *, at: float) -> OverrideRecord | None:
    """Return the newest override of a route that is neither cleared nor expired."""
    table = schema.override
    query = (
        select(table)
        .where(table.c.route == route, table.c.cleared_at.is_(None), table.c.expires_at > at)
        .order_by(table.c.created_at.desc(), table.c.id.desc())
        .limit(1)
    )
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else OverrideRecord(**row)


def clear_overrides(session: Session, route: str, *, actor: str) -> list[OverrideRecord]:
    """End the active overrides of a route."""
    table = schema.override
    statement = (
        table.update()
        .where(table.c.route == route, table.c.cleared_at.is_(None), table.c.expires_at > clock())
        .values(cleared_at=clock(), cleared_by=actor)
        .returning(table)
    )
    return [OverrideRecord(**row) for row in session.execute(statement).mappings()]


def overrides(session: Session, *, after: str | None, limit: int) -> list[OverrideRecord]:
    """Page of overrides, newest first."""
    rows = page(
        session,
        schema.override,
        schema.override.c.id,
        after=after,
        limit=limit,
        newest_first=True,
    )
    return [OverrideRecord(**row) for row in rows]


def overrides_of(session: Session, route: str, *, limit: int) -> list[OverrideRecord]:
    """Newest overrides of one route, ended ones included."""
    table = schema.override
    query = (
        select(table)
        .where(table.c.route == route)
        .order_by(table.c.created_at.desc(), table.c.id.desc())
        .limit(limit)
    )
    return [OverrideRecord(**row) for row in session.execute(query).mappings()]
