"""The table of flips: at each figure the decision turns, and where none is given it does not."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from abandonment_cases import abandonment, pieces
from hypothesis import given, settings
from hypothesis import strategies as st
from pricing_cases import OUTCOME, PRICES, curves, priced, serving, task

from gatekeeper.core import pricing, pricing_sensitivity
from gatekeeper.core.policy_schema import MinimumValue

SLOW = serving(1.05, ttft_ratio={"ratio": 1.2, "low": 1.1, "high": 1.3})
WIDE = {"difference": -0.02, "interval": [-0.2, 0.1]}
ENERGY = {"declared": True, "added_watt_hours_per_task": 0.5, "price_per_kwh": 0.3}

TWO = serving() | {
    "regions": [
        {**serving(1.5)["regions"][0], "concurrency": 1},
        {**serving(3.0)["regions"][0], "concurrency": 8},
    ],
    "gamma_by_concurrency": {"1": 4, "8": 4},
}


def bands(low: float, high: float) -> dict[str, Any]:
    """Two loads, each with its price of a second."""
    rules = [{"max_concurrency": 2, "per_second": low}, {"min_concurrency": 3, "per_second": high}]
    prices = {"value_of_second": None, "value_of_time": rules}
    return {"serving": ("run", TWO), "prices": prices}


CASES: dict[str, dict[str, Any]] = {
    "above": {},
    "below": {"serving": ("run", SLOW), "prices": {"value_of_second": 0.001}},
    "astride": {"outcome": ("run", WIDE), "prices": {"cost_per_failure": 0.05}},
    "goodput": {"serving": ("run", serving(slo=True)), "prices": {"tasks_per_month": 2e7}},
    "energy": {"prices": {"energy": ENERGY, "target_occupancy": 0.2}},
    "pieces": {"prices": {"value_of_second": None, "value_of_time": [pieces((0, 0.0), (4, 0.03))]}},
    "abandonment": {"prices": {"value_of_second": None, "value_of_time": [abandonment()]}},
    "rule": {"prices": {"value_of_second": None, "value_of_time": [{"per_second": 0.02}]}},
    "bands": bands(0.001, 0.01),
    "bands above": bands(0.01, 0.02),
    "dear draft": {
        "prices": {"draft": {"device_cost_per_hour": 2.0, "memory_cost_per_gib_hour": 0.5}}
    },
}


def put(arguments: dict[str, Any], name: str, value: float) -> dict[str, Any]:
    """The same pricing with one input changed, as its owner would change it."""
    changed = copy.deepcopy(arguments)
    if name == "minimum_value":
        return {**changed, "minimum": MinimumValue(value, "EUR")}
    if name == "success_difference":
        outcome = changed.get("outcome", ("run-o", OUTCOME))[1]
        by = value - outcome["difference"]
        ends = [max(-1.0, min(1.0, end + by)) for end in outcome["interval"]]
        return {**changed, "outcome": ("run", {"difference": value, "interval": ends})}
    if name in {"speedup", "ttft_ratio", "throughput_ratio"}:
        run, summary = changed.get("serving", ("run-s", serving()))
        summary = copy.deepcopy(summary)
        row = summary["regions"][0]
        if name == "speedup":
            row["log_speedup"]["mean"] = math.log(value)
        else:
            by = value / row[name]["ratio"]
            row[name] = {end: ratio * by for end, ratio in row[name].items()}
        return {**changed, "serving": (run, summary)}
    prices = changed.setdefault("prices", {})
    if name.startswith("value_of_time[0]"):
        rule = prices["value_of_time"][0]
        if name.endswith("per_second"):
            rule["per_second"] = value
        elif name.endswith("piecewise"):
            for piece in rule["piecewise"]:
                piece["per_s"] *= value
        else:
            rule["abandonment"]["value_of_kept_task"] = value
        return changed
    holder, _, last = name.rpartition(".")
    if holder:
        prices[holder] = {**prices.get(holder, PRICES.get(holder)), last: value}
    else:
        prices[last] = value
    return changed


def above(arguments: dict[str, Any]) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        for table in ("sensitivity", "narrowing"):
            patch.setattr(pricing, table, lambda *_: None)  # the value alone is asked for
        found = priced(**arguments)
    minimum = arguments.get("minimum", MinimumValue(0.001, "EUR"))
    assert found.value is not None
    return bool(found.value.low > (0.0 if minimum is None else minimum.per_task))


@pytest.mark.parametrize("name", CASES)
def test_on_either_side_of_each_figure_the_decision_is_another(name: str) -> None:
    arguments = CASES[name]
    table = priced(**arguments).document["sensitivity"]
    now = above(arguments)
    assert (table["answer"] == "above") == now
    flips = 0
    for row in table["rows"]:
        if row["flips_at"] is None:
            for bound in row["bounds"]:
                if bound is not None:
                    assert above(put(arguments, row["input"], bound)) == now, row
            continue
        at, start = row["flips_at"], row["now"]
        step = 1e-6 * max(abs(at), abs(at - start))
        further = math.copysign(step, at - start)
        assert above(put(arguments, row["input"], at - further)) == now, row
        assert above(put(arguments, row["input"], at + further)) != now, row
        low, high = row["bounds"]
        assert low is None or at >= low
        assert high is None or at <= high
        if start:
            assert row["change"] == pytest.approx((at - start) / abs(start))
        flips += 1
    assert flips >= 3
    changes = [abs(row["change"]) for row in table["rows"] if row["change"] is not None]
    assert changes == sorted(changes)


def test_every_known_input_has_a_row_with_its_value_now() -> None:
    rows = {
        r["input"]: r for r in priced(prices={"energy": ENERGY}).document["sensitivity"]["rows"]
    }
    assert set(rows) == {
        "value_of_second",
        "replica_cost_per_hour",
        "draft.device_cost_per_hour",
        "draft.memory_cost_per_gib_hour",
        "operations_per_month",
        "tasks_per_month",
        "cost_per_failure",
        "energy.added_watt_hours_per_task",
        "energy.price_per_kwh",
        "target_occupancy",
        "speedup",
        "ttft_ratio",
        "throughput_ratio",
        "success_difference",
        "minimum_value",
    }
    assert rows["value_of_second"]["now"] == PRICES["value_of_second"]
    assert rows["speedup"]["now"] == pytest.approx(2.0)
    assert rows["target_occupancy"]["now"] == 0.5  # measured at concurrency 2
    assert rows["energy.added_watt_hours_per_task"]["bounds"] == [None, None]
    # with objectives, capacity is replicas and no share of one
    whole = priced(serving=("run", serving(slo=True))).document["sensitivity"]["rows"]
    assert {"target_occupancy", "throughput_ratio"}.isdisjoint(r["input"] for r in whole)


def test_an_input_that_cannot_flip_it_says_so() -> None:
    rows = {r["input"]: r for r in priced().document["sensitivity"]["rows"]}
    assert rows["replica_cost_per_hour"]["flips_at"] is None  # dearer replicas only help
    assert rows["replica_cost_per_hour"]["change"] is None
    hidden = curves([task(1.2, 3.8, beside=2.0, name=f"t{i}") for i in range(8)])
    worthless = {r["input"]: r for r in priced(curves=hidden).document["sensitivity"]["rows"]}
    # no price of a second makes hidden decoding worth it
    assert worthless["value_of_second"]["flips_at"] is None
    assert worthless["speedup"]["flips_at"] is None


def test_the_price_of_a_second_is_that_of_the_break_even_sentence() -> None:
    found = priced()
    (even,) = [c.value for c in found.claims if c.id == "value/prose/change.value_of_second"]
    rows = {r["input"]: r["flips_at"] for r in found.document["sensitivity"]["rows"]}
    assert rows["value_of_second"] == pytest.approx(even, rel=1e-9)
    assert rows["minimum_value"] == found.value.low


def test_no_price_of_one_load_makes_up_for_another() -> None:
    # both loads are below the minimum: whichever is dearer, the other prices the route
    rows = priced(**bands(0.0005, 0.0004)).document["sensitivity"]["rows"]
    (row,) = [r for r in rows if r["input"].startswith("value_of_time")]
    assert row["flips_at"] is None
    (more,) = [
        r
        for r in priced(**bands(0.0005, 0.01)).document["sensitivity"]["rows"]
        if r["input"].startswith("value_of_time")
    ]
    assert more["flips_at"] > 0.0005


def test_while_the_value_is_unknown_nothing_is_said_to_flip_it() -> None:
    assert priced(outcome=None).document["sensitivity"] is None
    assert priced(minimum=MinimumValue(0.001, "USD")).document["sensitivity"] is None


def test_without_a_minimum_the_decision_turns_at_0() -> None:
    table = priced(minimum=None).document["sensitivity"]
    assert table["minimum"] == 0.0
    assert "minimum_value" not in {row["input"] for row in table["rows"]}


def test_a_draft_that_no_number_of_tasks_carries_has_no_row() -> None:
    free = {"draft": {"device_cost_per_hour": 0.0, "memory_cost_per_gib_hour": 0.0}}
    document = priced(
        prices={**free, "tasks_per_month": None, "operations_per_month": 0.0}
    ).document
    names = {row["input"] for row in document["sensitivity"]["rows"]}
    assert "operations_per_month" not in names
    assert not any(name.startswith("draft.") for name in names)


def test_many_tasks_are_searched_with_fewer_draws_and_from_where_we_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = curves([task(1.0 + 0.05 * i, 3.0, name=f"t{i}") for i in range(30)])
    noisy = ("run", serving(spread=0.2))
    low = priced(curves=table, serving=noisy).value.low

    def flip(minimum: float) -> tuple[float, float]:
        found = priced(curves=table, serving=noisy, minimum=MinimumValue(minimum, "EUR"))
        rows = {row["input"]: row for row in found.document["sensitivity"]["rows"]}
        return rows["speedup"]["now"], rows["speedup"]["flips_at"]

    _, whole = flip(0.5 * low)
    monkeypatch.setattr(pricing_sensitivity, "_DRAWN_CELLS", 30 * 200)
    _, fewer = flip(0.5 * low)
    assert fewer != whole
    assert fewer == pytest.approx(whole, rel=0.02)
    # where the value all but meets the minimum, so does the speed-up that was measured
    now, near = flip(low * (1 - 1e-6))
    assert near == pytest.approx(now, rel=1e-5)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.001, 0.1), st.floats(1.02, 4.0), st.floats(0.0, 0.02))
def test_the_answer_is_where_the_value_stands(price: float, ratio: float, minimum: float) -> None:
    found = priced(
        prices={"value_of_second": price},
        serving=("run", serving(ratio)),
        minimum=MinimumValue(minimum, "EUR"),
    )
    low, high = found.value.low, found.value.high
    table = found.document["sensitivity"]
    assert table["answer"] == (
        "above" if low > minimum else "below" if high < minimum else "astride"
    )
    for row in table["rows"]:
        assert row["flips_at"] is None or math.isfinite(row["flips_at"])
