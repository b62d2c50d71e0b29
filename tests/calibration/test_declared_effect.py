"""The plan's promise: a declared effect is found as often as declared, and PASS is no lottery."""

import numpy as np
import pytest
from faults.detection import ALPHA, side_by_side, tokens_to_alarm
from faults.effect import leaking
from faults.markov import MarkovLM
from faults.stopping import false_passes
from faults.synthetic import decode_with

from gatekeeper.core.stats.power import REFERENCE_EFFECTS, tokens_needed

pytestmark = pytest.mark.calibration


def test_a_declared_effect_is_found_as_often_as_declared() -> None:
    lm = MarkovLM.make(np.random.default_rng(1), spread=4.5, noise=0.9)
    effect = REFERENCE_EFFECTS[0.3]
    needed = {power: tokens_needed(effect, alpha=ALPHA, power=power) for power in (0.75, 0.9)}
    found = []
    for run in range(60):
        evidence = decode_with(
            leaking(0.3),
            lm,
            np.random.default_rng(90_000 + run),
            requests=-(-needed[0.9] // 32),
            tokens=32,
        )
        found.append(tokens_to_alarm(side_by_side(evidence), lm, run))
    # 60 runs: standard errors of .056 and .039. 400 runs are in `make verify STAGE=detection`.
    assert abs(np.mean(np.array(found) <= needed[0.75]) - 0.75) <= 0.05 + 0.056
    assert abs(np.mean(np.array(found) <= needed[0.9]) - 0.9) <= 0.05 + 0.039


def test_running_again_until_it_passes_does_not_raise_the_false_pass_rate() -> None:
    runs, alpha = 1000, 0.05
    found = false_passes(np.random.default_rng(0), runs=runs, reruns=10)
    assert found.continued <= alpha + 3 * (alpha * (1 - alpha) / runs) ** 0.5
    # What "a re-run continues the same sequence" is there to prevent:
    assert found.restarted > 2 * alpha
