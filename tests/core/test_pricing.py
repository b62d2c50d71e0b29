from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pricing_cases as cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pricing_cases import ESSAY, GRID, OUTCOME, PRICES, curves, priced, serving, task

from gatekeeper.core.documents import leaves
from gatekeeper.core.equations import verify
from gatekeeper.core.pricing_level import serving_capacity
from gatekeeper.core.saving_curve import GRID as INGESTED
from gatekeeper.core.task_savings import (
    MIN_SESSIONS,
    excluded,
    saved_seconds,
    speedup_needed,
)
from gatekeeper.core.value import ValueInterval
from gatekeeper.errors import InputError

TERMS = (
    "latency_value",
    "avoided_target_capacity",
    "draft_capacity_and_memory",
    "operational_cost",
    "expected_quality_loss",
)


def drawn(table: Any, **changes: Any) -> Any:
    given = {"log_ratio": math.log(2), "sd": 0.02, "pairs": 6, "confidence": 0.95}
    rng = np.random.default_rng(1)
    return saved_seconds(table, **(given | {"replicates": 500, "rng": rng} | changes))


def test_the_grid_here_is_that_of_ingested_tasks() -> None:
    assert [float(x) for x in INGESTED] == pytest.approx(GRID)


# --- seconds


def test_the_essays_task_at_twice_the_speed_saves_twelve_percent() -> None:
    found = drawn(ESSAY, sd=1e-6)
    assert found.value / 5.0 == pytest.approx(0.12, rel=1e-4)
    assert found.low == pytest.approx(found.high, rel=1e-4)
    document = priced().document
    assert document["ceiling"]["saved_s"] == pytest.approx(1.2)
    assert document["ceiling"]["per_task"] == pytest.approx(1.2 * PRICES["value_of_second"])


def test_decoding_beside_a_slow_tool_saves_nothing() -> None:
    hidden = curves([task(1.2, 3.8, beside=2.0, name=f"t{i}") for i in range(8)])
    document = priced(curves=hidden).document
    assert document["ceiling"]["saved_s"] == 0
    assert document["saved_s"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert document["total"]["high"] < cases.MINIMUM.per_task


def test_partly_hidden_decoding_saves_until_the_tool_is_the_longer_one() -> None:
    partly = curves([task(2.0, 1.0, beside=1.5, name=f"t{i}") for i in range(6)])
    assert drawn(partly, log_ratio=math.log(4), sd=1e-6).value == pytest.approx(0.5)


@settings(deadline=None, max_examples=25)  # each example resamples thousands of times
@given(st.floats(0.05, 1.0), st.integers(3, 40))
def test_the_mean_of_draws_never_exceeds_the_saving_at_the_mean_ratio(
    sd: float, pairs: int
) -> None:
    # T is convex in x = 1/s, and 1/s averages to more than 1 / the geometric mean of s.
    found = drawn(ESSAY, sd=sd, pairs=pairs, log_ratio=0.3, replicates=4000)
    assert found.value <= 1.2 * (1 - math.exp(-0.3)) + 0.02
    assert found.low <= found.value <= found.high


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
    apart = curves([task(d, 2.0, name=f"s{i}-{k}") for i, d in enumerate(decode) for k in range(9)])
    widths = [f.high - f.low for f in (drawn(alone), drawn(repeated), drawn(apart))]
    assert widths[0] == pytest.approx(widths[1])
    assert widths[2] < widths[0] / 2


def test_a_noisier_speed_up_and_an_estimated_decode_time_widen_the_interval() -> None:
    calm, noisy = drawn(ESSAY), drawn(ESSAY, sd=0.3)
    assert noisy.high - noisy.low > 3 * (calm.high - calm.low)
    rows = [task(1.2, 3.8, edges=(0.6, 1.4), grade="C", name=f"t{i}") for i in range(8)]
    estimated = drawn(curves(rows))
    assert estimated.value == pytest.approx(calm.value)
    assert estimated.low == pytest.approx(0.6 * calm.low)
    assert estimated.high == pytest.approx(1.4 * calm.high)


def test_too_few_sessions_give_no_interval_and_say_so() -> None:
    few = curves([task(1.2, 3.8, name=f"t{i}") for i in range(MIN_SESSIONS - 1)])
    assert drawn(few) is None
    document = priced(curves=few).document
    assert (document["saved_s"], document["total"]) == (None, None)
    assert document["ceiling"]["saved_s"] == pytest.approx(1.2)  # the ceiling needs no interval
    assert document["unknown"] == ["latency_value"]
    assert any("5 sessions" in need and "there are 4" in need for need in document["still_needed"])
    one_session = curves([task(1.2, 3.8, name=f"t{i}", session="s") for i in range(50)])
    assert priced(curves=one_session).value is None


def test_without_tasks_nothing_is_known_but_what_is_missing() -> None:
    priced_nothing = priced(curves=curves([]))
    assert priced_nothing.value is None
    assert priced_nothing.document["ceiling"] == {"saved_s": None, "per_task": None}
    assert priced_nothing.document["tasks"] == 0


def test_what_must_not_be_priced_is_counted_and_left_out() -> None:
    unpriceable = [
        task(9.0, 1.0, grade="D", name="d"),
        task(9.0, 1.0, reconciled=False, name="u"),
        task(9.0, 1.0, name="e", x=[], makespan_s=[], makespan_low_s=[], makespan_high_s=[]),
    ]
    table = curves([*ESSAY.to_dict("records"), *unpriceable])
    assert excluded(table) == {"grade D": 1, "unreconciled": 1, "untrusted timings": 1}
    mixed, clean = priced(curves=table).document, priced().document
    assert mixed["excluded"] == excluded(table)
    assert {**mixed, "excluded": {}} == clean


@pytest.mark.parametrize("grid", [[0.0, 0.5, 2.0], [0.5, 1.0]])
def test_curves_over_other_grids_are_refused(grid: list[float]) -> None:
    row = task(1.0, 1.0)
    short = {"x": grid, "makespan_s": grid, "makespan_low_s": grid, "makespan_high_s": grid}
    with pytest.raises(InputError, match="grid"):
        drawn(curves([{**row, **short}]))
    with pytest.raises(InputError):
        drawn(curves([row, {**row, **short}]))


def test_the_speed_up_needed_inverts_the_saving() -> None:
    assert speedup_needed(ESSAY, saved_s=0.6) == pytest.approx(2.0)
    assert speedup_needed(ESSAY, saved_s=0.0) == 1.0
    assert speedup_needed(ESSAY, saved_s=1.21) is None
    assert speedup_needed(curves([]), saved_s=0.1) is None


# --- terms


def test_the_total_is_the_sum_of_the_terms_end_by_end() -> None:
    found = priced()
    terms = found.document["terms"]
    gains, costs = TERMS[:2], TERMS[2:]
    for end, other in (("value", "value"), ("low", "high"), ("high", "low")):
        total = sum(terms[t][end] for t in gains) - sum(terms[t][other] for t in costs)
        assert getattr(found.value, end) == pytest.approx(total)


@pytest.mark.parametrize(
    ("missing", "terms"),
    [
        ("value_of_second", {"latency_value"}),
        ("replica_cost_per_hour", {"avoided_target_capacity"}),
        ("target_occupancy", {"avoided_target_capacity", "draft_capacity_and_memory"}),
        ("draft", {"draft_capacity_and_memory"}),
        ("operations_per_month", {"operational_cost"}),
        ("tasks_per_month", {"draft_capacity_and_memory", "operational_cost"}),
        ("cost_per_failure", {"expected_quality_loss"}),
        ("energy", {"operational_cost"}),
    ],
)
def test_a_price_that_is_left_out_is_unknown_and_named(missing: str, terms: set[str]) -> None:
    found = priced(prices={missing: None})
    assert set(found.document["unknown"]) == terms
    assert found.value is None
    assert any(missing in need for need in found.document["still_needed"])
    assert all((found.document["terms"][t] is None) == (t in terms) for t in TERMS)


@pytest.mark.parametrize(
    ("gate", "summary", "term"),
    [
        ("serving", None, "latency_value"),
        ("serving", {}, "latency_value"),
        ("serving", {**serving(), "gamma_by_concurrency": {}}, "latency_value"),
        ("serving", serving(log_speedup={"mean": 0.7, "sd": None, "pairs": 6.0}), "latency_value"),
        ("serving", serving(log_speedup={"mean": 0.7, "sd": 0.1, "pairs": 1.0}), "latency_value"),
        ("serving", serving(ttft_ratio={"ratio": 1.0, "low": None, "high": None}), "latency_value"),
        ("serving", {**serving(), "memory": {}}, "draft_capacity_and_memory"),
        (
            "serving",
            {**serving(), "memory": {"speculative": 5.0, "unmeasured": ["draft_kv"]}},
            "draft_capacity_and_memory",
        ),
        ("outcome", None, "expected_quality_loss"),
        ("outcome", {"difference": None, "interval": None}, "expected_quality_loss"),
        ("outcome", {"difference": 0.0, "interval": [0.1, 0.2]}, "expected_quality_loss"),
    ],
)
def test_what_a_gate_did_not_show_is_unknown(gate: str, summary: Any, term: str) -> None:
    found = priced(**{gate: None if summary is None else ("run", summary)})
    assert found.document["terms"][term] is None
    assert found.value is None
    assert found.document["still_needed"]


def test_levels_that_passed_without_a_stated_window_are_told_so() -> None:
    unstated = {**serving(), "gamma_by_concurrency": {"2": None}}
    needs = " ".join(priced(serving=("run", unstated)).document["still_needed"])
    assert "--gamma" in needs
    assert "a level that passed" not in needs
    failed = {**serving(), "gamma_by_concurrency": {}}
    needs = " ".join(priced(serving=("run", failed)).document["still_needed"])
    assert "--gamma" not in needs
    assert "a level that passed" in needs


def test_the_speed_up_of_the_estimate_is_told_from_that_of_the_low_end() -> None:
    said = priced().document["what_would_change"]
    (sentence,) = [one for one in said if one.startswith("A decoding speed-up of ")]
    assert "the low end, which decides, takes more" in sentence


def test_the_worst_passing_level_prices_the_task() -> None:
    better = {**serving(3.0)["regions"][0], "concurrency": 1}
    worse = serving(1.5)["regions"][0]
    failed = {**serving(1.1)["regions"][0], "concurrency": 8}
    summary = serving() | {
        "regions": [better, worse, failed],
        "gamma_by_concurrency": {"1": 4, "2": 4},
    }
    document = priced(serving=("run", summary)).document
    assert (document["speedup"]["ratio"], document["speedup"]["concurrency"]) == (1.5, 2)
    assert document["saved_s"]["value"] == pytest.approx(1.2 / 3, rel=0.01)


def test_time_added_before_first_tokens_is_taken_off_and_a_gain_is_not_added() -> None:
    slower = serving(ttft_ratio={"ratio": 1.1, "low": 0.9, "high": 1.5})
    document = priced(serving=("run", slower)).document
    # one call a task, 0.4 s to its first token
    assert document["first_token_s"] == pytest.approx({"value": 0.04, "low": 0.0, "high": 0.2})
    plain = priced().document
    gap = plain["terms"]["latency_value"]["low"] - document["terms"]["latency_value"]["low"]
    assert gap == pytest.approx(0.2 * PRICES["value_of_second"])
    faster = serving(ttft_ratio={"ratio": 0.5, "low": 0.4, "high": 0.6})
    assert priced(serving=("run", faster)).document["terms"] == plain["terms"]


TOGETHER = {"mean": math.log(1.1), "sd": 0.3}
"""Of the log ratio of first tokens, over six block pairs."""


def together(correlation: float | None) -> Any:
    bounds = {"ratio": 1.1, "low": 0.86, "high": 1.41}  # t with 5 degrees of freedom
    log = {"mean": math.log(1.5), "sd": 0.3, "pairs": 6.0}
    more = {} if correlation is None else {"log_ttft": {**TOGETHER, "correlation": correlation}}
    return serving(1.5, spread=0.2, log_speedup=log, ttft_ratio=bounds, **more)


def test_the_saving_and_what_first_tokens_take_from_it_are_drawn_together() -> None:
    ends = {
        rho: priced(serving=("run", together(rho))).document["terms"]["latency_value"]
        for rho in (-0.9, 0.0, 0.9, None)
    }
    lows = [ends[rho]["low"] for rho in (None, -0.9, 0.0, 0.9)]
    assert lows == sorted(lows)  # the later the slower is worst; worst ends are below them all
    assert len(set(lows)) == len(lows)
    assert {found["value"] for found in ends.values()} == {ends[None]["value"]}
    rng = np.random.default_rng(1)
    for rho in (-0.9, 0.9):
        normal = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 200_000)
        t = normal / np.sqrt(rng.chisquare(5, (200_000, 1)) / 5)
        ratio = np.exp(math.log(1.5) + 0.3 / math.sqrt(6) * t[:, 0])
        late = np.exp(TOGETHER["mean"] + TOGETHER["sd"] / math.sqrt(6) * t[:, 1])
        net = 1.2 * (1 - 1 / np.maximum(ratio, 1 / 3)) - 0.4 * np.maximum(late - 1, 0)
        low, high = np.quantile(net, [0.05, 0.95]) * PRICES["value_of_second"]
        assert ends[rho]["low"] == pytest.approx(low, abs=1e-4)
        assert ends[rho]["high"] == pytest.approx(high, abs=1e-4)


def test_what_is_drawn_together_recomputes_and_moves_with_its_inputs() -> None:
    found = priced(serving=("run", together(0.5)))
    assert found.document["first_token_drawn"]
    assert not priced(serving=("run", together(None))).document["first_token_drawn"]
    checked = verify(found.claims, lambda name, sha: ESSAY)
    assert [row.reason for row in checked if not row.agrees] == []
    claims = {claim.id: claim for claim in found.claims}
    claim = claims["value/prose/net_saved_s.low"]
    log = {**claim.inputs["log_ttft"], "correlation": 0.4}
    (moved,) = verify(
        [replace(claim, inputs={**claim.inputs, "log_ttft": log})], lambda name, sha: ESSAY
    )
    assert not moved.agrees
    for wrong in ({"sd": None}, {"correlation": None}, {"correlation": 1.1}):
        summary = together(0.5)
        summary["regions"][0]["log_ttft"] |= wrong
        document = priced(serving=("run", summary)).document
        assert not document["first_token_drawn"]
        assert document["total"] is not None  # worst ends stand in


def test_capacity_by_goodput_counts_whole_replicas() -> None:
    found = priced(serving=("run", serving(slo=True)), prices={"tasks_per_month": 20_000_000.0})
    document = found.document
    load = 20_000_000 / (365.25 * 86400 / 12)
    assert document["replicas"]["load_rps"] == pytest.approx(load)  # 7.6 a second
    assert document["replicas"]["baseline"] == 8  # one request a second each
    assert document["replicas"]["candidate"] == {"value": 4.0, "low": 6.0, "high": 4.0}
    month = 730.5 * 3.6 / 20_000_000
    assert document["terms"]["avoided_target_capacity"] == pytest.approx(
        {"value": 4 * month, "low": 2 * month, "high": 4 * month}
    )
    # each replica holds the draft's GiB all month long
    held = 730.5 * 0.01 / 20_000_000
    assert document["terms"]["draft_capacity_and_memory"]["high"] == pytest.approx(6 * held)


def test_a_level_that_does_not_pass_decodes_ordinarily() -> None:
    row = serving(slo=True)["regions"][0]
    # speculation would serve most at concurrency 8, but it did not pass there
    busy = row | {"concurrency": 8, "goodput": {"ordinary": 5.0, "speculative": 9.0}}
    found = serving_capacity({"regions": [row, busy], "gamma_by_concurrency": {"2": 4}})
    assert found.baseline == (1.0, 5.0)
    assert found.candidate == {"value": (2.0, 5.0), "low": (1.5, 5.0), "high": (2.2, 5.0)}


def test_without_objectives_capacity_is_the_target_time_set_free() -> None:
    document = priced().document
    assert document["replicas"] is None
    # 1.2 s of decoding at half a replica, 1.5 times the throughput, 3.6 an hour
    freed = 1.2 / 2 * (1 - 1 / 1.5) * 0.001
    assert document["terms"]["avoided_target_capacity"]["value"] == pytest.approx(freed)
    declared = priced(prices={"target_occupancy": 0.1}).document
    assert declared["terms"]["avoided_target_capacity"]["value"] == pytest.approx(freed / 5)
    slower = priced(serving=("run", serving(throughput=0.8))).document
    assert slower["terms"]["avoided_target_capacity"]["high"] < 0


def test_a_free_draft_needs_no_measurement() -> None:
    free = {"draft": {"device_cost_per_hour": 0.0, "memory_cost_per_gib_hour": 0.0}}
    unmeasured = {**serving(), "memory": {}}
    document = priced(serving=("run", unmeasured), prices=free).document
    assert document["terms"]["draft_capacity_and_memory"] == {"value": 0, "low": 0, "high": 0}


def test_quality_is_the_outcome_interval_at_the_price_of_a_failure() -> None:
    worse = {"difference": -0.1, "interval": [-0.2, 0.05]}
    document = priced(outcome=("run", worse)).document
    assert document["terms"]["expected_quality_loss"] == pytest.approx(
        {"value": 0.001, "low": -0.0005, "high": 0.002}
    )
    free = priced(outcome=None, prices={"cost_per_failure": 0.0}).document
    assert free["terms"]["expected_quality_loss"] == {"value": 0, "low": 0, "high": 0}


def test_energy_is_a_cost_once_declared_and_stated_while_it_is_not() -> None:
    silent = priced().document
    assert silent["energy"] == {"declared": False, "per_task": None}
    figures = {"declared": True, "added_watt_hours_per_task": 0.5, "price_per_kwh": 0.3}
    declared = priced(prices={"energy": figures}).document
    assert declared["energy"] == {"declared": True, "per_task": pytest.approx(0.00015)}
    more = declared["terms"]["operational_cost"]["value"]
    assert more - silent["terms"]["operational_cost"]["value"] == pytest.approx(0.00015)
    half = priced(prices={"energy": {"declared": True, "price_per_kwh": 0.3}})
    assert half.document["unknown"] == ["operational_cost"]
    assert half.value is None


def test_no_economics_still_shows_the_seconds() -> None:
    found = cases.price(replace(cases.inputs(), economics=None))
    assert found.value is None
    assert found.document["economics"] == {"name": "demo", "digest": None, "document": None}
    assert found.document["currency"] is None
    assert found.document["saved_s"]["value"] == pytest.approx(0.6, rel=0.01)
    assert any("economics named demo" in need for need in found.document["still_needed"])


# --- what would change


def change(found: Any, name: str) -> float:
    (value,) = [c.value for c in found.claims if c.id == f"value/prose/change.{name}"]
    return float(value)


@pytest.mark.parametrize("outcome", [OUTCOME, {"difference": -0.1, "interval": [-0.3, 0.1]}])
def test_at_the_break_even_second_the_low_end_meets_the_minimum(outcome: Any) -> None:
    found = priced(outcome=("run", outcome))
    even = change(found, "value_of_second")
    again = priced(outcome=("run", outcome), prices={"value_of_second": even})
    assert again.value.low == pytest.approx(cases.MINIMUM.per_task)
    (said,) = [s for s in found.document["what_would_change"] if "for a second" in s]
    assert f"{even:.3g} EUR" in said
    assert ("no longer" in said) == (found.value.low > cases.MINIMUM.per_task)


def test_at_the_speed_up_needed_the_estimate_meets_the_minimum() -> None:
    found = priced()
    ratio = change(found, "speedup")
    other = found.value.value - found.document["terms"]["latency_value"]["value"]
    value = 1.2 * (1 - 1 / ratio) * PRICES["value_of_second"] + other
    assert value == pytest.approx(cases.MINIMUM.per_task)
    cheap = priced(prices={"value_of_second": 0.0005}).document["what_would_change"]
    assert any("No speed-up" in sentence for sentence in cheap)


def test_at_the_occupancy_needed_the_estimate_meets_the_minimum() -> None:
    cheap = {"value_of_second": 0.0, "target_occupancy": 0.5, "tasks_per_month": 1e9}
    found = priced(prices=cheap, minimum=cases.MinimumValue(0.0003, "EUR"))
    share = change(found, "occupancy")
    again = priced(
        prices={**cheap, "target_occupancy": share}, minimum=cases.MinimumValue(0.0003, "EUR")
    )
    assert 0.5 < share < 1
    draft = [f.document["terms"]["draft_capacity_and_memory"]["value"] for f in (found, again)]
    assert again.value.value + draft[1] - draft[0] == pytest.approx(0.0003)
    assert any("of a replica" in s for s in found.document["what_would_change"])


def test_when_only_the_outcome_interval_is_too_wide_more_pairs_are_asked_for() -> None:
    wide = {"difference": 0.0, "interval": [-0.6, 0.6]}
    sentences = priced(outcome=("run", wide)).document["what_would_change"]
    assert any("More outcome pairs" in sentence for sentence in sentences)
    assert not any("More outcome" in s for s in priced().document["what_would_change"])


def test_a_low_end_just_above_the_minimum_does_not_read_as_the_minimum() -> None:
    case: Any = {
        "outcome": ("run", {"difference": 0.0, "interval": [-0.6, 0.6]}),
        "prices": {"value_of_second": 0.0105},
    }
    low = change(priced(**case), "low_at_known_loss")
    assert float(f"{low:.3g}") < low * 0.99999 < low  # three digits would read as less
    minimum = cases.MinimumValue(low * 0.99999, "EUR")
    sentences = priced(**case, minimum=minimum).document["what_would_change"]
    (said,) = [one for one in sentences if "known exactly" in one]
    told, least = re.findall(r"([\d.]+) EUR", said)
    assert float(told) > float(least)


def test_a_hundredth_of_the_price_of_a_second_makes_a_gain_negligible() -> None:
    before = priced().value
    after = priced(prices={"value_of_second": PRICES["value_of_second"] / 100}).value
    assert before.low > cases.MINIMUM.per_task > after.high


# --- claims


def test_every_figure_is_a_claim_that_recomputes_to_the_same_digit() -> None:
    energy = {"declared": True, "added_watt_hours_per_task": 0.5, "price_per_kwh": 0.3}
    for summary in (serving(), serving(slo=True)):
        found = priced(serving=("run", summary), prices={"energy": energy})
        checked = verify(found.claims, lambda name, sha: ESSAY)
        assert [v.reason for v in checked if not v.agrees] == []
        assert len({c.id for c in found.claims}) == len(found.claims)
        values = {c.value for c in found.claims}
        # flips and narrowing are checked by pricing anew (test_pricing_sensitivity.py, _narrowing.py)
        declared = {"economics", "minimum", "method", "speedup", "sensitivity", "narrowing"}
        shown = {k: v for k, v in found.document.items() if k not in declared}
        numbers = {v for _, v in leaves(shown) if isinstance(v, float)}
        assert numbers <= values
    assert json.dumps(found.document, allow_nan=False)
    assert priced().document == priced().document


def test_a_changed_input_or_cell_is_named() -> None:
    slower = serving(ttft_ratio={"ratio": 1.1, "low": 1.05, "high": 1.2})
    draft = {"device_cost_per_hour": 0.5, "memory_cost_per_gib_hour": 0.01}
    found = priced(serving=("run", slower), prices={"draft": draft})
    whole_numbers = {"value.replicas", "value.busy_replicas"}  # they absorb a small change
    tried = 0
    for claim in found.claims:
        for name, value in claim.inputs.items():
            if isinstance(value, float) and value and claim.value:
                changed = replace(claim, inputs={**claim.inputs, name: value * 1.5})
                (checked,) = verify([changed], lambda table, sha: ESSAY)
                assert not checked.agrees or claim.equation in whole_numbers, (claim.id, name)
                tried += 1
    assert tried > 60
    cell = ESSAY.copy()
    cell["makespan_s"] = [[t * (1 + 0.01 * (t < 5)) for t in row] for row in cell["makespan_s"]]
    wrong = {v.claim.id for v in verify(found.claims, lambda table, sha: cell) if not v.agrees}
    assert {"value/prose/saved_s", "value/prose/ceiling.saved_s"} <= wrong


def test_the_value_is_what_decisions_read() -> None:
    found = priced()
    total = found.document["total"]
    assert found.value == ValueInterval(
        total["per_task"], total["low"], total["high"], total["currency"]
    )
