from __future__ import annotations

import math

import numpy as np
import pytest
from faults.markov import MarkovLM

from gatekeeper.core.stats.families import EPSILONS
from gatekeeper.core.stats.power import (
    REFERENCE,
    REFERENCE_EFFECTS,
    Effect,
    attainable,
    detectable_speedup,
    detection,
    effect_of,
    power,
    tokens_needed,
)


def test_the_smallest_provable_speedup_is_that_of_the_t_approximation() -> None:
    found = detectable_speedup(5, spread=0.1, confidence=0.95, target_power=0.9)
    # t quantiles with 4 degrees of freedom: 2.1318 at .95, 1.5332 at .9
    assert found == pytest.approx(math.exp((2.1318 + 1.5332) * 0.1 / math.sqrt(5)), rel=1e-4)
    more = detectable_speedup(20, spread=0.1, confidence=0.95, target_power=0.9)
    assert 1 < more < found


def test_power_grows_with_tokens_and_is_a_half_at_the_median() -> None:
    for median in REFERENCE.values():
        assert power(median, median, alpha=1e-3) == pytest.approx(0.5)
        assert power(median, median // 2, alpha=1e-3) < 0.5 < power(median, 2 * median, alpha=1e-3)
    assert power(500, 0, alpha=1e-3) == 0.0
    assert attainable(1000, alpha=1e-3).keys() == REFERENCE.keys()


def test_an_effect_is_the_divergence_of_the_likelihood_ratio() -> None:
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.3, 0.5]])
    found = effect_of(p, q, 0.1)
    law = 0.9 * p + 0.1 * q
    log_f = np.log(law / p)
    assert found.growth == pytest.approx(float((law * log_f).sum()))
    assert found.variance == pytest.approx(float((law * log_f**2).sum() - found.growth**2))
    # A share between two members is found by the better of them, later than by its own.
    own = 0.95 * p + 0.05 * q
    assert 0 < effect_of(p, q, 0.05).growth < float((own * np.log(own / p)).sum())
    assert effect_of(p, p, 0.1).growth == 0


def test_an_effect_stays_finite_where_the_target_rules_a_token_out() -> None:
    found = effect_of(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]), 0.3)
    assert math.isfinite(found.growth)
    assert math.isfinite(found.variance)


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.9])
def test_the_tokens_needed_are_the_fewest_with_that_power(wanted: float) -> None:
    for effect in REFERENCE_EFFECTS.values():
        n = tokens_needed(effect, alpha=1e-3, power=wanted)
        assert detection(effect, n - 1, alpha=1e-3) < wanted <= detection(effect, n, alpha=1e-3)
        assert tokens_needed(effect, alpha=1e-6, power=wanted) > n
    assert detection(REFERENCE_EFFECTS[0.1], 0, alpha=1e-3) == 0.0


def test_detection_is_the_first_passage_of_a_random_walk() -> None:
    effect = Effect(0.3, growth=0.025, variance=0.06)
    rng = np.random.default_rng(0)
    steps = rng.normal(effect.growth, effect.variance**0.5, (4000, 800))
    highest = np.maximum.accumulate(np.cumsum(steps, axis=1), axis=1)
    # What mixing costs: nine groups, six mixtures in theirs.
    level = math.log(1e3) + math.log(9 * 6)
    for n in (300, 500, 800):
        assert detection(effect, n, alpha=1e-3) == pytest.approx(
            float((highest[:, n - 1] >= level).mean()), abs=0.04
        )


def test_reference_effects_are_those_of_the_synthetic_model() -> None:
    lm = MarkovLM.make(np.random.default_rng(1), spread=4.5, noise=0.9)
    assert tuple(REFERENCE_EFFECTS) == EPSILONS
    for share, effect in REFERENCE_EFFECTS.items():
        found = effect_of(lm.p, lm.q, share)
        assert effect.share == share
        assert effect.growth == pytest.approx(found.growth, rel=0.01)
        assert effect.variance == pytest.approx(found.variance, rel=0.01)
