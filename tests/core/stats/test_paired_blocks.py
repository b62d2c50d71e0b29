from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gatekeeper.core.stats.paired_blocks import (
    compare_differences,
    compare_ratios,
    detectable_log_ratio,
    judge,
    minimum_pairs,
    pairs_needed,
    sign_flip_p,
)
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError


def test_bounds_are_those_of_a_one_sided_t_test() -> None:
    rng = np.random.default_rng(1)
    base, fast = rng.lognormal(0, 0.1, 12), rng.lognormal(-0.2, 0.1, 12)
    found = compare_ratios(base, fast, confidence=0.95)
    logs = np.log(base / fast)
    assert found.ratio == pytest.approx(math.exp(logs.mean()))
    p = stats.ttest_1samp(logs, found.low, alternative="greater").pvalue
    assert p == pytest.approx(0.05, rel=1e-9)
    p = stats.ttest_1samp(logs, found.high, alternative="less").pvalue
    assert p == pytest.approx(0.05, rel=1e-9)


def test_a_block_and_its_reverse_give_reciprocal_ratios() -> None:
    one, two = [1.0, 1.2, 1.1, 0.9, 1.3], [0.8, 1.1, 0.7, 0.9, 1.0]
    there = compare_ratios(one, two, confidence=0.95)
    back = compare_ratios(two, one, confidence=0.95)
    assert there.ratio_low == pytest.approx(1 / back.ratio_high)


@pytest.mark.parametrize(
    ("top", "bottom"),
    [
        ([2.0] * 40, [1.0] * 40),  # constant: scipy's t would call it certain
        ([2.0, 2.1, 2.2], [1.0, 1.0, 1.0]),  # too few pairs for the level
        ([2.0, math.nan, 2.1, 2.2, 2.3, 2.4], [1.0] * 6),  # undefined in a block
        ([2.0, 0.0, 2.1, 2.2, 2.3, 2.4], [1.0] * 6),  # no logarithm
        ([], []),
    ],
)
def test_no_evidence_is_inconclusive_never_pass(top: Any, bottom: Any) -> None:
    found = compare_ratios(top, bottom, confidence=0.95)
    assert found.low is None
    assert found.problem
    assert judge(found, limit=0.0, want="above") is Outcome.INCONCLUSIVE
    assert judge(found, limit=0.0, want="below") is Outcome.INCONCLUSIVE


def test_constant_differences_are_no_evidence_either() -> None:
    found = compare_differences([3.0] * 20, [1.0] * 20, confidence=0.95)
    assert found.mean == 2.0
    assert judge(found, limit=0.0, want="above") is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("confidence", "pairs"), [(0.95, 5), (0.9, 4), (0.99, 7), (0.875, 3)])
def test_fewest_pairs_reach_the_level_by_signs_alone(confidence: float, pairs: int) -> None:
    assert minimum_pairs(confidence) == pairs
    assert 2.0**-pairs <= 1 - confidence + 1e-12


def test_confidence_below_one_half_is_refused() -> None:
    with pytest.raises(InputError):
        minimum_pairs(0.4)


def test_sign_flips_by_hand() -> None:
    # of the 8 sign patterns only +++ reaches the mean of (1, 2, 3)
    assert sign_flip_p([1.0, 2.0, 3.0], limit=0.0, side="above") == 1 / 8
    assert sign_flip_p([1.0, 2.0, 3.0], limit=0.0, side="below") == 1.0
    # (−1, 2, 3): +++ and the observed pattern
    assert sign_flip_p([-1.0, 2.0, 3.0], limit=0.0, side="above") == 2 / 8
    assert sign_flip_p([], limit=0.0, side="above") is None


def test_many_pairs_use_seeded_flips_close_to_the_exact_p() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0.4, 1.0, 14)
    exact = sign_flip_p(values, limit=0.0, side="above")
    values = np.append(values, 0.0)  # 15 values: Monte Carlo; a zero changes no comparison
    sampled = sign_flip_p(values, limit=0.0, side="above", seed=5)
    assert sampled == sign_flip_p(values, limit=0.0, side="above", seed=5)
    assert sampled == pytest.approx(exact, abs=0.02)


def test_one_wild_pair_cannot_carry_a_verdict() -> None:
    logs = np.array([0.02, -0.03, 0.01, -0.02, 0.03, 4.0])
    found = compare_ratios(np.exp(logs), np.ones(6), confidence=0.95)
    assert judge(found, limit=0.0, want="above") is Outcome.INCONCLUSIVE


def test_verdicts_on_both_sides_and_between() -> None:
    rng = np.random.default_rng(4)
    logs = rng.normal(0.2, 0.05, 10)
    found = compare_ratios(np.exp(logs), np.ones(10), confidence=0.95)
    assert judge(found, limit=0.0, want="above") is Outcome.PASS
    assert judge(found, limit=0.0, want="below") is Outcome.FAIL
    assert judge(found, limit=0.5, want="above") is Outcome.FAIL
    assert judge(found, limit=0.5, want="below") is Outcome.PASS
    assert judge(found, limit=float(logs.mean()), want="above") is Outcome.INCONCLUSIVE


@given(
    st.lists(st.floats(-2, 2), min_size=5, max_size=12),
    st.floats(-1, 1),
)
def test_never_both_sides_at_once(logs: list[float], limit: float) -> None:
    found = compare_ratios(np.exp(logs), np.ones(len(logs)), confidence=0.95)
    above = judge(found, limit=limit, want="above")
    below = judge(found, limit=limit, want="below")
    assert {above, below} in ({Outcome.PASS, Outcome.FAIL}, {Outcome.INCONCLUSIVE})


@pytest.mark.calibration
def test_false_passes_stay_at_the_level_and_power_is_what_the_plan_says() -> None:
    rng = np.random.default_rng(6)
    sd, n, runs = 0.1, 12, 1500
    gain = detectable_log_ratio(n, sd=sd, confidence=0.95, power=0.9)
    outcomes = {0.0: 0, gain: 0}
    for effect in outcomes:
        for logs in rng.normal(effect, sd, (runs, n)):
            found = compare_ratios(np.exp(logs), np.ones(n), confidence=0.95)
            outcomes[effect] += judge(found, limit=0.0, want="above") is Outcome.PASS
    assert outcomes[0.0] / runs < 0.065
    assert outcomes[gain] / runs == pytest.approx(0.9, abs=0.05)


def test_drift_between_pairs_does_not_count_as_noise_within_them() -> None:
    drift = np.exp(np.linspace(0, 3, 10))
    rng = np.random.default_rng(7)
    base = drift * rng.lognormal(0.1, 0.01, 10)
    fast = drift * rng.lognormal(0.0, 0.01, 10)
    found = compare_ratios(base, fast, confidence=0.95)
    assert judge(found, limit=0.0, want="above") is Outcome.PASS


def test_pairs_needed_shrink_with_the_effect_and_are_unknown_without_noise() -> None:
    rng = np.random.default_rng(8)
    noise = rng.normal(0, 0.1, 8)
    small = compare_ratios(np.exp(noise - noise.mean() + 0.02), np.ones(8), confidence=0.95)
    large = compare_ratios(np.exp(noise - noise.mean() + 0.1), np.ones(8), confidence=0.95)
    few, many = pairs_needed(large, limit=0.0), pairs_needed(small, limit=0.0)
    assert 8 < few < many
    gain = detectable_log_ratio(few, sd=large.sd, confidence=0.95)
    assert gain <= 0.1
    none = compare_ratios([2.0] * 8, [1.0] * 8, confidence=0.95)
    assert pairs_needed(none, limit=0.0) is None
    exactly = compare_ratios(np.exp(noise - noise.mean()), np.ones(8), confidence=0.95)
    assert pairs_needed(exactly, limit=0.0, at_most=1000) is None


def test_the_t_bound_alone_is_not_enough() -> None:
    # two of 32 sign patterns reach this mean: p = .0625, although t puts it far above 0
    logs = np.array([-0.001, 1.0, 1.05, 0.95, 1.0])
    found = compare_ratios(np.exp(logs), np.ones(5), confidence=0.95)
    assert found.low > 0
    assert sign_flip_p(logs, limit=0.0, side="above") == 2 / 32
    assert judge(found, limit=0.0, want="above") is Outcome.INCONCLUSIVE
