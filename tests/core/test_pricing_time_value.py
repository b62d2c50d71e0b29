"""Pricing by pieces, by an abandonment curve, and by bands of load."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from abandonment_cases import FIT, abandonment, pieces
from pricing_cases import ESSAY, MINIMUM, PRICES, curves, priced, serving, task

from gatekeeper.core.documents import leaves
from gatekeeper.core.equations import verify


def timed(*rules: dict[str, Any], **changes: Any) -> Any:
    prices = {"value_of_time": list(rules), "value_of_second": None, **changes.pop("prices", {})}
    return priced(prices=prices, **changes)


def leaving(duration: float) -> float:
    odds = FIT["log_odds"] + FIT["slope"] * math.log(duration / FIT["at_s"])
    return 1 / (1 + math.exp(-odds))


SURE = {"covariance": [[0.0, 0.0], [0.0, 0.0]]}
TWO = serving() | {
    "regions": [
        {**serving(1.5)["regions"][0], "concurrency": 1},
        {**serving(3.0)["regions"][0], "concurrency": 8},
    ],
    "gamma_by_concurrency": {"1": 4, "8": 4},
}


def test_one_price_declared_as_a_rule_or_a_piece_is_the_price_of_a_second() -> None:
    plain = priced()
    worth = PRICES["value_of_second"]
    for rule in ({"per_second": worth}, pieces((0, worth))):
        found = timed(rule)
        for end in ("value", "low", "high"):
            terms = (p.document["terms"]["latency_value"][end] for p in (found, plain))
            assert next(terms) == pytest.approx(next(terms), rel=1e-9)
        ceilings = (p.document["ceiling"]["per_task"] for p in (found, plain))
        assert next(ceilings) == pytest.approx(next(ceilings), rel=1e-9)
        assert found.value.low == pytest.approx(plain.value.low, rel=1e-9)


def test_one_price_and_a_piece_draw_first_tokens_alike() -> None:
    log = {"mean": 0.1, "sd": 0.3, "correlation": 0.4}
    late = serving(ttft_ratio={"ratio": 1.1, "low": 0.9, "high": 1.5}, log_ttft=log)
    worth = PRICES["value_of_second"]
    one, other = (
        p.document["terms"]["latency_value"]
        for p in (priced(serving=("run", late)), timed(pieces((0, worth)), serving=("run", late)))
    )
    assert one == pytest.approx(other, rel=1e-9)
    wider = timed(
        pieces((0, worth)),
        serving=("run", {**late, "regions": [{**late["regions"][0], "log_ttft": None}]}),
    )
    assert wider.document["terms"]["latency_value"]["low"] < other["low"]


def test_a_kept_task_is_worth_what_it_earns() -> None:
    found = timed(abandonment(0.4, **SURE), serving=("run", serving(spread=1e-7)))
    document = found.document
    kept = leaving(5.0) - leaving(4.4)
    assert document["time_value"]["kept"]["value"] == pytest.approx(kept, rel=1e-4)
    assert document["terms"]["latency_value"]["value"] == pytest.approx(0.4 * kept, rel=1e-4)
    top = leaving(5.0) - leaving(3.8)
    assert document["ceiling"] == {
        "saved_s": pytest.approx(1.2),
        "per_task": pytest.approx(0.4 * top),
    }
    assert document["saved_s"]["value"] == pytest.approx(0.6, rel=1e-4)  # seconds all the same
    assert document["time_value"]["kind"] == "abandonment"
    assert document["time_value"]["outside"] == 0


def test_seconds_that_nobody_minds_are_worth_nothing() -> None:
    free = timed(pieces((0, 0.0), (20, 1.0))).document
    assert free["terms"]["latency_value"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert free["ceiling"]["per_task"] == 0.0
    late = curves([task(1.2, 20.0, name=f"t{i}") for i in range(8)])
    dear = timed(pieces((0, 0.0), (20, 1.0)), curves=late).document
    assert dear["terms"]["latency_value"]["value"] == pytest.approx(0.6, rel=0.01)


def test_first_tokens_are_taken_off_at_each_tasks_duration() -> None:
    slower = serving(ttft_ratio={"ratio": 1.1, "low": 0.9, "high": 1.5})
    calm, late = timed(pieces((0, 0.01))), timed(pieces((0, 0.01)), serving=("run", slower))
    gap = calm.document["terms"]["latency_value"]["low"]
    gap -= late.document["terms"]["latency_value"]["low"]
    assert gap == pytest.approx(0.2 * 0.01)
    assert late.document["first_token_s"] == pytest.approx({"value": 0.04, "low": 0.0, "high": 0.2})


def test_without_the_value_of_a_kept_task_the_kept_tasks_are_still_shown() -> None:
    found = timed(abandonment(None))
    assert found.value is None
    assert found.document["unknown"] == ["latency_value"]
    assert found.document["time_value"]["kept"]["value"] > 0
    assert found.document["ceiling"]["per_task"] is None
    needs = found.document["still_needed"]
    assert any("value_of_time[0].abandonment.value_of_kept_task" in need for need in needs)


def test_tasks_outside_the_outcomes_are_counted() -> None:
    found = timed(abandonment(longest_s=4.5))
    assert found.document["time_value"]["outside"] == len(ESSAY)
    assert found.document["terms"]["latency_value"]["value"] < 0.4 * (leaving(4.5) - leaving(4.3))


def test_few_sessions_leave_the_worth_unknown_and_show_the_ceiling() -> None:
    few = curves([task(1.2, 3.8, name=f"t{i}") for i in range(4)])
    document = timed(abandonment(), curves=few).document
    assert document["terms"]["latency_value"] is None
    assert document["ceiling"]["per_task"] > 0
    assert document["sensitivity"] is None


# --- by load


def test_the_rule_of_the_level_holds() -> None:
    low, high = (
        {"max_concurrency": 2, "per_second": 0.02},
        {"min_concurrency": 3, "per_second": 9.0},
    )
    found = timed(low, high)  # the serving gate passed at 2
    assert found.document["time_value"]["where"] == "value_of_time[0]"
    twice = found.document["terms"]["latency_value"]["value"]
    assert twice == pytest.approx(2 * priced().document["terms"]["latency_value"]["value"])


def test_the_load_whose_value_is_least_prices_the_route() -> None:
    # at 8 the speed-up is greater, but a second is worth next to nothing
    rules = ({"max_concurrency": 2, "per_second": 0.01}, {"min_concurrency": 3, "per_second": 1e-5})
    found = timed(*rules, serving=("run", TWO))
    assert found.document["speedup"]["concurrency"] == 8
    rows = found.document["time_value"]["by_load"]
    assert [row["concurrency"] for row in rows] == [1, 8]
    assert rows[1]["total"] == found.document["total"]
    assert rows[0]["total"]["low"] > rows[1]["total"]["low"]
    # worth more there, the lower speed-up decides again
    other = timed(rules[0], {**rules[1], "per_second": 0.02}, serving=("run", TWO))
    assert other.document["speedup"]["concurrency"] == 1
    # one price at every load: as ever, and no table
    same = timed({"per_second": 0.01}, serving=("run", TWO)).document
    assert (same["speedup"]["concurrency"], same["time_value"]["by_load"]) == (1, [])


def test_a_load_without_a_price_leaves_the_value_unknown() -> None:
    found = timed({"max_concurrency": 2, "per_second": 0.01}, serving=("run", TWO))
    assert found.value is None
    assert found.document["time_value"]["kind"] is None
    assert [row["kind"] for row in found.document["time_value"]["by_load"]] == ["per_second", None]
    (need,) = [n for n in found.document["still_needed"] if "value_of_time" in n]
    assert "route prose at concurrency 8" in need
    # what holds everywhere else fills the gap
    rule = {"max_concurrency": 2, "per_second": 0.01}
    filled = timed(rule, serving=("run", TWO), prices={"value_of_second": 0.02})
    assert filled.value is not None


def test_rules_of_other_routes_price_nothing_here() -> None:
    found = timed({"routes": ["chat-*"], "per_second": 1.0})
    assert found.value is None
    mine = timed(
        {"routes": ["chat-*"], "per_second": 1.0}, {"routes": ["pro*"], **pieces((0, 0.01))}
    )
    assert mine.document["time_value"]["where"] == "value_of_time[1]"


def test_without_a_serving_gate_a_rule_for_every_load_gives_the_ceiling() -> None:
    assert timed(abandonment(), serving=None).document["ceiling"]["per_task"] > 0
    banded = timed({"max_concurrency": 4, **abandonment()}, serving=None).document
    assert banded["ceiling"]["per_task"] is None
    assert any("a load that is not known yet" in need for need in banded["still_needed"])


# --- claims


@pytest.mark.parametrize(
    "rules",
    [
        (pieces((0, 0.0), (2, 0.01), (4.5, 0.03)),),
        (abandonment(),),
        ({"max_concurrency": 2, **abandonment()}, {"min_concurrency": 3, **pieces((0, 0.01))}),
    ],
)
def test_every_figure_recomputes_from_the_curves_and_the_document(rules: Any) -> None:
    found = timed(*rules)
    checked = verify(found.claims, lambda name, sha: ESSAY)
    assert [row.reason for row in checked if not row.agrees] == []
    assert len({c.id for c in found.claims}) == len(found.claims)
    values = {c.value for c in found.claims}
    declared = {"economics", "minimum", "method", "speedup", "sensitivity", "narrowing"}
    shown = {k: v for k, v in found.document.items() if k not in declared}
    shown["time_value"] = {**shown["time_value"], "by_load": []}
    assert {v for _, v in leaves(shown) if isinstance(v, float)} <= values
    assert json.dumps(found.document, allow_nan=False)
    again = timed(*rules)
    assert again.document == found.document


def test_the_claims_of_a_curve_name_its_data_and_move_with_it() -> None:
    found = timed(abandonment())
    (claim,) = [c for c in found.claims if c.id == "value/prose/kept.low"]
    assert claim.inputs["price"]["data"] == FIT["data"]
    for name, value in (
        ("slope", 1.3),
        ("covariance", [[0.02, 0.0], [0.0, 0.02]]),
        ("sessions", 9),
    ):
        price = {**claim.inputs["price"], name: value}
        changed = replace(claim, inputs={**claim.inputs, "price": price})
        (checked,) = verify([changed], lambda table, sha: ESSAY)
        assert not checked.agrees, name
    (worth,) = [c for c in found.claims if c.id == "value/prose/latency_value.low"]
    assert (worth.equation, worth.inputs["kept"]) == ("value.kept_tasks", claim.value)


def test_the_value_is_held_to_the_policys_minimum() -> None:
    assert timed(abandonment(4.0)).value.low > MINIMUM.per_task
    assert timed(abandonment(0.0)).value.high < MINIMUM.per_task
