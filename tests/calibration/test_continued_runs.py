"""Running the gate again until it passes, or until it alarms, is no way round its bounds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from equivalence_runs import ARTIFACT, BUDGET, PROMPTS, Policy, info, run
from faults.markov import MarkovLM
from faults.stopping import false_alarms

from gatekeeper.core.verdicts import Outcome
from gatekeeper.gates import equivalence

if TYPE_CHECKING:
    from gatekeeper.core.policy_schema import EquivalenceBudget

pytestmark = pytest.mark.calibration

GATES, RUNS = 9, 4

FAULT, TOLERANCE = "greedy_match_accept", 0.17
"""The likeliest token comes up .177 too often in its windows: just beyond the tolerance."""


def test_running_again_until_it_alarms_does_not_raise_the_false_alarm_rate() -> None:
    runs, alpha = 4000, 0.05
    found = false_alarms(np.random.default_rng(0), runs=runs, reruns=10, alpha=alpha)
    assert 0.2 * alpha < found.continued <= alpha + 3 * (alpha * (1 - alpha) / runs) ** 0.5
    # What "a re-run continues the same process" is there to prevent:
    assert found.restarted > 2 * alpha


@cache
def model() -> MarkovLM:
    return MarkovLM.make(
        np.random.default_rng(1), vocabulary=100, contexts=128, spread=3.5, noise=0.8
    )


def budget(tolerance: float, alpha: float) -> EquivalenceBudget:
    """96 tokens a run: whoever looks after each run looks often."""
    return replace(
        BUDGET,
        alpha=alpha,
        greedy=replace(BUDGET.greedy, prompts=1),
        sampled=replace(BUDGET.sampled, min_tokens=96, max_tokens=96),
        tolerance=replace(BUDGET.tolerance, window=tolerance, bonus=2 * tolerance),
    )


def repeated(declared: EquivalenceBudget, seed: int, fault: str | None) -> list[Outcome]:
    """Outcomes of one gate run again and again until it is decided, at most RUNS times."""
    outcomes: list[Outcome] = []
    earlier = None
    while len(outcomes) < RUNS and (not outcomes or outcomes[-1] is Outcome.INCONCLUSIVE):
        before = equivalence.Before(0, 0) if earlier is None else earlier.before
        plan = equivalence.plan(
            Policy(declared), ARTIFACT, prompts=PROMPTS, seed=seed, before=before
        )
        tables = run(plan, model(), fault=fault, engine=info(), earlier=earlier).tables()
        outcomes.append(equivalence.evaluate(declared, tables).outcome)
        earlier = equivalence.Earlier(f"run-{len(outcomes)}", {}, tables)
    return outcomes


def test_exact_decoding_run_again_and_again_never_fails() -> None:
    ends = [repeated(budget(0.02, 0.001), seed, None)[-1] for seed in range(GATES)]
    assert ends.count(Outcome.FAIL) == 0  # alpha lets 0.009 be expected of 9 gates


def test_a_deviation_beyond_the_tolerance_run_again_and_again_does_not_pass() -> None:
    # the strict part is muted: the tolerance alone has to hold against repetition
    ends = [repeated(budget(TOLERANCE, 1e-99), seed, FAULT)[-1] for seed in range(GATES)]
    # 5 % of 9 are 0.45 gates; 3 are more than three standard deviations above
    assert ends.count(Outcome.PASS) < 3
    # and the tolerance is one that the same tokens of an exact engine meet
    exact = [repeated(budget(TOLERANCE, 1e-99), seed, None)[-1] for seed in range(3)]
    assert exact.count(Outcome.PASS) >= 2
