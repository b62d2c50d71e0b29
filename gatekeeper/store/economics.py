"""Economics: versions by digest, and the current one of each name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from gatekeeper.store import schema_value
from gatekeeper.store.database import Session, clock
from gatekeeper.store.rows import upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EconomicsRecord", "add", "all_current", "current", "drop", "version"]


@dataclass(frozen=True)
class EconomicsRecord:
    """One version of an economics document; its name points at the newest applied one."""

    digest: str
    name: str
    document: Mapping[str, Any]
    applied_at: float
    applied_by: str


def add(session: Session, record: EconomicsRecord) -> EconomicsRecord | None:
    """Store a version and make it the name's current one; return the version before."""
    before = current(session, record.name)
    if version(session, record.digest) is None:
        session.execute(
            schema_value.economics.insert().values(
                digest=record.digest,
                name=record.name,
                document=record.document,
                applied_at=clock(),
                applied_by=record.applied_by,
            )
        )
    upsert(session, schema_value.economics_name, {"name": record.name}, {"digest": record.digest})
    return before


def drop(session: Session, name: str) -> None:
    """Let no version of a name be current any more; the versions stay."""
    table = schema_value.economics_name
    session.execute(delete(table).where(table.c.name == name))


def version(session: Session, digest: str) -> EconomicsRecord | None:
    """Version by digest."""
    table = schema_value.economics
    row = session.execute(select(table).where(table.c.digest == digest)).mappings().one_or_none()
    return None if row is None else EconomicsRecord(**row)


def current(session: Session, name: str) -> EconomicsRecord | None:
    """Newest applied version of a name."""
    table, names = schema_value.economics, schema_value.economics_name
    query = select(table).join(names, names.c.digest == table.c.digest).where(names.c.name == name)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else EconomicsRecord(**row)


def all_current(session: Session) -> list[EconomicsRecord]:
    """Newest applied version of every name, by name."""
    table, names = schema_value.economics, schema_value.economics_name
    rows = session.execute(
        select(table).join(names, names.c.digest == table.c.digest).order_by(names.c.name)
    )
    return [EconomicsRecord(**row) for row in rows.mappings()]
