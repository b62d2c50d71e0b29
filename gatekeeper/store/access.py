"""Bearer tokens and the audit trail."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, delete, func, select

from gatekeeper.core.documents import plain
from gatekeeper.store import schema
from gatekeeper.store.database import TELLS, Session, clock
from gatekeeper.store.records import AuditRecord, TokenRecord
from gatekeeper.store.rows import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from gatekeeper.store.records import Actor

__all__ = [
    "add_token",
    "audit",
    "audit_trail",
    "end_token",
    "good_token",
    "remove_ended_tokens",
    "revoke_token",
    "successor",
    "token_by_hash",
    "tokens",
]


def add_token(session: Session, record: TokenRecord, *, ttl_s: float | None) -> TokenRecord:
    """Store a token's hash; ``ttl_s=None`` never expires."""
    values: dict[str, Any] = {**asdict(record), "created_at": clock()}
    values["expires_at"] = None if ttl_s is None else clock() + ttl_s
    statement = schema.token.insert().values(values).returning(schema.token)
    return TokenRecord(**session.execute(statement).mappings().one())


def token_by_hash(session: Session, sha256: str) -> TokenRecord | None:
    """Token whose SHA-256 is this, if it is still good."""
    table = schema.token
    query = select(table).where(table.c.sha256 == sha256, _good())
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else TokenRecord(**row)


def good_token(session: Session, token_id: str) -> TokenRecord | None:
    """Token by id, if it is still good; held to the end of the transaction."""
    table = schema.token
    query = select(table).where(table.c.id == token_id, _good()).with_for_update()
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else TokenRecord(**row)


def _good() -> ColumnElement[bool]:
    table = schema.token
    lasting = table.c.expires_at.is_(None) | (table.c.expires_at > clock())
    return table.c.revoked_at.is_(None) & lasting


def successor(session: Session, token_id: str) -> TokenRecord | None:
    """Token that took another's place."""
    table = schema.token
    row = (
        session.execute(select(table).where(table.c.replaces == token_id)).mappings().one_or_none()
    )
    return None if row is None else TokenRecord(**row)


def tokens(session: Session, *, after: str | None, limit: int) -> list[TokenRecord]:
    """Page of tokens by id."""
    rows = page(session, schema.token, schema.token.c.id, after=after, limit=limit)
    return [TokenRecord(**row) for row in rows]


def revoke_token(session: Session, token_id: str) -> TokenRecord | None:
    """End a token; one that was revoked before stays as it was."""
    table = schema.token
    statement = (
        table.update()
        .where(table.c.id == token_id, table.c.revoked_at.is_(None))
        .values(revoked_at=clock())
    )
    session.execute(statement)
    session.info[TELLS] = True
    row = session.execute(select(table).where(table.c.id == token_id)).mappings().one_or_none()
    return None if row is None else TokenRecord(**row)


def end_token(session: Session, token_id: str, *, in_s: float) -> TokenRecord:
    """Let a token last ``in_s`` seconds more, or less where it ends before that anyway."""
    table = schema.token
    at = clock() + in_s
    sooner = table.c.expires_at.is_(None) | (table.c.expires_at > at)
    statement = (
        table.update()
        .where(table.c.id == token_id)
        .values(expires_at=case((sooner, at), else_=table.c.expires_at))
        .returning(table)
    )
    session.info[TELLS] = True
    return TokenRecord(**session.execute(statement).mappings().one())


def remove_ended_tokens(session: Session, *, age_s: float) -> list[str]:
    """Remove tokens that ended more than ``age_s`` seconds ago; return their ids."""
    table = schema.token
    ended = func.coalesce(table.c.revoked_at, table.c.expires_at)
    statement = delete(table).where(ended < clock() - age_s).returning(table.c.id)
    return sorted(session.execute(statement).scalars())


def audit(
    session: Session, *, actor: Actor, action: str, target: str, detail: Mapping[str, Any]
) -> None:
    """Write down a change in the transaction that makes it, with who the actor is now."""
    values = {
        "at": clock(),
        "actor": actor.name,
        "action": action,
        "object": target,
        "detail": dict(detail),
        "actor_record": plain(actor),
    }
    session.execute(schema.audit.insert().values(values))


def audit_trail(
    session: Session,
    *,
    after: int | None,
    limit: int,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
) -> list[AuditRecord]:
    """Page of changes, newest first; ``actor`` is a name as recorded, or a token's id.

    Pages go by the unique id: several changes often have one time, which as a key would skip some.
    """
    table = schema.audit
    where = []
    if actor is not None:
        where.append(
            (table.c.actor == actor) | (table.c.actor_record["token"].as_string() == actor)
        )
    if action is not None:
        where.append(table.c.action == action)
    if target is not None:
        where.append(table.c.object == target)
    rows = page(
        session, table, table.c.id, after=after, limit=limit, where=where, newest_first=True
    )
    return [AuditRecord(**row) for row in rows]
