"""Overrides: somebody's word over the gates', with a reason and an end."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gatekeeper.actions.decide import derive
from gatekeeper.actions.identity import Actor, new_id, require
from gatekeeper.core.bypass import ENABLE
from gatekeeper.core.policies import Override
from gatekeeper.errors import Conflict, InputError, NotFound
from gatekeeper.store import access, catalog, decisions
from gatekeeper.store.database import now
from gatekeeper.store.records import OverrideRecord

if TYPE_CHECKING:
    from gatekeeper.store.database import Database

__all__ = ["MAX_TTL_S", "clear_override", "list_overrides", "set_override"]

MAX_TTL_S = 30 * 86_400.0
"""Longest override: one that should last has its place in a policy or a route."""


def set_override(
    db: Database,
    actor: Actor,
    *,
    route: str,
    action: str,
    reason: str,
    ttl_s: float,
    gamma: int | None = None,
    idempotency_key: str | None = None,
) -> OverrideRecord:
    """Override a route until ``ttl_s`` from now. Enabling against the gates takes an admin.

    Raises:
        NotFound: no such route.
        InputError: no reason, no gamma where one is needed, or a lifetime out of range.
        Conflict: the key was used for another override.
    """
    if action == ENABLE:
        require(actor, "admin")
    if not 0 < ttl_s <= MAX_TTL_S:
        raise InputError(
            "is out of range", field="ttl_s", value=ttl_s, remedy=f"use up to {MAX_TTL_S:g} s"
        )
    key = idempotency_key or secrets.token_hex(16)
    with db.write() as session:
        before = decisions.override_by_key(session, key)
        if before is not None:
            if (before.route, before.action, before.gamma, before.reason) != (
                route,
                action,
                gamma,
                reason,
            ):
                raise Conflict(
                    "was used for another override",
                    field="Idempotency-Key",
                    value=key,
                    remedy="use a new key for a new request",
                )
            return before
        if catalog.route(session, route) is None:
            raise NotFound(
                "is not a route", field="route", value=route, remedy="see gatekeeper route list"
            )
        # The core's own checks: a known action, a reason, a gamma to enable with.
        Override(
            action=action,
            reason=reason.strip(),
            actor=actor.name,
            expires_at=datetime.fromtimestamp(now(session) + ttl_s, UTC),
            gamma=gamma,
        )
        stored = decisions.add_override(
            session,
            OverrideRecord(
                id=new_id(session),
                idempotency_key=key,
                route=route,
                action=action,
                gamma=gamma if action == ENABLE else None,
                reason=reason.strip(),
                actor=actor.name,
                created_at=0.0,
                expires_at=0.0,
                cleared_at=None,
                cleared_by=None,
            ),
            ttl_s=ttl_s,
        )
        access.audit(
            session,
            actor=actor,
            action="override.set",
            target=route,
            detail={"action": action, "gamma": gamma, "reason": reason, "ttl_s": ttl_s},
        )
        derive(session, [route])
    return stored


def clear_override(db: Database, actor: Actor, route: str) -> list[OverrideRecord]:
    """End a route's overrides; the gates decide again.

    Raises:
        NotFound: the route has none.
    """
    with db.write() as session:
        cleared = decisions.clear_overrides(session, route, actor=actor.name)
        if not cleared:
            raise NotFound("has no override", field="route", value=route, remedy="see route show")
        access.audit(
            session,
            actor=actor,
            action="override.clear",
            target=route,
            detail={"overrides": [record.id for record in cleared]},
        )
        derive(session, [route])
    return cleared


def list_overrides(db: Database, *, after: str | None, limit: int) -> list[OverrideRecord]:
    """Page of overrides, newest first, ended ones included."""
    with db.read() as session:
        return decisions.overrides(session, after=after, limit=limit)
