"""Two statements that every table shares: a keyset page, and an insert-or-update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Column, RowMapping

    from gatekeeper.store.database import Session

__all__ = ["page", "upsert"]


def page(
    session: Session,
    table: Table,
    key: Column[Any],
    *,
    after: object | None,
    limit: int,
    where: Sequence[ColumnElement[bool]] = (),
    newest_first: bool = False,
) -> Sequence[RowMapping]:
    """Return up to ``limit`` rows beyond ``after`` in the order of a unique key.

    A page stays right while rows are added before it, which an offset does not.
    """
    query = select(table).where(*where).order_by(key.desc() if newest_first else key).limit(limit)
    if after is not None:
        query = query.where(key < after if newest_first else key > after)
    return session.execute(query).mappings().all()


def upsert(
    session: Session, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Insert a row, or update it where the key is taken."""
    insert = sqlite.insert if session.dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).values({**key, **values})
    session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=dict(values)))
