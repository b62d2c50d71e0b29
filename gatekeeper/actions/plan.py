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
    from gatekeeper.store.records import RouteRecord

__all__ = ["plan_run"]

CHARACTERS_PER_TOKEN = 4
"""Usual for English and code. The server opens no tokenizer; a worker counts exactly."""


def plan_run(db: Database, *, route: str, gate: str) -> dict[str, Any]:
    """Return the gate's own estimate for what the route serves now: tokens, minutes, power.

    Minutes need measured speeds: those of the newest run of the same artifact, else None.

    Raises:
        NotFound: no such route.
        InputError: a gate that cannot be planned, or a slice without a workload.
    """
    record = get_route(db, route)
    artifact = get_artifact(db, record.artifact)
    stored = get_policy(db, record.policy)
    policy = Policy.from_dict(stored.document)
    rates = _rates(db, artifact.digest)
    described = {
        "route": route,
        "gate": gate,
        "artifact": artifact.digest,
        "policy": policy.name,
        "rates": "measured by an earlier run" if rates else "unknown: no run of this artifact yet",
        "prompt_lengths": f"estimated at {CHARACTERS_PER_TOKEN} characters a token",
    }
    refuse_outcome_of_servers(artifact.document, gate)
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
        return {**described, **estimate}
    if gate == "outcome":
        with db.read() as session:
            load = outcome_load(session, route, artifact, stored)
        return {**described, **_outcome(artifact.document, policy, rates, load)}
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
    estimated: Mapping[str, Any]
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
    return {**described, **estimated}


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
    return Rates(float(decode), float(score)) if decode and score else None
