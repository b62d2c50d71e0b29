"""Artifacts, aliases, policies and routes: what may be stored, and whom a change concerns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.decide import derive
from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.documents import plain, read
from gatekeeper.core.policies import Policy, Slo
from gatekeeper.core.ramp import Rollout
from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import TaskRules
from gatekeeper.errors import Incompatible, InputError, NotFound
from gatekeeper.store import access
from gatekeeper.store import catalog as store
from gatekeeper.store.records import ArtifactRecord, PolicyRecord, RouteRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database

__all__ = [
    "KEEP",
    "apply_policy",
    "check_name",
    "covered_sampling",
    "get_artifact",
    "get_policy",
    "get_route",
    "list_aliases",
    "list_artifacts",
    "list_policies",
    "list_routes",
    "move_alias",
    "put_route",
    "register",
]

KEEP: Mapping[str, Any] = {}
"""A rollout that nobody spoke of: the route keeps the one it has."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_name(field: str, name: str) -> None:
    """Raise ``InputError`` for what is no name of a route, policy, alias or economics."""
    # Names travel in URLs and OFREP keys; one that looks like a digest would hide an artifact.
    if _NAME.fullmatch(name) is None or _DIGEST.fullmatch(name) is not None:
        raise InputError(
            "is not a name",
            field=field,
            value=name,
            remedy="use a-z, 0-9, '.', '_' and '-', up to 100, beginning with a letter or digit",
        )


def register(
    db: Database, actor: Actor, document: Mapping[str, Any]
) -> tuple[ArtifactRecord, bool]:
    """Check and store an artifact; False when the same one was there already.

    Raises:
        InputError: the document is not a sound, compatible artifact.
    """
    artifact = parse_artifact(document)
    record = ArtifactRecord(
        artifact.digest, plain(dict(document)), artifact.acceptance.contract, 0.0, actor.name
    )
    with db.write() as session:
        created = store.add_artifact(session, record)
        if created:
            access.audit(
                session,
                actor=actor.name,
                action="artifact.register",
                target=artifact.digest,
                detail={"contract": record.contract},
            )
        stored = store.artifact(session, artifact.digest)
    return stored or record, created


def get_artifact(db: Database, reference: str) -> ArtifactRecord:
    """Artifact by digest or alias.

    Raises:
        NotFound: neither.
    """
    with db.read() as session:
        return _artifact(store.resolve(session, reference), reference, "artifact")


def _artifact(record: ArtifactRecord | None, reference: str, field: str) -> ArtifactRecord:
    if record is None:
        raise NotFound(
            "is neither a digest nor an alias here",
            field=field,
            value=reference,
            remedy="see gatekeeper artifact list, or register it",
        )
    return record


def list_artifacts(db: Database, *, after: str | None, limit: int) -> list[ArtifactRecord]:
    """Page of artifacts by digest."""
    with db.read() as session:
        return store.artifacts(session, after=after, limit=limit)


def list_aliases(db: Database) -> dict[str, str]:
    """Every alias and its digest."""
    with db.read() as session:
        return store.aliases(session)


def move_alias(db: Database, actor: Actor, alias: str, digest: str) -> ArtifactRecord:
    """Point an alias at an artifact. Routes on it are decided anew: evidence stays with digests.

    Raises:
        InputError: not a name.
        NotFound: no such artifact.
        Incompatible: a route on this alias samples in a way that the artifact does not cover.
    """
    check_name("alias", alias)
    with db.write() as session:
        record = _artifact(store.artifact(session, digest), digest, "digest")
        before = store.set_alias(session, alias, digest)
        names = store.route_names(session, artifact=alias)
        for name in names:
            route = store.route(session, name)
            if route is not None:
                covered_sampling(route.sampling, record.document, route=name)
        if before != digest:
            access.audit(
                session,
                actor=actor.name,
                action="alias.move",
                target=alias,
                detail={"from": before, "to": digest, "routes": names},
            )
            derive(session, names)
    return record


def apply_policy(
    db: Database, actor: Actor, name: str, document: Mapping[str, Any]
) -> tuple[PolicyRecord, bool]:
    """Store a policy version and make it the current one; False when it already was.

    Raises:
        InputError: the document is not a sound policy, or carries another name.
    """
    policy = Policy.from_dict(document)
    check_name("name", name)
    if policy.name != name:
        raise InputError(
            f"differs from the name {name} it is applied under",
            field="name",
            value=policy.name,
            remedy="use one name",
        )
    record = PolicyRecord(policy.digest, name, policy.to_dict(), 0.0, actor.name)
    with db.write() as session:
        before = store.add_policy(session, record)
        changed = before is None or before.digest != record.digest
        if changed:
            access.audit(
                session,
                actor=actor.name,
                action="policy.apply",
                target=name,
                detail={"from": before.digest if before else None, "to": record.digest},
            )
            derive(session, store.route_names(session, policy=name))
        stored = store.policy(session, record.digest)
    return stored or record, changed


def list_policies(db: Database) -> list[PolicyRecord]:
    """Return the current version of every policy."""
    with db.read() as session:
        return store.policies(session)


def get_policy(db: Database, name: str) -> PolicyRecord:
    """Policy by name (its current version) or by digest.

    Raises:
        NotFound: neither.
    """
    with db.read() as session:
        record = store.current_policy(session, name) or store.policy(session, name)
    if record is None:
        raise NotFound(
            "is not a policy", field="policy", value=name, remedy="see gatekeeper policy list"
        )
    return record


def put_route(
    db: Database,
    actor: Actor,
    name: str,
    *,
    slice_name: str,
    artifact: str,
    policy: str,
    rules: Sequence[Mapping[str, Any]] = (),
    slo: Mapping[str, Any] | None = None,
    sampling: Sequence[Mapping[str, Any]] = (),
    task_rules: Mapping[str, Any] | None = None,
    economics: str | None = None,
    rollout: Mapping[str, Any] | None = KEEP,
) -> RouteRecord:
    """Create or replace a route and decide it. No ``sampling`` means all that the artifact covers.

    ``rollout`` None is for everybody at once; what is there stays where it is left out, since whoever
    changes something else must not end a ramp.

    Raises:
        InputError: a name, rule, limit or setting is wrong.
        NotFound: no such artifact or policy.
        Incompatible: a sampling setting that the artifact does not cover.
    """
    check_name("route", name)
    if not slice_name:
        raise InputError("is empty", field="slice", remedy="name the workload slice of its text")
    checked = [
        Rule.from_dict(rule, route=name, field=f"rules[{i}]").to_dict()
        for i, rule in enumerate(rules)
    ]
    grouping = None if task_rules is None else plain(TaskRules.from_dict(task_rules))
    if economics is not None:
        check_name("economics", economics)
    limits = None if slo is None else plain(read(Slo, dict(slo), field="slo"))
    reach = rollout or None
    if rollout is not KEEP and rollout is not None:
        reach = Rollout.from_dict(rollout).to_dict()
    with db.write() as session:
        found = _artifact(store.resolve(session, artifact), artifact, "artifact")
        if store.current_policy(session, policy) is None:
            raise NotFound(
                "is not a policy", field="policy", value=policy, remedy="see gatekeeper policy list"
            )
        covered_sampling(sampling, found.document, route=name)
        before = store.route(session, name, lock=True)
        if rollout is KEEP and before is not None:
            reach = before.rollout
        record = store.put_route(
            session,
            RouteRecord(
                name=name,
                slice=slice_name,
                artifact=artifact,
                policy=policy,
                rules=checked,
                slo=limits,
                sampling=[dict(item) for item in sampling],
                updated_at=0.0,
                task_rules=grouping,
                economics=economics,
                rollout=reach,
            ),
        )
        access.audit(
            session,
            actor=actor.name,
            action="route.set",
            target=name,
            detail={"from": plain(before) if before else None, "to": plain(record)},
        )
        derive(session, [name])
    return record


def covered_sampling(
    sampling: Sequence[Mapping[str, Any]], artifact: Mapping[str, Any], *, route: str
) -> list[Mapping[str, Any]]:
    """Return the settings a route runs with: its own, each covered, or all the artifact covers.

    Raises:
        InputError: not a sampling setting.
        Incompatible: one that the artifact does not cover, so that no gate would test it.
    """
    covered = [SamplingSettings.from_dict(item) for item in artifact["sampling"]]
    if not sampling:
        return [plain(settings.to_dict()) for settings in covered]
    used = [
        SamplingSettings.from_dict(item, field=f"sampling[{i}]") for i, item in enumerate(sampling)
    ]
    for settings in used:
        if settings not in covered:
            raise Incompatible(
                f"is not covered by the artifact of route {route}",
                field="sampling",
                value=settings.label,
                remedy="register an artifact that lists it, and gate that",
            )
    return [plain(settings.to_dict()) for settings in used]


def list_routes(db: Database, *, after: str | None, limit: int) -> list[RouteRecord]:
    """Page of routes by name."""
    with db.read() as session:
        return store.routes(session, after=after, limit=limit)


def get_route(db: Database, name: str) -> RouteRecord:
    """Route by name.

    Raises:
        NotFound: no such route.
    """
    with db.read() as session:
        record = store.route(session, name)
    if record is None:
        raise NotFound(
            "is not a route", field="route", value=name, remedy="see gatekeeper route list"
        )
    return record
