"""Bearer tokens and the audit trail."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from gatekeeper.store import schema
from gatekeeper.store.database import TELLS, Session, clock
from gatekeeper.store.records import AuditRecord, TokenRecord
from gatekeeper.store.rows import page

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["add_token", "audit", "audit_trail", "revoke_token", "token_by_hash", "tokens"]


def add_token(session: Session, record: TokenRecord, *, ttl_s: float | None) -> TokenRecord:
    """Store a token's hash; ``ttl_s=None`` never expires."""
    values: dict[str, Any] = {**asdict(record), "created_at": clock()}
    values["expires_at"] = None if ttl_s is None else clock() + ttl_s
    statement = schema.token.insert().values(values).returning(schema.token)
    return TokenRecord(**session.execute(statement).mappings().one())


def token_by_hash(session: Session, sha256: str) -> TokenRecord | None:
    """Token whose SHA-256 is this, if it is still good."""
    table = schema.token
    query = select(table).where(
        table.c.sha256 == sha256,
        table.c.revoked_at.is_(None),
        table.c.expires_at.is_(None) | (table.c.expires_at > clock()),
    )
    row = session.execute(query).mappings().one_or_none()
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


def audit(
    session: Session, *, actor: str, action: str, target: str, detail: Mapping[str, Any]
) -> None:
    """Write down a change in the transaction that makes it."""
    session.execute(
        schema.audit.insert().values(
            at=clock(), actor=actor, action=action, object=target, detail=dict(detail)
        )
    )


def audit_trail(session: Session, *, after: int | None, limit: int) -> list[AuditRecord]:
    """Page of changes, newest first."""
    rows = page(
        session, schema.audit, schema.audit.c.id, after=after, limit=limit, newest_first=True
    )
    return [AuditRecord(**row) for row in rows]
