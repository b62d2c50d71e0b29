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
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["SpanRow", "Stored", "insert", "of_task"]

Key = tuple[str, str]

_AT_A_TIME = 64


class SpanRow(NamedTuple):
    """A span to store: ``document`` is its JSON text, ``sha256`` that text's digest.

    A tuple, since hundreds are made for every request; the first two fields are its key, which
    makes a second delivery the same span.
    """

    trace_id: str
    span_id: str
    task: str
    sha256: str
    document: str


@dataclass(frozen=True)
class Stored:
    """Rows that are new, and rows whose id holds another content; all others were known."""

    new: tuple[SpanRow, ...]
    conflicts: tuple[SpanRow, ...]


def insert(session: Session, rows: Sequence[SpanRow]) -> Stored:
    """Store what is not there yet. Within ``rows`` the first of an id wins."""
    if not rows:
        return Stored((), ())
    first = {row[:2]: row for row in reversed(rows)}
    # In order of their keys: two requests with the same spans then wait, and never for each other.
    ordered = [first[key] for key in sorted(first)]
    add = _add_to_sqlite if session.dialect.name == "sqlite" else _add_to_postgresql
    known = add(session, ordered)
    if not known and len(ordered) == len(rows):
        return Stored(tuple(ordered), ())
    new = tuple([row for row in ordered if row[:2] not in known])
    held = {row[:2]: row.sha256 for row in new} | known
    return Stored(new, tuple([row for row in rows if held[row[:2]] != row.sha256]))


_NEWEST_IN_SQLITE = "SELECT coalesce(max(rowid), 0) FROM spans"
_INTO_SQLITE = (
    "INSERT INTO spans (trace_id, span_id, task, sha256, document, received_at) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_KNOWN_TO_SQLITE = text(
    "SELECT s.trace_id, s.span_id, s.sha256 FROM json_each(:keys) AS k CROSS JOIN spans AS s "
    "ON s.trace_id = json_extract(k.value, '$[0]') AND s.span_id = json_extract(k.value, '$[1]') "
    "WHERE s.rowid <= :newest"
)


def _add_to_sqlite(session: Session, rows: Sequence[SpanRow]) -> dict[Key, str]:
    """Store the new rows; return the digests of those that were there before.

    The transaction has had SQLite's write lock since it began: nobody can come in between, and
    every row that it adds has a larger rowid than all that were there.
    """
    received = now(session)
    newest = session.exec_driver_sql(_NEWEST_IN_SQLITE).scalar_one()
    # By the driver itself: SQLAlchemy's own way takes as long as all the rest of a request.
    added = session.exec_driver_sql(_INTO_SQLITE, [(*row, received) for row in rows]).rowcount
    if added == len(rows):
        return {}
    keys = json.dumps([row[:2] for row in rows])
    return _digests(session.execute(_KNOWN_TO_SQLITE, {"keys": keys, "newest": newest}))


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


def of_task(session: Session, task_id: str, *, limit: int) -> Iterator[str]:
    """Documents of up to ``limit`` spans of a task: its trace's, or those of all its traces.

    They come from the database a few at a time: together they may be larger than all else.
    """
    parts = select(task.c.id).where(task.c.part_of == task_id)
    query = (
        select(table.c.document)
        .where((table.c.task == task_id) | table.c.task.in_(parts))
        .order_by(table.c.trace_id, table.c.span_id)
        .limit(limit)
        .execution_options(yield_per=_AT_A_TIME)
    )
    return map(str, session.execute(query).scalars())
