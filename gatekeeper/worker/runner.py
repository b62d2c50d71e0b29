"""From a claimed run and an open engine to a verdict: the one place that knows the gates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gatekeeper import workloads
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, serving
from gatekeeper.worker.equivalence_run import run_equivalence
from gatekeeper.worker.measured import Cancelled
from gatekeeper.worker.serving_run import run_serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import TokenPrompt
    from gatekeeper.protocols import Engine
    from gatekeeper.worker.measured import Measured
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["GATES", "measure"]

GATES = ("equivalence", "serving")
"""Gates that a worker can measure."""


def measure(
    run: ClaimedRun,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
    *,
    prompts: Sequence[TokenPrompt] | None = None,
) -> Measured:
    """Plan, run and judge the gate that a run asks for.

    ``prompts`` default to the shipped suite of the run's slice, in the target's own tokens. The
    seed is the policy's unless the run's parameters name another: a repeated run draws the same
    requests, so repeating is no lottery.

    Raises:
        Cancelled: someone cancelled the run.
        InputError: a gate that workers cannot measure, or an unknown slice.
    """
    if run.gate not in GATES:
        raise InputError(
            "cannot be measured by this worker",
            field="gate",
            value=run.gate,
            remedy=f"use one of {', '.join(GATES)}",
        )
    if cancelled():
        raise Cancelled
    policy = run.policy
    if prompts is None:
        prompts = workloads.tokenised(
            run.slice, engine.tokenize, max_tokens=_longest_prompt(run, engine)
        )
    seed = int(run.parameters.get("seed", policy.equivalence.seed))
    end_tokens = engine.info.end_tokens
    if run.gate == "equivalence":
        exactness = equivalence.plan(
            policy,
            run.artifact,
            prompts=prompts,
            sampling=run.sampling,
            end_tokens=end_tokens,
            seed=seed,
        )
        return run_equivalence(exactness, engine, tracker, cancelled, clock)
    budget = policy.serving if run.slo is None else replace(policy.serving, slo=run.slo)
    blocks = serving.plan(
        policy,
        run.artifact,
        prompts=prompts,
        sampling=run.sampling,
        end_tokens=end_tokens,
        seed=seed,
        budget=budget,
    )
    return run_serving(blocks, engine, tracker, cancelled, clock)


def _longest_prompt(run: ClaimedRun, engine: Engine) -> int:
    """The policy's limit, or less where the engine could not fit the output behind the prompt."""
    policy = run.policy
    output = max(policy.serving.tokens_per_request, policy.equivalence.tokens_per_request)
    return min(policy.serving.max_prompt_tokens, engine.info.max_context - output)
