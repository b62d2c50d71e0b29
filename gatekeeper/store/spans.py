"""Spans as received: stored once for each (trace id, span id), whoever sends them how often."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import select, text, tuple_
from sqlalchemy.dialects import sqlite

from gatekeeper.store.database import Session, now
from gatekeeper.store.schema_traces import span as table
from gatekeeper.store.schema_traces import task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["SpanRow", "Stored", "insert", "of_task"]

_KEY = (table.c.trace_id, table.c.span_id)

_ROWS = 400
"""Keys in one statement; SQLite binds no more than 32,766 values at once."""


@dataclass(frozen=True)
class SpanRow:
    """A span to store: ``document`` is its JSON text, ``sha256`` that text's digest."""

    trace_id: str
    span_id: str
    task: str
    sha256: str
    document: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes a second delivery the same span."""
        return (self.trace_id, self.span_id)


@dataclass(frozen=True)
class Stored:
    """Rows that are new, and rows whose id holds another content; all others were known."""

    new: tuple[SpanRow, ...]
    conflicts: tuple[SpanRow, ...]


def insert(session: Session, rows: Sequence[SpanRow]) -> Stored:
    """Store what is not there yet. Within ``rows`` the first of an id wins."""
    first: dict[tuple[str, str], SpanRow] = {}
    for row in rows:
        first.setdefault(row.key, row)
    add = _add_to_sqlite if session.dialect.name == "sqlite" else _add_to_postgresql
    received = now(session)
    new: set[tuple[str, str]] = set()
    # In order of their keys: two requests with the same spans then wait, and never for each other.
    for chunk in _chunks(first[key] for key in sorted(first)):
        new.update(add(session, chunk, received))
    held = {key: row.sha256 for key, row in first.items() if key in new}
    held |= _digests(session, (row for key, row in first.items() if key not in new))
    conflicts = tuple(row for row in rows if held[row.key] != row.sha256)
    return Stored(tuple(first[key] for key in sorted(new)), conflicts)


def _add_to_sqlite(
    session: Session, rows: Sequence[SpanRow], received: float
) -> list[tuple[str, str]]:
    values = [{**vars(row), "received_at": received} for row in rows]
    added = sqlite.insert(table).on_conflict_do_nothing().returning(*_KEY)
    return [(a, b) for a, b in session.execute(added, values)]


_FROM_JSON = text(
    "INSERT INTO spans (trace_id, span_id, task, sha256, document, received_at) "
    "SELECT trace_id, span_id, task, sha256, document, CAST(:received AS double precision) "
    "FROM json_to_recordset(CAST(:rows AS json)) AS "
    "r(trace_id text, span_id text, task text, sha256 text, document text) "
    "ON CONFLICT DO NOTHING RETURNING trace_id, span_id"
)


def _add_to_postgresql(
    session: Session, rows: Sequence[SpanRow], received: float
) -> list[tuple[str, str]]:
    """One parameter of JSON: the driver takes far longer to write thousands of them, or arrays."""
    values = {"rows": json.dumps([vars(row) for row in rows]), "received": received}
    return [(a, b) for a, b in session.execute(_FROM_JSON, values)]


def _digests(session: Session, rows: Iterable[SpanRow]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for chunk in _chunks(rows):
        query = select(*_KEY, table.c.sha256).where(tuple_(*_KEY).in_([row.key for row in chunk]))
        found |= {(a, b): sha256 for a, b, sha256 in session.execute(query)}
    return found


def _chunks(rows: Iterable[SpanRow]) -> Iterator[list[SpanRow]]:
    source = iter(rows)
    while chunk := list(islice(source, _ROWS)):
        yield chunk


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
