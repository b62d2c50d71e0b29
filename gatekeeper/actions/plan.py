"""What a gate run would cost and could show, before it is queued."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper import workloads
from gatekeeper.actions.catalog import covered_sampling, get_artifact, get_policy, get_route
from gatekeeper.core.decoding import Rates, SamplingSettings, TokenPrompt
from gatekeeper.core.documents import read
from gatekeeper.core.policies import Policy, ServingBudget, Slo
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, serving
from gatekeeper.store import results

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
    policy = Policy.from_dict(get_policy(db, record.policy).document)
    prompts = [
        TokenPrompt(p.id, p.slice, (0,) * math.ceil(len(p.text) / CHARACTERS_PER_TOKEN))
        for p in workloads.prompts(record.slice)
    ]
    prompts = [p for p in prompts if len(p.tokens) <= policy.serving.max_prompt_tokens]
    sampling = [
        SamplingSettings.from_dict(s)
        for s in covered_sampling(record.sampling, artifact.document, route=route)
    ]
    rates = _rates(db, artifact.digest)
    common: dict[str, Any] = {
        "prompts": prompts,
        "sampling": sampling,
        "end_tokens": (),
        "seed": policy.equivalence.seed,
        "rates": rates,
    }
    estimate: Mapping[str, Any]
    if gate == "equivalence":
        estimate = equivalence.plan(policy, artifact.document, **common).estimate
    elif gate == "serving":
        budget = _with_slo(policy, record)
        estimate = serving.plan(policy, artifact.document, budget=budget, **common).estimate
    else:
        raise InputError(
            "cannot be planned", field="gate", value=gate, remedy="use equivalence or serving"
        )
    return {
        "route": route,
        "gate": gate,
        "artifact": artifact.digest,
        "policy": policy.name,
        "rates": "measured by an earlier run" if rates else "unknown: no run of this artifact yet",
        "prompt_lengths": f"estimated at {CHARACTERS_PER_TOKEN} characters a token",
        **estimate,
    }


def _with_slo(policy: Policy, route: RouteRecord) -> ServingBudget:
    if route.slo is None:
        return policy.serving
    return replace(policy.serving, slo=read(Slo, dict(route.slo), field="slo"))


def _rates(db: Database, artifact: str) -> Rates | None:
    with db.read() as session:
        info = results.latest_info(session, artifact)
    raw: Mapping[str, Any] = (info or {}).get("details", {}).get("rates") or {}
    decode, score = raw.get("decode_tokens_per_s"), raw.get("score_tokens_per_s")
    return Rates(float(decode), float(score)) if decode and score else None
