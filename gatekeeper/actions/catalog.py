"""Artifacts, aliases, policies and routes: what may be stored, and whom a change concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.decide import derive
from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.documents import plain, read
from gatekeeper.core.names import check_name, check_same_name
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
    from gatekeeper.store.database import Database, Session

__all__ = [
    "KEEP",
    "apply_policy",
    "check_alias",
    "covered_sampling",
    "get_artifact",
    "get_policy",
    "get_route",
    "list_aliases",
    "list_artifacts",
    "list_policies",
    "list_routes",
    "move_alias",
    "new_policy",
    "new_route",
    "put_route",
    "register",
    "set_alias",
    "set_policy",
    "set_route",
]

KEEP: Mapping[str, Any] = {}
"""A rollout that nobody spoke of: the route keeps the one it has."""


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
                actor=actor,
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
        record, moved = set_alias(session, actor, alias, digest)
        names = check_alias(session, alias)
        if moved:
            derive(session, names)
    return record


def set_alias(
    session: Session, actor: Actor, alias: str, digest: str
) -> tuple[ArtifactRecord, bool]:
    """Point an alias in the caller's transaction, which checks and decides its routes.

    Returns the artifact, and False when the alias pointed there already.

    Raises:
        NotFound: no such artifact.
    """
    record = _artifact(store.artifact(session, digest), digest, "digest")
    before = store.set_alias(session, alias, digest)
    if before != digest:
        access.audit(
            session,
            actor=actor,
            action="alias.move",
            target=alias,
            detail={
                "from": before,
                "to": digest,
                "routes": store.route_names(session, artifact=alias),
            },
        )
    return record, before != digest


def check_alias(session: Session, alias: str) -> list[str]:
    """Names of the routes on an alias, whose sampling its artifact covers.

    Raises:
        Incompatible: the artifact does not cover one of them.
    """
    names = store.route_names(session, artifact=alias)
    record = store.resolve(session, alias)
    for name in names:
        route = store.route(session, name)
        if route is not None and record is not None:
            covered_sampling(route.sampling, record.document, route=name)
    return names


def apply_policy(
    db: Database, actor: Actor, name: str, document: Mapping[str, Any]
) -> tuple[PolicyRecord, bool]:
    """Store a policy version and make it the current one; False when it already was.

    Raises:
        InputError: the document is not a sound policy, or carries another name.
    """
    record = new_policy(actor, name, document)
    with db.write() as session:
        changed = set_policy(session, actor, record)
        if changed:
            derive(session, store.route_names(session, policy=name))
        stored = store.policy(session, record.digest)
    return stored or record, changed


def new_policy(actor: Actor, name: str, document: Mapping[str, Any]) -> PolicyRecord:
    """Check a policy document.

    Raises:
        InputError: it is not sound, or carries another name.
    """
    policy = Policy.from_dict(document)
    check_same_name(policy.name, name)
    return PolicyRecord(policy.digest, name, policy.to_dict(), 0.0, actor.name)


def set_policy(session: Session, actor: Actor, record: PolicyRecord) -> bool:
    """Make a version the current one; the caller decides its routes. False when it already was."""
    before = store.add_policy(session, record)
    if before is not None and before.digest == record.digest:
        return False
    access.audit(
        session,
        actor=actor,
        action="policy.apply",
        target=record.name,
        detail={"from": before.digest if before else None, "to": record.digest},
    )
    return True


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
    record = new_route(
        name,
        slice_name=slice_name,
        artifact=artifact,
        policy=policy,
        rules=rules,
        slo=slo,
        sampling=sampling,
        task_rules=task_rules,
        economics=economics,
        rollout=rollout,
    )
    with db.write() as session:
        stored = set_route(session, actor, record)
        derive(session, [name])
    return stored


def new_route(
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
    """Check all of a route that can be checked without the database; ``KEEP`` is left to it.

    Raises:
        InputError: a name, rule, limit or setting is wrong.
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
    if rollout is not KEEP and rollout is not None:
        rollout = Rollout.from_dict(rollout).to_dict()
    return RouteRecord(
        name=name,
        slice=slice_name,
        artifact=artifact,
        policy=policy,
        rules=checked,
        slo=None if slo is None else plain(read(Slo, dict(slo), field="slo")),
        sampling=[dict(item) for item in sampling],
        updated_at=0.0,
        task_rules=grouping,
        economics=economics,
        rollout=rollout,
    )


def set_route(session: Session, actor: Actor, record: RouteRecord) -> RouteRecord:
    """Create or replace a route in the caller's transaction, which decides it.

    Raises:
        NotFound: no such artifact or policy.
        Incompatible: a sampling setting that the artifact does not cover.
    """
    name = record.name
    found = _artifact(store.resolve(session, record.artifact), record.artifact, "artifact")
    if store.current_policy(session, record.policy) is None:
        raise NotFound(
            "is not a policy",
            field="policy",
            value=record.policy,
            remedy="see gatekeeper policy list",
        )
    covered_sampling(record.sampling, found.document, route=name)
    before = store.route(session, name, lock=True)
    if record.rollout is KEEP:
        record = replace(record, rollout=None if before is None else before.rollout)
    stored = store.put_route(session, record)
    access.audit(
        session,
        actor=actor,
        action="route.set",
        target=name,
        detail={"from": plain(before) if before else None, "to": plain(stored)},
    )
    return stored


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
