"""Spans as received: stored once for each (trace id, span id), whoever sends them how often."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from gatekeeper.store.database import Session, now
from gatekeeper.store.schema_traces import span as table
from gatekeeper.store.schema_traces import task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["SpanRow", "Stored", "insert", "of_task"]

Key = tuple[str, str]


class SpanRow(NamedTuple):
    """A span to store: ``document`` is its JSON text, ``sha256`` that text's digest.

    A tuple, since hundreds are made for every request.
    """

    trace_id: str
    span_id: str
    task: str
    sha256: str
    document: str

    @property
    def key(self) -> Key:
        """What makes a second delivery the same span."""
        return (self.trace_id, self.span_id)


@dataclass(frozen=True)
class Stored:
    """Rows that are new, and rows whose id holds another content; all others were known."""

    new: tuple[SpanRow, ...]
    conflicts: tuple[SpanRow, ...]


def insert(session: Session, rows: Sequence[SpanRow]) -> Stored:
    """Store what is not there yet. Within ``rows`` the first of an id wins."""
    first: dict[Key, SpanRow] = {}
    for row in rows:
        first.setdefault(row.key, row)
    if not first:
        return Stored((), ())
    # In order of their keys: two requests with the same spans then wait, and never for each other.
    ordered = [first[key] for key in sorted(first)]
    add = _add_to_sqlite if session.dialect.name == "sqlite" else _add_to_postgresql
    known = add(session, ordered)
    new = tuple(row for row in ordered if row.key not in known)
    held = {row.key: row.sha256 for row in new} | known
    return Stored(new, tuple(row for row in rows if held[row.key] != row.sha256))


_KNOWN_TO_SQLITE = text(
    "SELECT s.trace_id, s.span_id, s.sha256 FROM json_each(:keys) AS k CROSS JOIN spans AS s "
    "ON s.trace_id = json_extract(k.value, '$[0]') AND s.span_id = json_extract(k.value, '$[1]')"
)
_INTO_SQLITE = (
    "INSERT INTO spans (trace_id, span_id, task, sha256, document, received_at) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)


def _add_to_sqlite(session: Session, rows: Sequence[SpanRow]) -> dict[Key, str]:
    """Store the new rows; return the digests of those that were there before.

    The transaction has had SQLite's write lock since it began: nobody can come in between.
    """
    keys = json.dumps([row.key for row in rows])
    known = _digests(session.execute(_KNOWN_TO_SQLITE, {"keys": keys}))
    received = now(session)
    new = [(*row, received) for row in rows if row.key not in known]
    if new:
        # By the driver itself: SQLAlchemy's own way takes as long as all the rest of a request.
        session.exec_driver_sql(_INTO_SQLITE, new)
    return known


# Emptied by every commit, and kept by the connection: a table a request would swell the catalogue.
_INCOMING = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS incoming_spans "
    "(trace_id text, span_id text, task text, sha256 text, document text) ON COMMIT DELETE ROWS"
)
_COPY = "COPY incoming_spans (trace_id, span_id, task, sha256, document) FROM STDIN"
_FROM_INCOMING = text(
    "INSERT INTO spans (trace_id, span_id, task, sha256, document, received_at) "
    "SELECT trace_id, span_id, task, sha256, document, CAST(:received AS double precision) "
    "FROM incoming_spans ORDER BY trace_id, span_id "
    "ON CONFLICT DO NOTHING RETURNING trace_id, span_id"
)
_HELD_BY_POSTGRESQL = text(
    "SELECT s.trace_id, s.span_id, s.sha256 FROM incoming_spans AS i "
    "JOIN spans AS s ON s.trace_id = i.trace_id AND s.span_id = i.span_id"
)


def _add_to_postgresql(session: Session, rows: Sequence[SpanRow]) -> dict[Key, str]:
    """Store the new rows; return the digests of those that were there, or came in meanwhile."""
    received = now(session)
    session.execute(_INCOMING)
    _copy(session, rows)
    new = {(a, b) for a, b in session.execute(_FROM_INCOMING, {"received": received})}
    if len(new) == len(rows):
        return {}
    held = _digests(session.execute(_HELD_BY_POSTGRESQL))
    return {key: sha256 for key, sha256 in held.items() if key not in new}


def _copy(session: Session, rows: Sequence[SpanRow]) -> None:
    """Send rows by COPY, which SQLAlchemy does not know: its errors are given its own form."""
    import psycopg  # noqa: PLC0415 - SQLite needs no driver of PostgreSQL's

    # Neither digests nor JSON nor printable ids hold tabs or line ends: one escape is enough.
    lines = ["\t".join(row) for row in rows]
    data = ("\n".join(lines) + "\n").replace("\\", "\\\\")
    cursor: Any = session.connection.cursor()
    try:
        with cursor.copy(_COPY) as copy:
            copy.write(data)
    except psycopg.Error as error:
        raise DBAPIError.instance(
            _COPY, None, error, psycopg.Error, dialect=session.dialect
        ) from error
    finally:
        cursor.close()


def _digests(found: Iterable[Any]) -> dict[Key, str]:
    return {(a, b): sha256 for a, b, sha256 in found}


def of_task(session: Session, task_id: str, *, limit: int) -> list[str]:
    """Documents of up to ``limit`` spans of a task: its trace's, or those of all its traces."""
    parts = select(task.c.id).where(task.c.part_of == task_id)
    query = (
        select(table.c.document)
        .where((table.c.task == task_id) | table.c.task.in_(parts))
        .order_by(table.c.trace_id, table.c.span_id)
        .limit(limit)
    )
    return [str(document) for document in session.execute(query).scalars()]
