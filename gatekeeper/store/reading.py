"""What pollers live on, in one statement: the version, what is newer than it, who may ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, and_, cast, func, select, true

from gatekeeper.errors import Unavailable
from gatekeeper.store import schema
from gatekeeper.store.database import Session, clock
from gatekeeper.store.records import DecisionRecord, Version

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, RowMapping

__all__ = ["Reading", "TokenMark", "read_decisions"]

TokenMark = tuple[int, int, int, float]
"""Differs once a token is created, removed, revoked, or given another end.

Counts alone would come round again: one removed and one created, one of those revoked meanwhile.
"""


@dataclass(frozen=True)
class Reading:
    """Decisions up to ``version`` at the database's time ``at``, seconds since 1970.

    ``decisions`` are in the order of their versions: those above the known version, or, where
    ``complete``, the newest one of every route.
    """

    at: float
    version: Version
    tokens: TokenMark
    decisions: tuple[DecisionRecord, ...]
    complete: bool


def read_decisions(session: Session, known: Version | None) -> Reading:
    """Read what has changed since ``known``; None asks for everything.

    One statement, because on PostgreSQL two of one transaction may see different commits: a
    version that is newer than its decisions would let "not modified" confirm what is outdated.
    Versions are handed out under the counter's lock, so none below the one read is still to come.

    Raises:
        Unavailable: the counter row is missing, so the database was never started.
    """
    found = _rows(session, known)
    if not found:
        raise Unavailable(
            "has no decision counter", field="database", remedy="run gatekeeper db upgrade"
        )
    version = Version(int(found[0]["at_epoch"]), int(found[0]["at_counter"]))
    if known is not None and (version.epoch != known.epoch or version.counter < known.counter):
        return read_decisions(session, None)  # restored from a backup: nothing that is known counts
    first = found[0]
    names = schema.decision.c.keys()
    return Reading(
        at=float(first["at"]),
        version=version,
        tokens=(
            int(first["tokens"]),
            int(first["revoked"]),
            int(first["ends"] or 0),
            float(first["newest"] or 0.0),
        ),
        decisions=tuple(
            DecisionRecord(**{name: row[name] for name in names})
            for row in found
            if row["id"] is not None
        ),
        complete=known is None,
    )


def _rows(session: Session, known: Version | None) -> list[RowMapping]:
    counter, decision, token = schema.counter, schema.decision, schema.token
    marks = select(
        func.count().label("tokens"),
        func.count(token.c.revoked_at).label("revoked"),
        # whole seconds: a sum of floats depends on the order of the rows
        func.sum(cast(token.c.expires_at, BigInteger)).label("ends"),
        func.max(token.c.created_at).label("newest"),
    ).subquery()
    wanted: ColumnElement[bool]
    if known is None:
        wanted = decision.c.id.in_(select(func.max(decision.c.id)).group_by(decision.c.route))
    else:
        wanted = and_(decision.c.epoch == counter.c.epoch, decision.c.counter > known.counter)
    query = (
        select(
            clock().label("at"),
            counter.c.epoch.label("at_epoch"),
            counter.c.counter.label("at_counter"),
            marks,
            decision,
        )
        .select_from(counter.join(marks, true()).outerjoin(decision, wanted))
        .order_by(decision.c.epoch, decision.c.counter)
    )
    return list(session.execute(query).mappings())
