"""Spans that are old enough go; what was computed from them stays, and is final."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select, update

from gatekeeper.store.database import Session, clock
from gatekeeper.store.schema_traces import span
from gatekeeper.store.schema_traces import task as table
from gatekeeper.store.tasks import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement, FromClause

__all__ = ["removable", "remove_spans", "without_spans"]

_NAMES = 500


def without_spans(session: Session, task_ids: Collection[str]) -> set[str]:
    """Those of the tasks whose spans were removed: they take no further ones."""
    found: set[str] = set()
    names = sorted(task_ids)
    for at in range(0, len(names), _NAMES):
        chosen = table.c.id.in_(names[at : at + _NAMES])
        query = select(table.c.id).where(chosen, table.c.spans_removed_at.is_not(None))
        found.update(session.execute(query).scalars())
    return found


def removable(session: Session, *, before: float, limit: int) -> list[str]:
    """Tasks whose spans may go, oldest first: complete, computed, none of their spans newer.

    A conversation goes as a whole: its last trace decides.
    """
    part = table.alias("part")
    unfinished = select(part.c.id).where(part.c.part_of == table.c.id, ~_settled(part, before))
    query = (
        select(table.c.id)
        .where(
            _settled(table, before),
            table.c.part_of.is_(None),
            table.c.spans_removed_at.is_(None),
            ~unfinished.exists(),
        )
        .order_by(table.c.touched_at, table.c.id)
        .limit(limit)
    )
    return list(session.execute(query).scalars())


def remove_spans(session: Session, task_ids: Sequence[str], *, before: float) -> int:
    """Remove the spans of tasks, and of the traces that a conversation has; return how many.

    A task that has changed since it was found keeps them.
    """
    chosen = table.c.id.in_(task_ids) | table.c.part_of.in_(task_ids)
    marked = session.execute(
        update(table)
        .where(chosen, _settled(table, before), table.c.spans_removed_at.is_(None))
        # No rules made these figures any more: other rules would find nothing to compute.
        .values(spans_removed_at=clock(), routing=None)
        .returning(table.c.id)
    )
    names = list(marked.scalars())
    return int(session.execute(delete(span).where(span.c.task.in_(names))).rowcount)


def _settled(of: FromClause, before: float) -> ColumnElement[bool]:
    done = (of.c.state == COMPLETE) & (of.c.computed == of.c.generation)
    return done & (of.c.touched_at < before)
