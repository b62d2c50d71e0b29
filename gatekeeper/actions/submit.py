"""Queue a gate run for what a route serves now."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.catalog import covered_sampling
from gatekeeper.actions.continuation import continued, refuse_after_fail
from gatekeeper.actions.identity import Actor, new_id
from gatekeeper.core.documents import refuse_unknown
from gatekeeper.core.policies import Policy
from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.errors import Conflict, InputError, NotFound
from gatekeeper.store import access, catalog, results, runs
from gatekeeper.store.database import now
from gatekeeper.store.records import RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import ArtifactRecord, PolicyRecord

__all__ = [
    "RUNNABLE",
    "engine_key",
    "enqueue",
    "outcome_load",
    "refuse_outcome_of_servers",
    "submit",
    "with_continued",
]

RUNNABLE = ("equivalence", "serving", "outcome")
"""Gates that workers of this version can run."""

_CHOSEN_BY_CALLER = ("seed",)

_MOST_SEED = 2**63 - 1

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

    An outcome run gets the load of ``outcome_load`` among its parameters, an equivalence run the
    inconclusive run that it goes on from, both anew when it is claimed.

    Raises:
        NotFound: no such route.
        InputError: a gate that cannot be run.
        Conflict: the key was used for another request, or the pair has failed equivalence already.
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
        run = enqueue(
            session,
            actor,
            route=route,
            gate=gate,
            parameters=parameters,
            priority=priority,
            key=key,
        )
    return run, True


def enqueue(
    session: Session,
    actor: Actor,
    *,
    route: str,
    gate: str,
    parameters: Mapping[str, Any],
    priority: int,
    key: str,
) -> RunRecord:
    """Queue a run in the caller's transaction, under an idempotency key that is new.

    Raises:
        NotFound: no such route.
        InputError: the gate cannot be run on what the route serves.
        Conflict: the pair has failed equivalence already.
    """
    fresh = _new_run(session, actor, route, gate, parameters=parameters, priority=priority, key=key)
    run = runs.enqueue(session, fresh)
    access.audit(
        session,
        actor=actor,
        action="run.submit",
        target=run.id,
        detail={"route": route, "gate": gate, "artifact": run.artifact, "policy": run.policy},
    )
    return run


def outcome_load(
    session: Session, route: str, artifact: ArtifactRecord, policy: PolicyRecord
) -> dict[str, int]:
    """Return ``gamma`` and ``concurrency`` at which the outcome gate decodes.

    Those of the highest load that the route's current serving result passed, up to the budget's
    concurrency: tasks then run as the lease would let them. Else the artifact's window and the
    budget's concurrency.
    """
    budget = Policy.from_dict(policy.document).outcome
    governing = results.governing_results(
        session, route=route, artifact=artifact.digest, policy=policy.digest
    )
    serving = governing.get("serving")
    if serving is not None and serving.outcome == "PASS" and now(session) < serving.expires_at:
        windows = serving.document["summary"].get("gamma_by_concurrency") or {}
        passing = {int(level): int(gamma) for level, gamma in windows.items() if int(gamma) > 0}
        level = max((c for c in passing if c <= budget.concurrency), default=None)
        if level is not None:
            return {"gamma": passing[level], "concurrency": level}
    return {"gamma": int(artifact.document["gamma"]), "concurrency": budget.concurrency}


def refuse_outcome_of_servers(artifact: Mapping[str, Any], gate: str) -> None:
    """Refuse a gate that servers which already run cannot be put through.

    Raises:
        InputError: it is the outcome gate, which needs an engine's tokens and busy time.
    """
    if gate == "outcome" and is_running_pair(artifact):
        raise InputError(
            "cannot be measured on servers that already run",
            field="gate",
            value=gate,
            remedy="run equivalence or serving, or bring pairs of your own: gatekeeper outcome check",
        )


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse what no worker reads; a seed is all that a run may choose beside its policy."""
    refuse_unknown(parameters, _CHOSEN_BY_CALLER, field="parameters")
    seed = parameters.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _MOST_SEED:
        raise InputError(
            "is not a seed",
            field="parameters.seed",
            value=seed,
            remedy=f"use a whole number from 0 to {_MOST_SEED}",
        )


def _same(run: RunRecord, route: str, gate: str, parameters: Mapping[str, Any]) -> RunRecord:
    asked = {key: value for key, value in run.parameters.items() if key in _CHOSEN_BY_CALLER}
    given = (route, gate, json.dumps(dict(parameters), sort_keys=True))
    if given != (run.route, run.gate, json.dumps(asked, sort_keys=True)):
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
        raise NotFound(
            "is not a route", field="route", value=route_name, remedy="see gatekeeper route list"
        )
    artifact = catalog.resolve(session, route.artifact)
    policy = catalog.current_policy(session, route.policy)
    if artifact is None or policy is None:
        raise NotFound(
            "points at an artifact or policy that is not there",
            field="route",
            value=route_name,
            remedy="set the route again",
        )
    refuse_outcome_of_servers(artifact.document, gate)
    if gate == "outcome":
        parameters = {**parameters, **outcome_load(session, route.name, artifact, policy)}
    engine = artifact.document["engine"]
    devices = {engine["device"], engine.get("draft_device") or engine["device"]}
    # servers that already run bring their own: whoever asks them needs a processor
    device = "cuda" if "cuda" in devices else "cpu"
    run = RunRecord(
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
            "device": device,
        },
        engine=engine_key(engine["name"], engine["version"]),
        device=device,  # a worker with a GPU has a CPU too
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
    refuse_after_fail(session, run)
    return with_continued(session, run, artifact.document)


def with_continued(session: Session, run: RunRecord, artifact: Mapping[str, Any]) -> RunRecord:
    """The run with what it goes on from now among its parameters, or without."""
    kept = {name: value for name, value in run.parameters.items() if name != "continues"}
    found = continued(session, run, artifact)
    return replace(run, parameters=kept if found is None else {**kept, "continues": found})
