"""Who acts: bearer tokens, roles, and what each role may do."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.errors import Forbidden, InputError, NotFound, Unauthorized
from gatekeeper.store import access
from gatekeeper.store.database import Database, Session, now
from gatekeeper.store.records import AuditRecord, TokenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_TTL_S",
    "ROLES",
    "SYSTEM",
    "Actor",
    "audit_trail",
    "authenticate",
    "create_token",
    "list_tokens",
    "new_id",
    "remedy",
    "require",
    "revoke_token",
]

ROLES: Mapping[str, frozenset[str]] = {
    "reader": frozenset({"reader"}),
    "ingester": frozenset({"ingester"}),
    "worker": frozenset({"worker", "reader"}),
    "operator": frozenset({"operator", "reader"}),
    "admin": frozenset({"admin", "operator", "worker", "ingester", "reader"}),
}
"""Role to what it may do. An ingester only sends: exporters' tokens lie in many config files."""

MAX_TTL_S = 1e9
"""Longest lifetime of a token that has one: later times are no dates."""

_TOKEN_BYTES = 32
_PREFIX = "gk_"


@dataclass(frozen=True)
class Actor:
    """Whoever makes a request, as the audit trail names them."""

    name: str
    role: str


SYSTEM = Actor("system", "admin")
"""gatekeeper itself: seeding, the reaper, and commands run on the database's own machine."""


def new_id(session: Session) -> str:
    """Return an id that sorts by time: twelve hex digits of milliseconds, then 48 random bits."""
    return f"{int(now(session) * 1000):012x}{secrets.token_hex(6)}"


def require(actor: Actor, permission: str) -> None:
    """Check a permission.

    Raises:
        Forbidden: the role does not include it.
    """
    if permission not in ROLES[actor.role]:
        enough = ", ".join(role for role, may in ROLES.items() if permission in may)
        raise Forbidden(
            "may not do this",
            field="role",
            value=actor.role,
            remedy=f"use a token of role {enough}: {_command(permission)}",
        )


def remedy(permission: str) -> str:
    """How to get a token for what needs ``permission``: each is the name of the least role, too."""
    return f"create one on the server's machine: {_command(permission)}"


def _command(role: str) -> str:
    return f"gatekeeper token create --role {role} --home HOME"


def _sha256(secret: str) -> str:
    # A plain hash suffices: 256 random bits cannot be guessed, however fast the hash is.
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    db: Database, actor: Actor, *, name: str, role: str, ttl_s: float | None
) -> tuple[TokenRecord, str]:
    """Create a token; the second part is the secret, which is shown this once.

    Raises:
        InputError: no such role, no name, or a lifetime out of range.
    """
    if role not in ROLES:
        raise InputError(
            "is not a role", field="role", value=role, remedy=f"use one of {', '.join(ROLES)}"
        )
    if not name.strip() or not name.isprintable():
        raise InputError(
            "is not a name", field="name", value=name, remedy="say in print who will use the token"
        )
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
        raise InputError(
            "is out of range",
            field="ttl_s",
            value=ttl_s,
            remedy=f"use seconds above 0 and up to {MAX_TTL_S:g}, or none",
        )
    secret = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with db.write() as session:
        record = TokenRecord(new_id(session), name, role, _sha256(secret), 0.0, None, None)
        stored = access.add_token(session, record, ttl_s=ttl_s)
        access.audit(
            session,
            actor=actor.name,
            action="token.create",
            target=stored.id,
            detail={"name": name, "role": role, "ttl_s": ttl_s},
        )
    return stored, secret


def authenticate(db: Database, secret: str, *, permission: str = "admin") -> Actor:
    """Whose token this is; ``permission`` is what a new one should have where it is none.

    Raises:
        Unauthorized: it is unknown, expired or revoked.
    """
    with db.read() as session:
        record = access.token_by_hash(session, _sha256(secret))
    if record is None:
        raise Unauthorized(
            "is unknown, expired or revoked",
            field="Authorization",
            remedy=remedy(permission),
        )
    return Actor(f"{record.name} ({record.id})", record.role)


def list_tokens(db: Database, *, after: str | None, limit: int) -> list[TokenRecord]:
    """Page of tokens, revoked ones included."""
    with db.read() as session:
        return access.tokens(session, after=after, limit=limit)


def audit_trail(db: Database, *, after: int | None, limit: int) -> list[AuditRecord]:
    """Page of changes, newest first."""
    with db.read() as session:
        return access.audit_trail(session, after=after, limit=limit)


def revoke_token(db: Database, actor: Actor, token_id: str) -> TokenRecord:
    """End a token at once.

    Raises:
        NotFound: no token has this id.
    """
    with db.write() as session:
        record = access.revoke_token(session, token_id)
        if record is None:
            raise NotFound(
                "is not a token's id",
                field="id",
                value=token_id,
                remedy="see gatekeeper token list",
            )
        access.audit(session, actor=actor.name, action="token.revoke", target=token_id, detail={})
    return record
