"""Queue a gate run for what a route serves now."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.catalog import covered_sampling
from gatekeeper.actions.identity import Actor, new_id
from gatekeeper.core.documents import refuse_unknown
from gatekeeper.errors import Conflict, InputError, NotFound
from gatekeeper.store import access, catalog, runs
from gatekeeper.store.records import RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Database, Session

__all__ = ["RUNNABLE", "engine_key", "submit"]

RUNNABLE = ("equivalence", "serving")
"""Gates that workers of this version can run."""

MAX_ATTEMPTS = 3
"""A run whose worker vanished this often is broken, not unlucky."""


def engine_key(name: str, version: str) -> str:
    """What a worker must offer, in one column."""
    return f"{name} {version}"


def submit(
    db: Database,
    actor: Actor,
    *,
    route: str,
    gate: str,
    parameters: Mapping[str, Any],
    priority: int = 0,
    idempotency_key: str | None = None,
) -> tuple[RunRecord, bool]:
    """Queue a gate run for what the route serves now; False when the key was used before.

    Raises:
        NotFound: no such route.
        InputError: a gate that cannot be run.
        Conflict: the key was used for another request.
    """
    if gate not in RUNNABLE:
        raise InputError(
            "cannot be run", field="gate", value=gate, remedy=f"use one of {', '.join(RUNNABLE)}"
        )
    _check_parameters(parameters)
    key = idempotency_key or secrets.token_hex(16)
    with db.write() as session:
        before = runs.by_key(session, key)
        if before is not None:
            return _same(before, route, gate, parameters), False
        run = runs.enqueue(
            session,
            _new_run(
                session, actor, route, gate, parameters=parameters, priority=priority, key=key
            ),
        )
        access.audit(
            session,
            actor=actor.name,
            action="run.submit",
            target=run.id,
            detail={"route": route, "gate": gate, "artifact": run.artifact, "policy": run.policy},
        )
    return run, True


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse what no worker reads; a seed is all that a run may choose beside its policy."""
    refuse_unknown(parameters, ("seed",), field="parameters")
    seed = parameters.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(
            "is not a seed",
            field="parameters.seed",
            value=seed,
            remedy="use a whole number, 0 or more",
        )


def _same(run: RunRecord, route: str, gate: str, parameters: Mapping[str, Any]) -> RunRecord:
    given = (route, gate, json.dumps(dict(parameters), sort_keys=True))
    if given != (run.route, run.gate, json.dumps(dict(run.parameters), sort_keys=True)):
        raise Conflict(
            f"was used for another request, run {run.id}",
            field="Idempotency-Key",
            value=run.idempotency_key,
            remedy="use a new key for a new request",
        )
    return run


def _new_run(
    session: Session,
    actor: Actor,
    route_name: str,
    gate: str,
    *,
    parameters: Mapping[str, Any],
    priority: int,
    key: str,
) -> RunRecord:
    route = catalog.route(session, route_name)
    if route is None:
        raise NotFound("is not a route", field="route", value=route_name, remedy="see route list")
    artifact = catalog.resolve(session, route.artifact)
    policy = catalog.current_policy(session, route.policy)
    if artifact is None or policy is None:
        raise NotFound(
            "points at an artifact or policy that is not there",
            field="route",
            value=route_name,
            remedy="set the route again",
        )
    engine = artifact.document["engine"]
    devices = {engine["device"], engine.get("draft_device") or engine["device"]}
    return RunRecord(
        id=new_id(session),
        idempotency_key=key,
        route=route.name,
        slice=route.slice,
        gate=gate,
        artifact=artifact.digest,
        policy=policy.digest,
        sampling=covered_sampling(route.sampling, artifact.document, route=route.name),
        slo=route.slo,
        parameters=parameters,
        requirements={
            "engine": engine["name"],
            "version": engine["version"],
            "device": max(devices),
        },
        engine=engine_key(engine["name"], engine["version"]),
        device=max(devices),  # "cuda" sorts above "cpu": a worker with a GPU has a CPU too
        state="pending",
        priority=priority,
        attempt=1,
        max_attempts=MAX_ATTEMPTS,
        fence=0,
        owner=None,
        lease_s=None,
        lease_until=None,
        executor=None,
        executor_job_id=None,
        executor_attempt=None,
        cancel_requested=False,
        progress=None,
        info=None,
        error=None,
        created_at=0.0,
        created_by=actor.name,
        started_at=None,
        finished_at=None,
    )
