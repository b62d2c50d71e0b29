import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gatekeeper.core.stats import intervals
from gatekeeper.core.stats.noninferiority import (
    minimal_pairs,
    non_inferiority,
    pairs_needed,
    tango_interval,
    tango_score,
)
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError


def test_tangos_check_value() -> None:
    low, high = tango_interval(25, 28, 618, 0.9)
    assert (round(low, 4), round(high, 4)) == (-0.0148, 0.0247)


@pytest.mark.parametrize(
    ("margin", "one_sided_5", "one_sided_2_5"),
    [(0.05, 52, 73), (0.03, 88, 125), (0.02, 133, 189), (0.01, 268, 381)],
)
def test_smallest_n_that_can_pass(margin: float, one_sided_5: int, one_sided_2_5: int) -> None:
    assert minimal_pairs(margin, 0.05) == one_sided_5
    assert minimal_pairs(margin, 0.025) == one_sided_2_5
    assert non_inferiority(0, 0, one_sided_5, margin=margin, alpha=0.05).outcome is Outcome.PASS
    below = non_inferiority(0, 0, one_sided_5 - 1, margin=margin, alpha=0.05)
    assert below.outcome is Outcome.INCONCLUSIVE


def test_no_pairs_is_no_evidence() -> None:
    result = non_inferiority(0, 0, 0, margin=0.02, alpha=0.05)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.difference is None
    assert result.p_value is None


def test_few_pairs_never_pass_even_with_a_clear_gain() -> None:
    few = non_inferiority(0, 10, 20, margin=0.02, alpha=0.05)
    assert few.interval is not None
    assert few.interval[0] > -0.02
    assert few.outcome is Outcome.INCONCLUSIVE


def test_three_outcomes() -> None:
    assert non_inferiority(25, 28, 618, margin=0.02, alpha=0.05).outcome is Outcome.PASS
    assert non_inferiority(80, 20, 618, margin=0.02, alpha=0.05).outcome is Outcome.FAIL
    assert non_inferiority(30, 25, 618, margin=0.02, alpha=0.05).outcome is Outcome.INCONCLUSIVE


@given(st.integers(0, 40), st.integers(0, 40), st.integers(80, 500))
def test_interval_and_score_agree_and_mirror(b: int, c: int, n: int) -> None:
    low, high = tango_interval(b, c, n, 0.9)
    assert -1 <= low <= (c - b) / n <= high <= 1
    z = stats.norm.ppf(0.95)
    assert tango_score(b, c, n, low) == pytest.approx(z, abs=1e-5)
    assert tango_score(b, c, n, high) == pytest.approx(-z, abs=1e-5)
    mirrored = tango_interval(c, b, n, 0.9)
    assert mirrored == (pytest.approx(-high, abs=1e-8), pytest.approx(-low, abs=1e-8))


def test_the_score_is_the_constrained_maximum_likelihood_one() -> None:
    b, c, n, delta = 12, 7, 150, -0.03
    # P(baseline only) = q, P(candidate only) = q + delta: maximise the multinomial likelihood.
    grid = np.linspace(-delta + 1e-9, 0.5, 2_000_001)
    both = 1 - 2 * grid - delta
    likelihood = b * np.log(grid) + c * np.log(grid + delta) + (n - b - c) * np.log(both)
    q = grid[np.nanargmax(likelihood)]
    expected = ((c - b) - n * delta) / np.sqrt(n * (2 * q + delta - delta**2))
    assert tango_score(b, c, n, delta) == pytest.approx(expected, abs=1e-4)


def test_sample_sizes_of_the_design() -> None:
    assert pairs_needed(margin=0.02, discordance=0.05) == pytest.approx(1124, rel=0.03)
    assert pairs_needed(margin=0.02, discordance=0.10) == pytest.approx(2200, rel=0.03)
    assert minimal_pairs(0.02, 0.05) <= pairs_needed(margin=0.02, discordance=1e-6) <= 140


def test_planned_size_has_the_planned_power() -> None:
    rng = np.random.default_rng(0)
    n = pairs_needed(margin=0.05, discordance=0.1, power=0.8)
    cells = rng.multinomial(n, [0.05, 0.05, 0.9], 2000)
    passed = [
        non_inferiority(int(b), int(c), n, margin=0.05, alpha=0.05).outcome is Outcome.PASS
        for b, c, _ in cells
    ]
    assert np.mean(passed) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("b", "c", "n"), [(-1, 0, 10), (6, 5, 10), (0, 0, -1)])
def test_impossible_counts_are_refused(b: int, c: int, n: int) -> None:
    with pytest.raises(InputError):
        tango_interval(b, c, n)


@pytest.mark.parametrize(("margin", "alpha"), [(0, 0.05), (1, 0.05), (0.02, 0)])
def test_impossible_margins_are_refused(margin: float, alpha: float) -> None:
    with pytest.raises(InputError):
        non_inferiority(1, 1, 100, margin=margin, alpha=alpha)


def test_proportion_intervals_close_the_default_trap() -> None:
    low, high = intervals.wilson(0, 10)
    assert low == pytest.approx(0, abs=1e-12)
    assert high == pytest.approx(0.2775, abs=1e-3)
    assert intervals.clopper_pearson(0, 10)[1] == pytest.approx(1 - 0.025 ** (1 / 10))
    for count, n in ((0, 0), (3, 2), (-1, 5)):
        with pytest.raises(InputError):
            intervals.wilson(count, n)


def test_mcnemar_without_discordance_has_no_p_value() -> None:
    assert intervals.mcnemar(0, 0, 50).p_value is None
    assert intervals.mcnemar(0, 8, 50).p_value == pytest.approx(2 / 2**8)
    with pytest.raises(InputError):
        intervals.mcnemar(30, 30, 50)


def test_holm_refuses_a_nan_instead_of_rejecting_the_rest() -> None:
    assert intervals.holm([0.001, 0.5, 0.02], 0.05) == (True, False, True)
    assert intervals.holm([], 0.05) == ()
    with pytest.raises(InputError):
        intervals.holm([0.001, float("nan")], 0.05)


def test_goodness_of_fit_merges_sparse_bins_and_refuses_nothing_to_test() -> None:
    assert intervals.goodness_of_fit([0, 0], [0, 0]) is None
    assert intervals.goodness_of_fit([5, 3], [4, 4]) is None
    even = intervals.goodness_of_fit([50, 50, 1, 2], [50, 50, 1.5, 1.5])
    assert even == pytest.approx(1, abs=0.01)
    assert intervals.goodness_of_fit([90, 10], [50, 50]) < 1e-10
    # The sparse bins still count: dropping them would leave a perfect fit.
    assert intervals.goodness_of_fit([30, 30, 20, 20], [45, 45, 5, 5]) < 1e-6
    with pytest.raises(InputError):
        intervals.goodness_of_fit([1, 2], [1, 9])
