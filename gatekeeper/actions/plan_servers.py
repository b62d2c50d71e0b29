"""What gating two servers that already run would cost and could show; asks no server and no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper import workloads
from gatekeeper.core.decoding import SamplingSettings, TokenPrompt
from gatekeeper.core.running_pair import SERVER_GATES, declared_weights
from gatekeeper.errors import InputError
from gatekeeper.gates import servers_equivalence, servers_own_forward, servers_serving
from gatekeeper.gates.servers_equivalence import TextPrompt, fitting
from gatekeeper.load import REQUEST_LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.decoding import Rates
    from gatekeeper.core.policies import Policy, ServingBudget

__all__ = ["estimate_servers", "limits"]

ASSUMED_TOKENS_PER_S = (20.0, 100.0)
"""Speeds of one stream that minutes are given for until the servers' own are measured."""

PREFILL_FACTOR = 10.0
"""Prompt tokens a second over output tokens a second, for the same purpose."""


def estimate_servers(
    gate: str,
    policy: Policy,
    artifact: Mapping[str, Any],
    slice_name: str,
    *,
    sampling: Sequence[Mapping[str, Any]] = (),
    rates: Rates | None = None,
    budget: ServingBudget | None = None,
) -> dict[str, Any]:
    """Return tokens, minutes and attainable power of one gate.

    ``minutes`` needs measured ``rates``; without them ``minutes_if`` gives them for assumed speeds.
    ``minutes_at_most`` holds whatever the servers do: every answer is given up after its limit.

    Raises:
        InputError: a gate that running servers cannot be put through, or no such slice.
    """
    prompts = [TextPrompt(p.id, p.slice, p.text) for p in workloads.prompts(slice_name)]
    seed = policy.equivalence.seed
    if gate == "equivalence" and declared_weights(artifact) is not None:
        estimate = _own_forward(policy, artifact, prompts, sampling, rates)
        requests = estimate["tokens"] // policy.equivalence.tokens_per_request
    elif gate == "equivalence":
        steps = servers_equivalence.plan(policy, artifact, prompts=prompts, seed=seed, rates=rates)
        estimate = dict(steps.estimate)
        requests = sum(len(step.prompts) for step in steps.steps)
    elif gate == "serving":
        settings = [SamplingSettings.from_dict(s) for s in sampling or artifact["sampling"]]
        blocks = servers_serving.plan(
            policy,
            artifact,
            prompts=prompts,
            sampling=settings,
            seed=seed,
            rates=rates,
            budget=budget,
        )
        estimate = dict(blocks.estimate)
        requests = round(estimate["tokens"] / blocks.suite.budget.tokens_per_request)
    else:
        raise InputError(
            "cannot be measured on servers that already run",
            field="gate",
            value=gate,
            remedy=f"use {' or '.join(SERVER_GATES)}",
        )
    if rates is None:
        read = estimate.get("prompt_tokens", 0) / PREFILL_FACTOR
        estimate["minutes_if"] = {
            f"{speed:g} tokens/s": round((estimate["tokens"] + read) / speed / 60, 1)
            for speed in ASSUMED_TOKENS_PER_S
        }
    estimate["minutes_at_most"] = round(requests * REQUEST_LIMIT_S / 60)
    estimate["prospect"] = _prospect(gate, artifact)
    estimate["limits"] = limits(policy, artifact)
    return estimate


def _prospect(gate: str, artifact: Mapping[str, Any]) -> str:
    """What one gate of a pair as it is declared can end in."""
    if gate == "serving":
        return "PASS or FAIL: whether the candidate is faster, and up to which load"
    if declared_weights(artifact) is None:
        return (
            "FAIL or INCONCLUSIVE, never PASS: texts alone are compared; --target SOURCE, the model "
            "files that both servers have loaded, has the tokens judged and can PASS"
        )
    return (
        "PASS or FAIL where the worker can load the declared files and both servers tell token ids; "
        "else texts alone are compared, which is never PASS"
    )


def limits(policy: Policy, artifact: Mapping[str, Any]) -> list[str]:
    """What no verdict on a pair as it is declared leads to, and what would lead there."""
    found = []
    if artifact["gamma"] is None:
        found.append(
            "no lease, whatever passes: it has to name the candidate's window, which nobody stated; "
            "give --gamma N"
        )
    refused = [gate for gate in policy.mandatory_gates if gate not in SERVER_GATES]
    if refused:
        found.append(
            f"{' and '.join(refused)}, which policy {policy.name} demands, cannot be measured on "
            "servers that already run: the route stays in bypass; only the pair registered as files "
            "can get a lease under that policy"
        )
    if artifact["gamma"] is None or declared_weights(artifact) is None:
        found.append(
            "a pair told more with --gamma or --target is another pair: where the route is there "
            "already, give another --route"
        )
    return found


def _own_forward(
    policy: Policy,
    artifact: Mapping[str, Any],
    prompts: Sequence[TextPrompt],
    sampling: Sequence[Mapping[str, Any]],
    rates: Rates | None,
) -> dict[str, Any]:
    """Estimate where the declared weights score the tokens; no tokenizer is opened here."""
    estimated = [
        TokenPrompt(prompt.id, prompt.slice, (0,) * prompt.estimated_tokens)
        for prompt in fitting(prompts, policy.serving.max_prompt_tokens)
    ]
    settings = [SamplingSettings.from_dict(s) for s in sampling or artifact["sampling"]]
    found = servers_own_forward.plan(
        policy, artifact, prompts=estimated, sampling=settings, rates=rates
    )
    return {"gate": "equivalence", **found.estimate}
