from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from gatekeeper.core.decoding import Rates, SamplingSettings, TokenPrompt
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome, from_json, to_json
from gatekeeper.errors import InputError
from gatekeeper.gates import outcome
from gatekeeper.gates.outcome import Answer

if TYPE_CHECKING:
    import pandas as pd

ARTIFACT = {"gamma": 4}
TASKS = tuple(
    TokenPrompt(f"{kind}-{i}", kind, tuple(range(3 + i)))
    for kind in ("copy", "tool")
    for i in range(40)
)
DEMO = Policy.from_dict(
    yaml.safe_load((Path(__file__).parents[2] / "policies" / "demo.yaml").read_text())
)


def policy(**changes: Any) -> Any:
    settled = {"margin": 0.2, "pairs": 80, "samples": 2, "concurrency": 2, "max_cost_ratio": 1.5}
    return replace(DEMO, outcome=replace(DEMO.outcome, **(settled | changes)))


def planned(budget: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {"tasks": TASKS, "suite": "d" * 64, "end_tokens": (2,), "seed": 7}
    return outcome.plan(policy(**(budget or {})), ARTIFACT, **(given | changes))


def answers(
    plan: Any, candidate: float, *, baseline: float = 0.7, cost: float = 0.8, seed: int = 0
) -> list[Answer]:
    """Each arm succeeds with its own probability; costs vary by a tenth."""
    rng = np.random.default_rng(seed)
    found = []
    for block in plan.blocks:
        chance, level = (baseline, 1.0) if block.arm == "baseline" else (candidate, cost)
        for attempt in block.attempts:
            spent = level * float(rng.lognormal(0, 0.1))
            found.append(
                Answer(attempt, block, "text", bool(rng.random() < chance), 5, cost_s=spent)
            )
    return found


def judge(plan: Any, table: pd.DataFrame) -> Any:
    return outcome.evaluate(plan.budget, {"pairs": table})


def result(candidate: float, **changes: Any) -> Any:
    plan = planned({"pairs": 80, "samples": 1})
    return judge(plan, plan.pairs(answers(plan, candidate, **changes)))


def test_both_arms_decode_the_same_samples_side_by_side_with_seeds_of_their_own() -> None:
    plan = planned()
    seeds = Counter(a.request.seed for block in plan.blocks for a in block.attempts)
    assert max(seeds.values()) == 1
    assert len(seeds) == 160
    first, second = plan.blocks[::2], plan.blocks[1::2]
    for one, other in zip(first, second, strict=True):
        assert one.cluster == other.cluster
        assert {one.arm, other.arm} == {"baseline", "candidate"}
        assert (one.position, other.position) == (0, 1)
        drawn = [[(a.task, a.sample) for a in block.attempts] for block in (one, other)]
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) == 4
    assert {block.arm for block in first} == {"baseline", "candidate"}
    for block in plan.blocks:
        for attempt in block.attempts:
            assert attempt.request.gamma == (4 if block.arm == "candidate" else 0)
            assert attempt.request.sampling == DEMO.outcome.sampling
            assert attempt.request.end_tokens == (2,)
    kinds = Counter(a.kind for a in plan.blocks[0].attempts)
    assert kinds == {"copy": 2, "tool": 2}


def test_the_plan_is_reproducible_and_a_seed_changes_it() -> None:
    assert planned() == planned()
    assert planned().blocks != planned(seed=8).blocks


def test_the_load_of_the_serving_gate_replaces_the_budgets() -> None:
    plan = planned(gamma=2, concurrency=1)
    assert {a.request.gamma for b in plan.blocks for a in b.attempts} == {0, 2}
    assert {len(block.attempts) for block in plan.blocks} == {2}
    table = plan.pairs(answers(plan, 0.7))
    assert (set(table["gamma"]), set(table["concurrency"])) == ({2}, {1})
    summary = judge(plan, table).summary
    assert (summary["gamma"], summary["concurrency"]) == (2, 1)
    for name in ("gamma", "concurrency"):
        with pytest.raises(InputError, match=name):
            planned(**{name: 0})


def test_too_few_tasks_for_the_pairs_are_refused_with_the_samples_that_would_do() -> None:
    with pytest.raises(InputError, match="use 2 samples or more"):
        planned({"pairs": 100, "samples": 1})


def test_the_plan_says_what_it_costs_and_can_show() -> None:
    plan = planned(rates=Rates(25.0, 500.0))
    assert plan.estimate["tokens"] == 80 * 2 * DEMO.outcome.max_tokens
    prompts = sum(len(a.request.prompt) for b in plan.blocks for a in b.attempts)
    assert plan.estimate["prompt_tokens"] == prompts
    seconds = plan.estimate["tokens"] / 25 + prompts / 500
    assert plan.estimate["minutes"] == pytest.approx(seconds / 60)
    assert planned().estimate["minutes"] is None
    assert plan.estimate["minimal_pairs"] == 11
    assert 0.8 < plan.estimate["power"] < 1
    assert f"{plan.estimate['power']:.2f}" in plan.estimate["attainable_power"]
    more = planned({"pairs": 160, "samples": 2}).estimate["power"]
    assert more > plan.estimate["power"]


def test_equal_arms_pass_and_a_loss_fails() -> None:
    equal = result(0.7)
    assert equal.outcome is Outcome.PASS, equal.parts
    assert [p.outcome for p in equal.parts] == [Outcome.PASS, Outcome.PASS]
    lost = result(0.1)
    assert lost.outcome is Outcome.FAIL
    assert {p.name: p.outcome for p in lost.parts}["success"] is Outcome.FAIL
    assert lost.still_needed is None


def test_the_interval_decides_between() -> None:
    between = result(0.5, seed=1)
    assert between.outcome is Outcome.INCONCLUSIVE
    assert "pairs" in between.still_needed
    low, high = between.summary["interval"]
    assert low < -0.2 < high


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(1.0, Outcome.PASS), (1.45, Outcome.INCONCLUSIVE), (2.5, Outcome.FAIL)],
)
def test_cost_per_success_has_a_limit_of_its_own(cost: float, expected: Outcome) -> None:
    found = result(0.7, cost=cost)
    assert {p.name: p.outcome for p in found.parts} == {"success": Outcome.PASS, "cost": expected}
    assert found.outcome is expected


@pytest.mark.parametrize(("cost_s", "side"), [(1.3, "within"), (1.7, "above")])
def test_a_cost_that_is_not_settled_says_how_many_pairs_would_settle_it(
    cost_s: float, side: str
) -> None:
    found = result(0.7, cost=cost_s)
    assert f"would show it {side} the limit" in found.still_needed
    assert "engine time on the gate's own tasks, the same for every route" in found.still_needed
    words = found.still_needed.split()
    pairs = int(words[words.index("about") + 1])
    assert pairs > found.summary["n"]
    cost = found.summary["cost_per_success"]
    # with so many pairs the end of the interval is 1.28 of 1.64 + 1.28 parts within the limit
    inside = cost["ratio"] <= cost["limit"]
    half = abs(math.log((cost["high"] if inside else cost["low"]) / cost["ratio"]))
    half *= math.sqrt(found.summary["n"] / pairs)
    room = abs(math.log(cost["limit"] / cost["ratio"]))
    assert half / room == pytest.approx(1.645 / (1.645 + 1.282), rel=0.02)
    near = {**found.summary, "cost_per_success": {**cost, "limit": cost["ratio"] * 1.0001}}
    assert "too near the limit" in outcome._pairs_for_cost(near)
    none = {**found.summary, "cost_per_success": {**cost, "low": None}}
    assert "cannot be said" in outcome._pairs_for_cost(none)


def test_fewer_successes_at_the_same_price_cost_more_each() -> None:
    plan = planned({"pairs": 80, "samples": 1})
    table = plan.pairs(answers(plan, 0.7))
    table["candidate_cost"] = table["baseline_cost"]
    summary = judge(plan, table.assign(candidate_success=0, baseline_success=1)).summary
    assert summary["cost_per_success"]["ratio"] is None
    half = table.assign(baseline_success=1, candidate_success=[0, 1] * 40)
    ratio = judge(plan, half).summary["cost_per_success"]["ratio"]
    assert ratio == pytest.approx(2)


def test_without_a_success_nothing_is_shown() -> None:
    found = result(0.0, baseline=0.0)
    assert found.outcome is Outcome.INCONCLUSIVE
    cost = found.summary["cost_per_success"]
    assert (cost["ratio"], cost["low"], cost["high"]) == (None, None, None)
    assert "no successful outcome" in found.still_needed
    assert "own tasks" not in found.still_needed  # no figure that could surprise
    # A candidate that never succeeds is a failure all the same.
    assert result(0.0, baseline=0.8).outcome is Outcome.FAIL


def test_an_empty_table_is_inconclusive() -> None:
    plan = planned()
    table = plan.pairs(answers(plan, 0.7)).iloc[:0]
    found = judge(plan, table)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.summary["interval"] is None
    assert found.summary["pairs_needed"] == 11
    assert found.still_needed


def test_every_figure_is_a_claim_that_the_table_reproduces() -> None:
    plan = planned()
    table = plan.pairs(answers(plan, 0.65))
    found = judge(plan, table)
    checked = verify(found.claims, lambda name, _: {"pairs": table}[name])
    assert [row.reason for row in checked if not row.agrees] == []
    claimed = {claim.value for claim in found.claims}
    settings = {"margin", "alpha", "minimal_pairs", "gamma", "concurrency", "limit"}

    def figures(value: Any, key: str = "") -> list[float]:
        if isinstance(value, dict):
            return [x for k, v in value.items() for x in figures(v, k)]
        if isinstance(value, list):
            return [x for v in value for x in figures(v, key)]
        plain = isinstance(value, (int, float)) and key not in settings
        return [float(value)] if plain else []

    shown = figures(found.summary)
    assert len(shown) > 15
    assert set(shown) <= claimed
    other = table.assign(candidate_success=1)
    again = verify(found.claims, lambda name, _: {"pairs": other}[name])
    assert not all(row.agrees for row in again)


def test_the_result_survives_json() -> None:
    plan = planned()
    found = judge(plan, plan.pairs(answers(plan, 0.65)))
    assert to_json(from_json(to_json(found))) == to_json(found)


def test_attempts_left_out_or_answered_twice_are_no_table() -> None:
    plan = planned()
    given = answers(plan, 0.7)
    for wrong in (given[1:], [*given, given[0]], [*given[1:], given[-1]]):
        with pytest.raises(InputError, match="answers"):
            plan.pairs(wrong)


def test_the_table_pairs_what_belongs_together() -> None:
    plan = planned()
    given = [
        replace(a, text=f"{a.attempt.task}/{a.attempt.sample}/{a.block.arm}")
        for a in answers(plan, 0.7)
    ]
    table = plan.pairs(reversed(given))
    assert len(table) == 80
    for row in table.to_dict("records"):
        for arm in ("baseline", "candidate"):
            assert row[f"{arm}_answer"] == f"{row['task']}/{row['sample']}/{arm}"
    assert {1 - p for p in table["baseline_position"]} == {0, 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pairs", 10),
        ("samples", 3),
        ("samples", 0),
        ("max_tokens", 0),
        ("max_cost_ratio", 0.0),
        ("concurrency", 0),
        ("alpha", 0.5),
        ("margin", 0.0),
        ("sampling", SamplingSettings()),
    ],
)
def test_a_budget_that_could_show_nothing_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        policy(**{field: value})
    assert refused.value.field == f"outcome.{field}"
