"""Who acts: bearer tokens, roles, and what each role may do."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from gatekeeper.core.names import check_name
from gatekeeper.errors import Conflict, Forbidden, InputError, NotFound, Unauthorized
from gatekeeper.store import access
from gatekeeper.store.database import Database, Session, now
from gatekeeper.store.records import Actor, AuditRecord, TokenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    "remove_ended_tokens",
    "require",
    "revoke_token",
    "rotate_token",
    "scope_of",
    "sees",
    "within",
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

SCOPED_ROLES = ("reader", "ingester", "operator")
"""Roles that may be for some routes alone: a worker takes what comes, an admin could free itself."""

MAX_OVERLAP_S = 30 * 86_400.0
"""Longest time for which a token and its successor are both good."""

MAX_RATE_PER_S = 1e6
MAX_ROUTES = 1_000

_SHOWN = 5
_TOKEN_BYTES = 32
_PREFIX = "gk_"


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


def scope_of(actor: Actor) -> str:
    """Say which routes an actor's token is for."""
    routes = actor.routes or ()
    more = f" and {len(routes) - _SHOWN} more" if len(routes) > _SHOWN else ""
    return "every route" if actor.routes is None else ", ".join(routes[:_SHOWN]) + more


def sees(actor: Actor, route: str) -> bool:
    """Whether an actor's token is for a route."""
    return actor.routes is None or route in actor.routes


def within(actor: Actor, route: str) -> None:
    """Check a token's scope.

    Raises:
        Forbidden: the token is for other routes.
    """
    if not sees(actor, route):
        raise Forbidden(
            "is outside the token's scope",
            field="route",
            value=route,
            remedy=f"use a token for this route; this one is for {scope_of(actor)}",
        )


def _sha256(secret: str) -> str:
    # A plain hash suffices: 256 random bits cannot be guessed, however fast the hash is.
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    db: Database,
    actor: Actor,
    *,
    name: str,
    role: str,
    ttl_s: float | None,
    routes: Sequence[str] | None = None,
    rate_per_s: float | None = None,
) -> tuple[TokenRecord, str]:
    """Create a token; the second part is the secret, which is shown this once.

    ``routes`` (None: all) are those that it is for, whether there already or not; ``rate_per_s`` is
    how many requests it may make a second of each server (None: what the server allows every token).

    Raises:
        InputError: no such role, no name, a role that has no scope, or a number out of range.
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
    if rate_per_s is not None and not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise InputError(
            "is out of range",
            field="rate_per_s",
            value=rate_per_s,
            remedy=f"use requests a second above 0 and up to {MAX_RATE_PER_S:g}, or none",
        )
    secret = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with db.write() as session:
        record = TokenRecord(
            id=new_id(session),
            name=name,
            role=role,
            sha256=_sha256(secret),
            created_at=0.0,
            expires_at=None,
            revoked_at=None,
            routes=None if routes is None else _scope(role, routes),
            rate_per_s=rate_per_s,
        )
        stored = access.add_token(session, record, ttl_s=ttl_s)
        detail: dict[str, object] = {"name": name, "role": role, "ttl_s": ttl_s}
        detail |= {"routes": stored.routes, "rate_per_s": rate_per_s}
        access.audit(session, actor=actor, action="token.create", target=stored.id, detail=detail)
    return stored, secret


def _scope(role: str, routes: Sequence[str]) -> list[str]:
    if role not in SCOPED_ROLES:
        raise InputError(
            "cannot be for some routes alone",
            field="role",
            value=role,
            remedy=f"use {', '.join(SCOPED_ROLES)}, or leave the routes out",
        )
    if not 0 < len(routes) <= MAX_ROUTES:
        raise InputError(
            "has no route, or too many",
            field="routes",
            value=len(routes),
            remedy=f"name 1 to {MAX_ROUTES} routes, or leave it out for all",
        )
    for route in routes:
        check_name("routes", route)
    return sorted(set(routes))


def rotate_token(
    db: Database, actor: Actor, token_id: str, *, overlap_s: float
) -> tuple[TokenRecord, str]:
    """Give a token a successor of the same name, role, scope, rate and lifetime.

    The old one lasts ``overlap_s`` seconds more, in which its holder takes the new one into use.

    Returns the successor and its secret, which is shown this once.

    Raises:
        NotFound: no token that is still good has this id.
        Conflict: it has a successor already.
        InputError: the overlap is out of range.
    """
    if not (math.isfinite(overlap_s) and 0 <= overlap_s <= MAX_OVERLAP_S):
        raise InputError(
            "is out of range",
            field="overlap_s",
            value=overlap_s,
            remedy=f"use 0 to {MAX_OVERLAP_S:g} s",
        )
    secret = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with db.write() as session:
        old = access.good_token(session, token_id)
        if old is None:
            raise NotFound(
                "is not the id of a token that is still good",
                field="id",
                value=token_id,
                remedy="see gatekeeper token list; gatekeeper token create makes a new one",
            )
        newer = access.successor(session, token_id)
        if newer is not None:
            raise Conflict(
                f"was rotated already, to {newer.id}",
                field="id",
                value=token_id,
                remedy=f"rotate {newer.id}",
            )
        ttl_s = None if old.expires_at is None else old.expires_at - old.created_at
        fresh = replace(old, id=new_id(session), sha256=_sha256(secret), replaces=old.id)
        stored = access.add_token(session, fresh, ttl_s=ttl_s)
        if overlap_s:
            access.end_token(session, old.id, in_s=overlap_s)
        else:
            access.revoke_token(session, old.id)
        detail = {"to": stored.id, "overlap_s": overlap_s}
        access.audit(session, actor=actor, action="token.rotate", target=old.id, detail=detail)
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
    return Actor(
        name=f"{record.name} ({record.id})",
        role=record.role,
        token=record.id,
        routes=None if record.routes is None else tuple(record.routes),
        rate_per_s=record.rate_per_s,
    )


def list_tokens(db: Database, *, after: str | None, limit: int) -> list[TokenRecord]:
    """Page of tokens, revoked ones included."""
    with db.read() as session:
        return access.tokens(session, after=after, limit=limit)


def audit_trail(
    db: Database,
    *,
    after: int | None,
    limit: int,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
) -> list[AuditRecord]:
    """Page of changes, newest first, all or those of an actor (or token id), action or object."""
    with db.read() as session:
        return access.audit_trail(
            session, after=after, limit=limit, actor=actor, action=action, target=target
        )


def remove_ended_tokens(db: Database, actor: Actor, *, age_s: float) -> list[str]:
    """Remove tokens that were revoked or expired more than ``age_s`` seconds ago; return their ids.

    The audit trail keeps who they were.
    """
    with db.write() as session:
        removed = access.remove_ended_tokens(session, age_s=age_s)
        if removed:
            access.audit(
                session,
                actor=actor,
                action="token.remove",
                target="tokens",
                detail={"tokens": removed},
            )
    return removed


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
        access.audit(session, actor=actor, action="token.revoke", target=token_id, detail={})
    return record
