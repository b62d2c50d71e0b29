"""What a gate run would cost and could show, before it is queued."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper import workloads
from gatekeeper.actions.catalog import covered_sampling, get_artifact, get_policy, get_route
from gatekeeper.actions.continuation import before_of
from gatekeeper.actions.plan_servers import estimate_servers
from gatekeeper.actions.submit import outcome_load, refuse_outcome_of_servers
from gatekeeper.core.decoding import Rates, SamplingSettings, TokenPrompt
from gatekeeper.core.documents import read
from gatekeeper.core.policies import Policy, ServingBudget, Slo
from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, outcome, serving
from gatekeeper.store import results
from gatekeeper.workloads import tasks as task_suite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Database
    from gatekeeper.store.records import ArtifactRecord, PolicyRecord, RouteRecord

__all__ = ["plan_run"]

CHARACTERS_PER_TOKEN = 4
"""Usual for English and code. The server opens no tokenizer; a worker counts exactly."""


def plan_run(db: Database, *, route: str, gate: str) -> dict[str, Any]:
    """Return the gate's own estimate for what the route serves now: tokens, minutes, power.

    Minutes are what the route's last such run took (``minutes_from`` says ``last_run``). Without
    one they are at most, with every answer at its full length at the speeds of the artifact's newest
    equivalence run (``speeds``), and None where there is neither.

    Raises:
        NotFound: no such route.
        InputError: a gate that cannot be planned, or a slice without a workload.
    """
    record = get_route(db, route)
    artifact = get_artifact(db, record.artifact)
    stored = get_policy(db, record.policy)
    policy = Policy.from_dict(stored.document)
    refuse_outcome_of_servers(artifact.document, gate)
    rates = _rates(db, artifact.digest)
    described: dict[str, Any] = {
        "route": route,
        "gate": gate,
        "artifact": artifact.digest,
        "policy": policy.name,
        "slice": None if gate == "outcome" else record.slice,  # it has tasks of its own
        "rates": "measured by an earlier run" if rates else "unknown: no run of this artifact yet",
        "prompt_lengths": f"estimated at {CHARACTERS_PER_TOKEN} characters a token",
    }
    if is_running_pair(artifact.document):
        estimate = estimate_servers(
            gate,
            policy,
            artifact.document,
            record.slice,
            sampling=record.sampling,
            rates=rates,
            budget=_with_slo(policy, record),
        )
        return _timed(db, record, artifact, stored, {**described, **estimate})
    estimated: Mapping[str, Any]
    if gate == "outcome":
        with db.read() as session:
            load = outcome_load(session, route, artifact, stored)
        estimated = _outcome(artifact.document, policy, rates, load)
        return _timed(db, record, artifact, stored, {**described, **estimated})
    prompts = [
        TokenPrompt(p.id, p.slice, _placeholder(p.text)) for p in workloads.prompts(record.slice)
    ]
    prompts = [p for p in prompts if len(p.tokens) <= policy.serving.max_prompt_tokens]
    sampling = [
        SamplingSettings.from_dict(s)
        for s in covered_sampling(record.sampling, artifact.document, route=route)
    ]
    common: dict[str, Any] = {
        "prompts": prompts,
        "sampling": sampling,
        "end_tokens": (),
        "seed": policy.equivalence.seed,
        "rates": rates,
    }
    if gate == "equivalence":
        common["before"] = before_of(db, record, artifact, stored)
        estimated = equivalence.plan(policy, artifact.document, **common).estimate
    elif gate == "serving":
        budget = _with_slo(policy, record)
        estimated = serving.plan(policy, artifact.document, budget=budget, **common).estimate
    else:
        raise InputError(
            "cannot be planned",
            field="gate",
            value=gate,
            remedy="use equivalence, serving or outcome",
        )
    return _timed(db, record, artifact, stored, {**described, **estimated})


def _timed(
    db: Database,
    route: RouteRecord,
    artifact: ArtifactRecord,
    policy: PolicyRecord,
    plan: dict[str, Any],
) -> dict[str, Any]:
    """The plan with the minutes that the route's last run of the same gate took, where there is one."""
    with db.read() as session:
        seconds = results.latest_duration(
            session,
            route=route.name,
            gate=plan["gate"],
            artifact=artifact.digest,
            policy=policy.digest,
            workload=route.slice,
        )
    if seconds is not None:
        return {**plan, "minutes": seconds / 60, "minutes_from": "last_run"}
    return {**plan, "minutes_from": None if plan["minutes"] is None else "speeds"}


def _outcome(
    artifact: Mapping[str, Any], policy: Policy, rates: Rates | None, load: Mapping[str, int]
) -> Mapping[str, Any]:
    """Estimate for the task suite at the load that ``submit`` would choose now."""
    tasks = task_suite.suite()
    return outcome.plan(
        policy,
        artifact,
        tasks=[TokenPrompt(task.id, task.kind, _placeholder(task.text)) for task in tasks],
        suite=task_suite.digest(tasks),
        end_tokens=(),
        seed=policy.equivalence.seed,
        rates=rates,
        **load,
    ).estimate


def _placeholder(text: str) -> tuple[int, ...]:
    return (0,) * math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _with_slo(policy: Policy, route: RouteRecord) -> ServingBudget:
    if route.slo is None:
        return policy.serving
    return replace(policy.serving, slo=read(Slo, dict(route.slo), field="slo"))


def _rates(db: Database, artifact: str) -> Rates | None:
    with db.read() as session:
        raw = results.latest_rates(session, artifact) or {}
    decode, score = raw.get("decode_tokens_per_s"), raw.get("score_tokens_per_s")
    if not (decode and score):
        return None
    read = raw.get("read_tokens_per_s")
    return Rates(float(decode), float(score), None if read is None else float(read))
