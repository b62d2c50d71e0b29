"""From a claimed run and an open engine to a verdict: the one place that knows the gates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gatekeeper import workloads
from gatekeeper.core.decoding import TokenPrompt
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, outcome, serving
from gatekeeper.protocols import ServerPair
from gatekeeper.worker.equivalence_run import begin, run_equivalence
from gatekeeper.worker.measured import Cancelled
from gatekeeper.worker.outcome_run import run_outcome
from gatekeeper.worker.servers_run import run_on_servers
from gatekeeper.worker.serving_run import run_serving
from gatekeeper.workloads import tasks as task_suite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.protocols import Engine
    from gatekeeper.worker.equivalence_run import Fetch
    from gatekeeper.worker.measured import Measured
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.worker.run import ClaimedRun
    from gatekeeper.workloads.tasks import Task

__all__ = ["GATES", "measure"]

GATES = ("equivalence", "serving", "outcome")
"""Gates that a worker can measure."""


def measure(
    run: ClaimedRun,
    engine: Engine | ServerPair,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
    *,
    prompts: Sequence[TokenPrompt] | None = None,
    tasks: Sequence[Task] | None = None,
    fetch: Fetch | None = None,
    scorer: Callable[[], Engine] | None = None,
) -> Measured:
    """Plan, run and judge the gate that a run asks for.

    ``prompts`` default to the shipped suite of the run's slice, in the target's own tokens,
    ``tasks`` of the outcome gate to the shipped task suite. The seed is the policy's unless the
    run's parameters name another: a repeated run draws the same requests, so repeating is no
    lottery. One that follows an inconclusive run goes on with its evidence, which ``fetch`` gets.
    ``scorer`` opens the files that two servers are said to have loaded.

    Raises:
        Cancelled: someone cancelled the run.
        InputError: a gate that workers cannot measure, or an unknown slice.
        EvidenceError: the run to continue has no sound evidence.
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
    if isinstance(engine, ServerPair):
        return run_on_servers(run, engine, tracker, cancelled, clock, scorer=scorer, fetch=fetch)
    if run.gate == "outcome":
        suite = tuple(task_suite.suite() if tasks is None else tasks)
        return _outcome(run, engine, tracker, cancelled, clock, tasks=suite)
    policy = run.policy
    if prompts is None:
        prompts = workloads.tokenised(
            run.slice, engine.tokenize, max_tokens=_longest_prompt(run, engine)
        )
    seed = int(run.parameters.get("seed", policy.equivalence.seed))
    end_tokens = engine.info.end_tokens
    if run.gate == "equivalence":
        make = partial(
            equivalence.plan,
            policy,
            run.artifact,
            prompts=prompts,
            sampling=run.sampling,
            end_tokens=end_tokens,
            seed=seed,
        )
        accumulator = begin(lambda before: make(before=before), engine.info, run.continues, fetch)
        return run_equivalence(accumulator, engine, tracker, cancelled, clock)
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


def _outcome(
    run: ClaimedRun,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
    *,
    tasks: tuple[Task, ...],
) -> Measured:
    """Tasks that do not fit the engine are left out, not cut."""
    policy, given = run.policy, run.parameters
    longest = engine.info.max_context - policy.outcome.max_tokens
    prompts = [TokenPrompt(task.id, task.kind, engine.tokenize(task.text)) for task in tasks]
    plan = outcome.plan(
        policy,
        run.artifact,
        tasks=[prompt for prompt in prompts if len(prompt.tokens) <= longest],
        suite=task_suite.digest(tasks),
        end_tokens=engine.info.end_tokens,
        seed=int(given.get("seed", policy.equivalence.seed)),
        gamma=given.get("gamma"),
        concurrency=given.get("concurrency"),
    )
    by_id = {task.id: task for task in tasks}
    return run_outcome(plan, engine, tracker, cancelled, clock, tasks=by_id)


def _longest_prompt(run: ClaimedRun, engine: Engine) -> int:
    """The policy's limit, or less where the engine could not fit the output behind the prompt."""
    policy = run.policy
    output = max(policy.serving.tokens_per_request, policy.equivalence.tokens_per_request)
    return min(policy.serving.max_prompt_tokens, engine.info.max_context - output)
