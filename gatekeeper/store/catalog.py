"""Artifacts, aliases, policies and routes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from gatekeeper.store import schema
from gatekeeper.store.database import Session, clock, now
from gatekeeper.store.records import ArtifactRecord, PolicyRecord, RouteRecord
from gatekeeper.store.rows import page, upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "add_artifact",
    "add_policy",
    "aliases",
    "all_routes",
    "artifact",
    "artifacts",
    "current_policy",
    "drop_alias",
    "drop_policy",
    "policies",
    "policy",
    "put_route",
    "resolve",
    "route",
    "route_names",
    "routes",
    "set_alias",
]


def add_artifact(session: Session, record: ArtifactRecord) -> bool:
    """Store an artifact; return False when that digest is there already."""
    if artifact(session, record.digest) is not None:
        return False
    session.execute(
        schema.artifact.insert().values(
            digest=record.digest,
            document=record.document,
            contract=record.contract,
            created_at=clock(),
            created_by=record.created_by,
        )
    )
    return True


def artifact(session: Session, digest: str) -> ArtifactRecord | None:
    """Artifact by digest."""
    table = schema.artifact
    row = session.execute(select(table).where(table.c.digest == digest)).mappings().one_or_none()
    return None if row is None else ArtifactRecord(**row)


def artifacts(session: Session, *, after: str | None, limit: int) -> list[ArtifactRecord]:
    """Page of artifacts by digest."""
    rows = page(session, schema.artifact, schema.artifact.c.digest, after=after, limit=limit)
    return [ArtifactRecord(**row) for row in rows]


def aliases(session: Session) -> dict[str, str]:
    """Every alias and its digest."""
    table = schema.alias
    rows = session.execute(select(table.c.alias, table.c.digest).order_by(table.c.alias))
    return {str(name): str(digest) for name, digest in rows}


def set_alias(session: Session, name: str, digest: str) -> str | None:
    """Point an alias at an artifact; return where it pointed before."""
    before = aliases(session).get(name)
    upsert(session, schema.alias, {"alias": name}, {"digest": digest, "moved_at": now(session)})
    return before


def resolve(session: Session, reference: str) -> ArtifactRecord | None:
    """Artifact by alias or digest; aliases cannot look like digests, so the two never clash."""
    return artifact(session, aliases(session).get(reference, reference))


def add_policy(session: Session, record: PolicyRecord) -> PolicyRecord | None:
    """Store a version and make it the name's current one; return the version before."""
    before = current_policy(session, record.name)
    if policy(session, record.digest) is None:
        session.execute(
            schema.policy.insert().values(
                digest=record.digest,
                name=record.name,
                document=record.document,
                applied_at=clock(),
                applied_by=record.applied_by,
            )
        )
    upsert(session, schema.policy_name, {"name": record.name}, {"digest": record.digest})
    return before


def drop_policy(session: Session, name: str) -> None:
    """Let no version of a policy be current any more; the versions stay."""
    table = schema.policy_name
    session.execute(delete(table).where(table.c.name == name))


def drop_alias(session: Session, name: str) -> None:
    """Remove an alias; the artifact stays."""
    session.execute(delete(schema.alias).where(schema.alias.c.alias == name))


def policy(session: Session, digest: str) -> PolicyRecord | None:
    """Policy version by digest."""
    table = schema.policy
    row = session.execute(select(table).where(table.c.digest == digest)).mappings().one_or_none()
    return None if row is None else PolicyRecord(**row)


def current_policy(session: Session, name: str) -> PolicyRecord | None:
    """Newest applied version of a policy."""
    return next((p for p in policies(session) if p.name == name), None)


def policies(session: Session) -> list[PolicyRecord]:
    """Current version of every policy, by name."""
    table, names = schema.policy, schema.policy_name
    rows = session.execute(
        select(table).join(names, names.c.digest == table.c.digest).order_by(names.c.name)
    )
    return [PolicyRecord(**row) for row in rows.mappings()]


def put_route(session: Session, record: RouteRecord) -> RouteRecord:
    """Create or replace a route; return it with its time."""
    stored = replace(record, updated_at=now(session))
    values: Mapping[str, Any] = {
        "slice": stored.slice,
        "artifact": stored.artifact,
        "policy": stored.policy,
        "rules": stored.rules,
        "slo": stored.slo,
        "sampling": stored.sampling,
        "updated_at": stored.updated_at,
        "task_rules": stored.task_rules,
        "economics": stored.economics,
        "rollout": stored.rollout,
    }
    upsert(session, schema.route, {"name": stored.name}, values)
    return stored


def route(session: Session, name: str, *, lock: bool = False) -> RouteRecord | None:
    """Route by name; ``lock`` holds it to the end of the transaction."""
    query = select(schema.route).where(schema.route.c.name == name)
    if lock:
        # A row that refers to the route holds its key. Two transactions that each stored such a
        # row could both wait for the other if the lock wanted the key too.
        query = query.with_for_update(key_share=True)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else RouteRecord(**row)


def routes(session: Session, *, after: str | None, limit: int) -> list[RouteRecord]:
    """Page of routes by name."""
    rows = page(session, schema.route, schema.route.c.name, after=after, limit=limit)
    return [RouteRecord(**row) for row in rows]


def all_routes(session: Session) -> list[RouteRecord]:
    """Every route by name, in the same order on every database."""
    rows = session.execute(select(schema.route)).mappings()
    return sorted((RouteRecord(**row) for row in rows), key=lambda one: one.name)


def route_names(
    session: Session,
    *,
    artifact: str | None = None,
    policy: str | None = None,
    economics: str | None = None,
) -> list[str]:
    """Names of the routes that refer to an artifact reference, a policy or economics by name.

    A route without economics of its own uses those named like its policy.
    """
    table = schema.route
    query = select(table.c.name).order_by(table.c.name)
    if artifact is not None:
        query = query.where(table.c.artifact == artifact)
    if policy is not None:
        query = query.where(table.c.policy == policy)
    if economics is not None:
        own = table.c.economics
        query = query.where(func.coalesce(own, table.c.policy) == economics)
    return [str(name) for name in session.execute(query).scalars()]
