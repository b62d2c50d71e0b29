from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatekeeper.core.step_times import CostPrior, StepTimes, batch_class
from gatekeeper.errors import InputError


def test_before_any_step_costs_have_the_declared_shape() -> None:
    costs = StepTimes(CostPrior(draft=0.1, verify=0.2)).costs(4, 3)
    assert costs.ordinary_s == 1.0
    assert costs.draft_s == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
    assert costs.verify_s == pytest.approx({1: 1.2, 2: 1.4, 3: 1.6})


def test_one_hiccup_moves_little() -> None:
    times = StepTimes()
    for seconds in (0.020, 0.021, 9.0, 0.019, 0.020):
        times.observe([0], seconds, None, None)
        times.observe([2], seconds + 0.01, seconds / 10, "ngram")
    costs = times.costs(1, 2, "ngram")
    assert costs.ordinary_s == pytest.approx((0.020 + 0.021 + 0.040 + 0.019 + 0.020) / 5)
    assert costs.verify_s[2] == pytest.approx((0.030 + 0.031 + 0.060 + 0.029 + 0.030) / 5)
    assert costs.draft_s[2] == pytest.approx(costs.ordinary_s / 10)


def test_a_window_that_is_seldom_dear_costs_its_mean() -> None:
    times = StepTimes()
    for seconds in (1.0, 1.0, 1.9, 1.0, 1.6):  # a look-up finds something in two rounds of five
        times.observe([4], seconds, 0.0, "ngram")
    assert times.costs(1, 4, "ngram").verify_s[4] == pytest.approx(1.3)


def test_only_the_latest_steps_count() -> None:
    times = StepTimes(CostPrior(samples=3))
    for seconds in (1.0, 1.0, 2.0, 2.0, 2.0):
        times.observe([0], seconds, None, None)
    assert times.costs(1, 1).ordinary_s == 2.0


def test_between_and_beyond_measured_windows_the_shape_carries_over() -> None:
    times = StepTimes(CostPrior(verify=0.0, draft=0.05))
    times.observe([0], 1.0, None, None)
    times.observe([4], 1.8, 0.4, None)
    costs = times.costs(1, 6)
    assert costs.verify_s == pytest.approx({1: 1.2, 2: 1.4, 3: 1.6, 4: 1.8, 5: 1.8, 6: 1.8})
    assert costs.draft_s == pytest.approx({g: 0.1 * g for g in range(1, 7)})


def test_batches_are_kept_apart_and_the_nearest_stands_in() -> None:
    times = StepTimes(CostPrior(verify=0.0))
    times.observe([0], 1.0, None, None)
    times.observe([0] * 4, 2.0, None, None)
    assert [times.costs(batch, 1).ordinary_s for batch in (1, 2, 3, 4, 8)] == [1, 1, 2, 2, 2]
    assert [batch_class(batch) for batch in (1, 8, 9, 16, 17, 64)] == [1, 8, 16, 16, 32, 64]


def test_a_step_of_mixed_windows_counts_for_their_mean_and_their_longest() -> None:
    times = StepTimes(CostPrior(verify=0.0))
    times.observe([0, 4, 2, 2], 1.5, 0.3, None)
    assert times.costs(4, 2).verify_s[2] == 1.5
    assert times.costs(3, 4).draft_s[4] == 0.3


def test_draft_times_are_kept_by_proposer_and_left_out_where_they_say_nothing() -> None:
    times = StepTimes(CostPrior(draft=0.5, verify=0.0))
    times.observe([1], 1.0, 0.2, "a")
    times.observe([1], 1.0, None, "b")
    assert times.costs(1, 1, "a").draft_s[1] == 0.2
    assert times.costs(1, 1, "b").draft_s[1] == 0.5


def test_an_ordinary_step_is_due_at_first_and_when_the_last_one_is_old() -> None:
    times = StepTimes(CostPrior(enough=2, stale=5))
    due = []
    for _ in range(12):
        due.append(times.ordinary_due(1))
        times.observe([0 if due[-1] else 3], 1.0, 0.1, None)
    assert due == [True, True, *[False] * 5, True, *[False] * 4]
    assert times.ordinary_due(2)


def test_an_ordinary_step_that_never_comes_is_waited_for_a_few_steps_only() -> None:
    times = StepTimes(CostPrior(enough=2, stale=6))
    due = []
    for step in range(12):
        due.append(times.ordinary_due(2))
        if step % 2:
            times.skip()
        else:
            times.observe([0 if due[-1] else 2, 3], 1.3, 0.1, None)  # a neighbour always drafts
    assert due == [*[True] * 4, *[False] * 6, True, True]
    # what is not measured is carried over by the shape
    assert times.costs(2, 3).ordinary_s < 1.3
    assert not StepTimes(CostPrior(enough=0)).ordinary_due(1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 6), min_size=1, max_size=12),
            st.floats(1e-4, 1e3),
            st.none() | st.floats(0, 1e3),
        ),
        max_size=30,
    ),
    st.integers(1, 20),
)
def test_costs_are_always_usable(
    steps: list[tuple[list[int], float, float | None]], batch: int
) -> None:
    times = StepTimes()
    for windows, rest_s, draft_s in steps:
        times.observe(windows, rest_s, draft_s, None)
    costs = times.costs(batch, 8)
    assert costs.ordinary_s > 0
    assert list(costs.draft_s) == list(costs.verify_s) == list(range(1, 9))
    assert all(value >= 0 for value in costs.draft_s.values())
    assert all(value > 0 for value in costs.verify_s.values())


@pytest.mark.parametrize(
    "changes", [{"draft": -0.1}, {"samples": 0}, {"enough": 16}, {"stale": 0}, {"verify": -1}]
)
def test_priors_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        CostPrior(**changes)
