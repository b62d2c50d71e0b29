from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.progress import (
    break_even_progress,
    expected_progress,
    marginal_contribution,
    marginal_from_curve,
    ordinary_time,
    progress_from_curve,
    round_time,
    speedup,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

probability = st.floats(0, 1)
window = st.integers(0, 12)
curve = st.lists(probability, min_size=1, max_size=8)
seconds = st.floats(1e-4, 10)


def test_essay_figures() -> None:
    assert expected_progress(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert expected_progress(0.35, 4) == pytest.approx(1.53038125, abs=1e-12)
    assert round(speedup(3.3616, 22, 8, 18, 2), 2) == 2.64
    assert round(speedup(1.5304, 22, 16, 28, 3), 2) == 0.72
    assert marginal_contribution(0.5, 5) == 0.03125


@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
def test_limits_of_acceptance(gamma: int) -> None:
    assert expected_progress(1.0, gamma) == gamma + 1
    assert expected_progress(0.0, gamma) == 1.0


@given(probability, window)
def test_grows_with_gamma_by_the_marginal(alpha: float, gamma: int) -> None:
    step = expected_progress(alpha, gamma + 1) - expected_progress(alpha, gamma)
    assert step == pytest.approx(marginal_contribution(alpha, gamma + 1), abs=1e-12)
    assert 1 <= expected_progress(alpha, gamma) <= gamma + 1


@given(probability, probability, window)
def test_grows_with_alpha_and_is_convex(one: float, other: float, gamma: int) -> None:
    low, high = sorted((one, other))
    f_low, f_high = expected_progress(low, gamma), expected_progress(high, gamma)
    assert f_low <= f_high
    assert expected_progress((low + high) / 2, gamma) <= (f_low + f_high) / 2 + 1e-12


@given(st.floats(0, 0.999), window)
def test_sum_is_the_geometric_quotient(alpha: float, gamma: int) -> None:
    quotient = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert expected_progress(alpha, gamma) == pytest.approx(quotient, rel=1e-9)


@given(probability, st.integers(1, 8))
def test_a_flat_curve_is_constant_alpha(alpha: float, gamma: int) -> None:
    assert progress_from_curve([alpha] * gamma) == pytest.approx(expected_progress(alpha, gamma))


@given(curve)
def test_marginals_of_a_curve_fall_and_add_up(conditional: list[float]) -> None:
    marginals = [marginal_from_curve(conditional, i + 1) for i in range(len(conditional))]
    assert marginals == sorted(marginals, reverse=True)
    assert progress_from_curve(conditional) == pytest.approx(1 + math.fsum(marginals))


def test_curve_is_not_a_geometric_mean() -> None:
    # a late weak position costs less than an early one of the same strength
    assert progress_from_curve([0.9, 0.1]) > progress_from_curve([0.1, 0.9])
    assert progress_from_curve([0.5, 0.8]) == pytest.approx(1 + 0.5 + 0.4)


def test_a_window_beyond_the_measured_curve_is_refused() -> None:
    with pytest.raises(InputError, match="measured for 2"):
        progress_from_curve([0.5, 0.5], 3)


@given(seconds, seconds, seconds, seconds)
def test_break_even_is_where_speedup_is_one(
    t1: float, draft: float, verify: float, overhead: float
) -> None:
    progress = break_even_progress(t1, draft, verify, overhead)
    assert speedup(progress, t1, draft, verify, overhead) == pytest.approx(1)
    assert speedup(progress * 1.01, t1, draft, verify, overhead) > 1


def test_times() -> None:
    assert ordinary_time(3.3616, 22) == pytest.approx(73.9552)
    assert round_time(8, 18, 2) == 28


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: expected_progress(1.1, 2), "acceptance"),
        (lambda: expected_progress(math.nan, 2), "acceptance"),
        (lambda: expected_progress(0.5, -1), "gamma"),
        (lambda: marginal_contribution(0.5, 0), "position"),
        (lambda: progress_from_curve([0.5, -0.1]), "acceptance"),
        (lambda: speedup(2, 0, 1, 1), "step"),
        (lambda: speedup(2, 1, -1, 3), "draft_s"),
        (lambda: speedup(2, 1, 0, 0), "verify_s"),
    ],
)
def test_impossible_inputs_are_refused(call: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert refused.value.field == field
