"""Equivalence runs on a synthetic model without an engine: plans, finished requests, tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from faults.synthetic import MarkovLM, decode

from gatekeeper.core.decoding import SamplingSettings, TokenPrompt
from gatekeeper.core.policy_schema import (
    EquivalenceBudget,
    GreedyBudget,
    SampledBudget,
    ToleranceBudget,
)
from gatekeeper.gates import equivalence
from gatekeeper.protocols import Emission, EngineInfo, Scored

if TYPE_CHECKING:
    from collections.abc import Callable

V = 100
HOT = SamplingSettings(temperature=1.0)
WARM = SamplingSettings(temperature=0.7, top_p=0.9)
PROMPTS = [TokenPrompt(f"p{i}", "prose", (1, 2, i)) for i in range(8)]
ARTIFACT = {
    "gamma": 4,
    "proposer": {"kind": "draft_lm"},
    "acceptance": {"method": "standard", "contract": "exact"},
}
BUDGET = EquivalenceBudget(
    alpha=0.001,
    seed=5,
    max_batch=4,
    replicates=2,
    tokens_per_request=32,
    greedy=GreedyBudget(prompts=3, tau_sigma=10),
    sampled=SampledBudget(min_tokens=600, max_tokens=1800, settings=(HOT,), gammas=(1,)),
    tolerance=ToleranceBudget(window=0.08, bonus=0.12),
)


class Policy:
    """The two fields that the plan reads."""

    def __init__(self, budget: EquivalenceBudget = BUDGET, served: tuple[int, ...] = ()) -> None:
        self.equivalence = budget
        self.serving = SimpleNamespace(gammas=served)


def make_plan(
    budget: EquivalenceBudget = BUDGET, artifact: dict[str, Any] = ARTIFACT, **kwargs: Any
) -> equivalence.Plan:
    return equivalence.plan(
        Policy(budget), artifact, **{"prompts": PROMPTS, "end_tokens": (), **kwargs}
    )


def info(rule: str = "deficit", dtype: str = "float32") -> EngineInfo:
    return EngineInfo("fake", "1", "cpu", dtype, V, 512, 4, (), rule)


def model() -> MarkovLM:
    return MarkovLM.make(
        np.random.default_rng(1), vocabulary=V, contexts=512, spread=3.5, noise=0.8
    )


def greedy_result(trial: equivalence.Trial, *, broken: bool) -> tuple[list[Emission], Scored]:
    n = trial.request.max_tokens
    token = (np.arange(n) * 7 + trial.prompt) % V
    deficit = np.zeros(n, dtype=np.float32)
    if broken and trial.arm == equivalence.SPECULATIVE:
        token[5] = (token[5] + 1) % V
        deficit[5] = 0.5
    p = np.eye(V, dtype=np.float32)[token]
    emission = Emission(
        trial.request.request_id, 0, tuple(token.tolist()), (0,) * n, tuple(token.tolist())
    )
    return [emission], Scored(p, deficit)


def sampled_result(
    trial: equivalence.Trial, lm: MarkovLM, fault: str | None
) -> tuple[list[Emission], Scored]:
    (e,) = decode(
        lm,
        np.random.default_rng(trial.request.seed),
        requests=1,
        tokens=trial.request.max_tokens,
        gamma=trial.request.gamma,
        fault=fault,
        prompts=1000,
        first_request=trial.prompt,
    )
    emissions = []
    for number in np.unique(e.round):
        at = np.flatnonzero(e.round == number)
        emissions.append(
            Emission(
                trial.request.request_id,
                int(number),
                tuple(e.token[at].tolist()),
                tuple(e.kind[at].tolist()),
                tuple(e.draft[at].tolist()),
                e.q[at],
            )
        )
    return emissions, Scored(e.p, np.zeros(e.rows, dtype=np.float32))


def run(
    plan: equivalence.Plan,
    lm: MarkovLM,
    *,
    fault: str | None = None,
    greedy_broken: bool = False,
    engine: EngineInfo | None = None,
    earlier: equivalence.Earlier | None = None,
    order: Callable[..., Any] | None = None,
) -> equivalence.Accumulator:
    accumulator = equivalence.Accumulator(plan, engine or info(), earlier=earlier)
    trials = plan.trials if order is None else order(plan.trials)
    for trial in trials:
        if accumulator.settled:
            break
        if trial.arm == equivalence.SAMPLED:
            emissions, scored = sampled_result(trial, lm, fault)
        else:
            emissions, scored = greedy_result(trial, broken=greedy_broken)
        accumulator.add(trial, equivalence.evidence_of(trial, emissions, scored), scored)
    return accumulator
