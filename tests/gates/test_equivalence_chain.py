"""An inconclusive run is continued: one e-process over several runs, each with requests of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from equivalence_runs import ARTIFACT, BUDGET, PROMPTS, WARM, info, make_plan, model, run

from gatekeeper.core.claims import recompute
from gatekeeper.core.policy_schema import DeclaredEffect
from gatekeeper.core.stats.eprocess import cumulate, log_e
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import EvidenceError
from gatekeeper.gates import equivalence
from gatekeeper.gates.equivalence_chain import continued_seed

if TYPE_CHECKING:
    from faults.synthetic import MarkovLM

EFFECT = DeclaredEffect(share=0.3, power=0.9)
SAMPLED = replace(BUDGET.sampled, min_tokens=200, max_tokens=200, effect=EFFECT)
FEW = replace(BUDGET, sampled=SAMPLED)
NARROW = replace(FEW, tolerance=replace(BUDGET.tolerance, window=0.01, bonus=0.02))
SURER = replace(NARROW, sampled=replace(SAMPLED, effect=replace(EFFECT, power=0.95)))


@pytest.fixture(scope="module")
def lm() -> MarkovLM:
    return model()


def earlier(accumulator: equivalence.Accumulator, name: str = "first") -> equivalence.Earlier:
    tables = accumulator.tables()
    return equivalence.Earlier(name, {table: name + table for table in tables}, tables)


def chain(budget: Any, lm: MarkovLM, runs: int, **options: Any) -> list[equivalence.Accumulator]:
    """So many runs, each going on from the one before, as long as none decides."""
    done = [run(make_plan(budget), lm, **options)]
    while len(done) < runs:
        if equivalence.evaluate(budget, done[-1].tables()).outcome is not Outcome.INCONCLUSIVE:
            break
        before = earlier(done[-1], f"run-{len(done)}")
        done.append(run(make_plan(budget, before=before.before), lm, earlier=before, **options))
    return done


@pytest.fixture(scope="module")
def three(lm: MarkovLM) -> list[equivalence.Accumulator]:
    return chain(NARROW, lm, 3)


def test_the_process_goes_on_and_is_judged_on_all_rows(three: Any) -> None:
    first, second, third = (a.tables() for a in three)
    assert [a.tokens for a in three] == [224, 448, 672]
    for short, long in ((first, second), (second, third)):
        for name in ("requests", "strict", "tolerance", "greedy"):
            pd.testing.assert_frame_equal(short[name], long[name].head(len(short[name])))
            assert len(long[name]) > len(short[name])
    assert third["requests"]["request"].is_unique
    alone = log_e(cumulate(second["strict"], envelope=True).to_numpy())
    ends = log_e(cumulate(third["strict"], envelope=True).to_numpy())
    assert ends[: len(alone)] == pytest.approx(alone)
    result = equivalence.evaluate(NARROW, third)
    assert result.summary["strict"]["log10_e"] == pytest.approx(ends.max() / np.log(10))
    assert result.summary["tokens"] == 672
    assert [(c["run"], c["tokens"]) for c in result.summary["continues"]] == [
        ("run-1", 224),
        ("run-2", 448),
    ]
    assert result.summary["continues"][1]["evidence"]["strict"] == "run-2strict"
    assert result.summary["greedy"]["positions"] == 8 * 32
    assert "goes on from here" in str(result.still_needed)
    json.dumps(dict(result.summary), allow_nan=False)
    for claim in result.claims:
        assert recompute(claim, lambda name, _: third[name]) == pytest.approx(claim.value)


def test_no_token_is_drawn_twice_and_the_turn_of_prompts_is_kept(three: Any) -> None:
    plans = [a.plan for a in three]
    seeds = [t.request.seed for plan in plans for t in plan.trials]
    assert len(set(seeds)) == len(seeds)
    greedy = [t.prompt_id for plan in plans for t in plan.trials if t.arm == equivalence.ORDINARY]
    assert sorted(greedy) == sorted(p.id for p in PROMPTS)  # three, three, and the two left
    turns = three[0].tables()["requests"]["prompt"].value_counts()
    done = set(turns.index[turns == turns.max()])
    following = [t.prompt_id for t in plans[1].trials if t.arm == equivalence.SAMPLED]
    assert done
    assert not done & set(following)  # seven others have their turn first
    again = make_plan(NARROW, before=earlier(three[0]).before)
    assert again.trials == plans[1].trials


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_a_continued_seed_is_another_each_time(seed: int) -> None:
    seeds = [continued_seed(seed, n) for n in range(50)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 50
    assert all(0 <= s < 2**63 for s in seeds)


def test_each_run_has_the_budget_anew_and_the_plan_counts_what_was_done(three: Any) -> None:
    assert all(a.settled for a in three)
    estimate = three[2].plan.estimate
    assert (estimate["earlier_runs"], estimate["earlier_tokens"]) == (2, 448)
    assert estimate["tokens_at_least"] == 2 * 2 * 32  # the least is drawn already
    first = three[0].plan.estimate
    assert first["earlier_runs"] is None
    fault = "correction drawn from q"
    assert estimate["attainable_power"][fault] > first["attainable_power"][fault]


def test_a_fault_too_small_for_one_run_is_found_by_the_chain(lm: MarkovLM) -> None:
    sampled = replace(NARROW.sampled, min_tokens=64, max_tokens=64)
    short = replace(NARROW, sampled=sampled)
    done = chain(short, lm, 12, fault="bonus_from_q")
    result = equivalence.evaluate(short, done[-1].tables())
    assert result.outcome is Outcome.FAIL
    assert 2 < len(done) < 12
    assert result.summary["counter_example"]["part"] == "strict e-process"


def test_a_wide_tolerance_is_met_by_the_chain(lm: MarkovLM) -> None:
    wide = replace(FEW, sampled=replace(FEW.sampled, min_tokens=400, max_tokens=400))
    done = chain(wide, lm, 20)
    assert equivalence.evaluate(wide, done[-1].tables()).outcome is Outcome.PASS
    assert len(done) > 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engine": info("bitwise")}, "identity_rule delta"),
        ({"engine": info(dtype="bfloat16")}, "dtype sigma delta"),
        ({"engine": replace(info(), version="2")}, "engine"),
        ({"plan": {"artifact": {**ARTIFACT, "gamma": 3}}}, "gamma design"),
        ({"plan": {"sampling": [WARM]}}, "delta design setting"),
        ({"plan": {"budget": replace(NARROW, alpha=0.01)}}, "design"),
        ({"plan": {"budget": SURER}}, "design"),
        ({}, ""),
        ({"plan": {"seed": 77, "prompts": PROMPTS[:4]}}, ""),
    ],
)
def test_another_engine_or_design_is_another_test(three: Any, changes: Any, named: Any) -> None:
    plan = make_plan(**{"budget": NARROW, **changes.get("plan", {})})
    context = three[1].tables()["context"]  # whose plan knew of an earlier run
    assert equivalence.differing(plan, changes.get("engine", info()), context) == named.split()


CONTINUES = {"run": "run-2", "evidence": {}}


def changed(tables: dict[str, Any], name: str, column: str) -> dict[str, Any]:
    frame = tables[name].copy()
    frame.loc[frame.index[0], column] = frame[column].iloc[1] * 2 + 1
    return {**tables, name: frame}


def check(three: Any, tables: Any, continues: Any = CONTINUES) -> None:
    before = three[1].tables()
    named = {name: "run-2" + name for name in before}

    def load(name: str, sha256: str) -> pd.DataFrame:
        assert sha256 == named[name]
        return before[name]

    if continues is CONTINUES:
        continues = {"run": "run-2", "evidence": named}
    equivalence.check_continued(continues, tables, load)


def test_tables_that_go_on_from_the_named_run_are_accepted(three: Any) -> None:
    check(three, three[2].tables())
    check(three, three[0].tables(), None)


@pytest.mark.parametrize(
    ("name", "column"),
    [("strict", "log_e_envelope"), ("requests", "tokens"), ("tolerance", "s"), ("greedy", "token")],
)
def test_a_changed_row_of_an_earlier_run_is_noticed(three: Any, name: str, column: str) -> None:
    with pytest.raises(EvidenceError, match=rf"{name}\.{column}.*rows of run run-2"):
        check(three, changed(three[2].tables(), name, column))


def test_a_run_that_names_other_evidence_is_refused(three: Any) -> None:
    with pytest.raises(EvidenceError, match="does not name run run-2"):
        check(three, three[0].tables())  # starts anew
    with pytest.raises(EvidenceError, match="does not name run run-2"):
        check(three, three[1].tables())  # skips the last run
    with pytest.raises(EvidenceError, match="not to go on from"):
        check(three, three[1].tables(), None)
    lost = three[2].tables()
    lost["strict"] = lost["strict"].iloc[1:]
    with pytest.raises(EvidenceError, match="strict"):
        check(three, lost)


def test_only_another_test_may_decline_to_go_on(three: Any, lm: MarkovLM) -> None:
    plan = make_plan(NARROW)
    same = equivalence.Accumulator(plan, info(), not_continued={"run": "run-2"})
    with pytest.raises(EvidenceError, match="does not name run run-2"):
        check(three, same.tables())
    other = equivalence.Accumulator(plan, info("bitwise"), not_continued={"run": "run-2"})
    check(three, other.tables())
    summary = equivalence.evaluate(NARROW, other.tables()).summary
    assert (summary["continues"], summary["not_continued"]) == ([], {"run": "run-2"})
