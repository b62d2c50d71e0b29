"""A saving in seconds becomes value at each task's own duration, before and after."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from abandonment_cases import FIT
from hypothesis import given, settings
from hypothesis import strategies as st
from pricing_cases import ESSAY, curves, task

from gatekeeper.core.task_savings import MIN_SESSIONS, saved_seconds
from gatekeeper.core.task_worth import outside, worth, worth_ceiling, worth_interval
from gatekeeper.errors import InputError

EVEN = {"value": 1.0, "low": 1.0, "high": 1.0}
CURVE = {n: FIT[n] for n in ("time", "at_s", "log_odds", "slope", "sessions", "covariance")} | {
    "shortest_s": 0.1,
    "longest_s": 1000.0,
    "data": FIT["data"],
}
SURE = {**CURVE, "covariance": [[0.0, 0.0], [0.0, 0.0]]}


def drawn(table: Any, price: Any, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "log_ratio": math.log(2),
        "sd": 0.02,
        "pairs": 6,
        "confidence": 0.95,
        "ttft_s": 0.0,
        "ttft_ratio": EVEN,
        "replicates": 400,
        "rng": np.random.default_rng(1),
    }
    return worth_interval(table, price=price, **(given | changes))


def mixed(seed: int = 0, count: int = 30) -> Any:
    rng = np.random.default_rng(seed)
    return curves(
        [
            task(float(rng.gamma(2, 1)), float(rng.gamma(2, 2)), name=f"t{i}", session=f"s{i // 2}")
            for i in range(count)
        ]
    )


def by_hand(table: Any, cost: Any, ratio: float, harm: float = 0.0) -> float:
    """Mean of cost(before) − cost(after) over the tasks, one by one."""
    total = 0.0
    for _, row in table.iterrows():
        makespan = dict(zip(row["x"], row["makespan_s"], strict=True))
        after = np.interp(1 / ratio, row["x"], row["makespan_s"]) + row["calls"] * harm
        total += cost(makespan[1.0]) - cost(after)
    return total / len(table)


def leaving(duration: float) -> float:
    odds = FIT["log_odds"] + FIT["slope"] * math.log(duration / FIT["at_s"])
    return 1 / (1 + math.exp(-odds))


def stepped(duration: float) -> float:
    return 0.01 * max(0.0, min(duration, 6.0) - 2.0) + 0.03 * max(0.0, duration - 6.0)


STEPS = {"pieces": [[0, 0], [2, 0.01], [6, 0.03]]}


@pytest.mark.parametrize(("price", "cost"), [(SURE, leaving), (STEPS, stepped)])
def test_each_task_is_priced_at_its_own_durations(price: Any, cost: Any) -> None:
    # a quick and a slow task in each session, so that samples of sessions are all alike
    pair = [(0.5, 0.5), (10.0, 20.0)]
    table = curves(
        [
            task(decode, rest, name=f"t{i}-{rest}", session=f"s{i}")
            for i in range(8)
            for decode, rest in pair
        ]
    )
    found = drawn(table, price, sd=1e-9)
    exact = by_hand(table, cost, 2.0)
    assert found.value == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx((cost(1) - cost(0.75) + cost(30) - cost(25)) / 2)
    # and not what the mean task would give
    assert abs(cost(15.5) - cost(15.5 - 2.625) - exact) > 0.04 * exact


def test_a_mixture_of_tasks_is_the_mean_of_each() -> None:
    table = mixed()
    found = drawn(table, SURE, sd=1e-9)
    exact = by_hand(table, leaving, 2.0)
    assert found.value == pytest.approx(exact, rel=0.05)  # off by the resampling's own error
    assert found.low < exact < found.high


def test_alike_tasks_have_no_spread_and_give_the_curve_itself() -> None:
    found = drawn(ESSAY, SURE, sd=1e-9)
    for end in (found.low, found.value, found.high):
        assert end == pytest.approx(leaving(5.0) - leaving(4.4), rel=1e-6)
    assert worth_ceiling(ESSAY, price=SURE) == pytest.approx(leaving(5.0) - leaving(3.8))
    assert worth_ceiling(ESSAY, price=STEPS) == pytest.approx(stepped(5.0) - stepped(3.8))
    assert worth_ceiling(curves([]), price=STEPS) is None


@settings(deadline=None, max_examples=20)
@given(st.floats(0.001, 2.0), st.floats(-0.5, 1.5), st.floats(0.0, 0.4), st.integers(0, 50))
def test_one_price_for_every_second_is_the_seconds_times_it(
    rate: float, log_ratio: float, sd: float, seed: int
) -> None:
    table = mixed(seed, 14)
    given = {"log_ratio": log_ratio, "sd": sd, "pairs": 6, "confidence": 0.95, "replicates": 200}
    seconds = saved_seconds(table, **given, rng=np.random.default_rng(2))
    money = drawn(table, {"pieces": [[0, rate]]}, **given, rng=np.random.default_rng(2))
    for end in ("value", "low", "high"):
        expected = getattr(seconds, end) * rate
        assert getattr(money, end) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 50), st.floats(0.1, 1.2))
def test_more_speed_is_never_worth_less(seed: int, log_ratio: float) -> None:
    table = mixed(seed, 14)
    for price in (SURE, STEPS):
        some = drawn(table, price, log_ratio=log_ratio, replicates=100)
        more = drawn(table, price, log_ratio=log_ratio + 0.3, replicates=100)
        assert more.value >= some.value > 0
        assert some.value <= worth_ceiling(table, price=price) * 1.3  # resampled tasks differ


def test_the_curves_own_uncertainty_widens_the_interval() -> None:
    sure, unsure = drawn(ESSAY, SURE), drawn(ESSAY, CURVE)
    assert unsure.high - unsure.low > 2 * (sure.high - sure.low)
    fewer = drawn(ESSAY, {**CURVE, "sessions": 5})  # a t of 3 degrees of freedom
    assert fewer.high - fewer.low > 1.2 * (unsure.high - unsure.low)
    # a slope that may be 0 may mean that saved time is worth nothing
    flat = drawn(ESSAY, {**CURVE, "covariance": [[0.02, 0.0], [0.0, 1.0]]})
    assert flat.low < 0 < flat.value


def test_time_before_first_tokens_comes_off_each_task() -> None:
    harm = {"value": 1.1, "low": 0.9, "high": 1.5}
    found = drawn(ESSAY, SURE, sd=1e-9, ttft_s=0.4, ttft_ratio=harm)
    assert found.value == pytest.approx(leaving(5.0) - leaving(4.44), rel=1e-6)
    assert found.low == pytest.approx(leaving(5.0) - leaving(4.6), rel=1e-6)
    assert found.high == pytest.approx(leaving(5.0) - leaving(4.4), rel=1e-6)


def test_estimated_decode_times_widen_the_ends() -> None:
    rows = [task(1.2, 3.8, edges=(0.6, 1.4), grade="C", name=f"t{i}") for i in range(8)]
    found = drawn(curves(rows), SURE, sd=1e-9)
    assert found.value == pytest.approx(leaving(5.0) - leaving(4.4), rel=1e-6)
    assert found.low == pytest.approx(leaving(5.0) - leaving(5.0 - 0.36), rel=1e-6)
    assert found.high == pytest.approx(leaving(5.0) - leaving(5.0 - 0.84), rel=1e-6)


def test_outside_what_was_seen_a_saving_is_worth_nothing_and_a_loss_what_the_curve_says() -> None:
    seen = {**SURE, "shortest_s": 4.6, "longest_s": 60.0}
    part = drawn(ESSAY, seen, sd=1e-9)  # 5 s to 4.4 s, of which 4.6 s is the shortest seen
    assert part.value == pytest.approx(leaving(5.0) - leaving(4.6), rel=1e-6)
    beyond = {**SURE, "shortest_s": 0.5, "longest_s": 4.2}
    assert drawn(ESSAY, beyond, sd=1e-9).value == 0
    slower = drawn(ESSAY, beyond, sd=1e-9, log_ratio=-math.log(2))
    assert slower.value == pytest.approx(leaving(5.0) - leaving(6.2), rel=1e-6)
    assert outside(ESSAY, shortest_s=0.5, longest_s=4.2) == len(ESSAY)
    assert outside(ESSAY, shortest_s=0.5, longest_s=60.0) == 0
    assert outside(curves([]), shortest_s=0.5, longest_s=60.0) == 0


def test_tasks_of_one_session_are_one_observation() -> None:
    rng = np.random.default_rng(3)
    decode = rng.uniform(0.5, 3.0, 12)
    alone = curves([task(d, 2.0, name=f"s{i}") for i, d in enumerate(decode)])
    repeated = curves(
        [
            task(d, 2.0, name=f"s{i}-{k}", session=f"s{i}")
            for i, d in enumerate(decode)
            for k in range(9)
        ]
    )
    one, many = drawn(alone, SURE), drawn(repeated, SURE)
    assert many.high - many.low == pytest.approx(one.high - one.low)


def test_too_few_sessions_and_no_spread_are_no_interval() -> None:
    few = curves([task(1.2, 3.8, name=f"t{i}") for i in range(MIN_SESSIONS - 1)])
    assert drawn(few, SURE) is None
    assert drawn(curves([]), SURE) is None
    with pytest.raises(InputError):
        drawn(ESSAY, SURE, pairs=1)


def test_the_equation_is_one_end_of_the_interval() -> None:
    given = {
        "price": CURVE,
        "log_ratio": 0.5,
        "sd": 0.1,
        "pairs": 6,
        "confidence": 0.9,
        "ttft_s": 0.1,
        "ttft_ratio": {"value": 1.0, "low": 0.9, "high": 1.1},
        "replicates": 150,
    }
    whole = worth_interval(ESSAY, **given, rng=np.random.default_rng(4))
    for end in ("value", "low", "high"):
        assert worth(ESSAY, **given, seed=4, end=end) == getattr(whole, end)
