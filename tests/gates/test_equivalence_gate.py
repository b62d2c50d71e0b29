import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from equivalence_runs import (
    ARTIFACT,
    BUDGET,
    HOT,
    PROMPTS,
    WARM,
    Policy,
    V,
    info,
    make_plan,
    model,
    run,
    sampled_result,
)
from faults.synthetic import MarkovLM

from gatekeeper.core.claims import recompute
from gatekeeper.core.decoding import Rates, SamplingSettings
from gatekeeper.core.equations import EQUATIONS
from gatekeeper.core.policy_schema import (
    SHARES,
    DeclaredEffect,
    ToleranceBudget,
)
from gatekeeper.core.stats.power import REFERENCE_EFFECTS
from gatekeeper.core.verdicts import GateResult, Outcome, Part
from gatekeeper.errors import EvidenceError, InputError
from gatekeeper.gates import equivalence
from gatekeeper.protocols import Scored


def test_every_window_that_serving_may_choose_is_tested() -> None:
    plan = equivalence.plan(Policy(served=(1, 2, 3, 99)), ARTIFACT, prompts=PROMPTS)
    tested = {t.request.gamma for t in plan.trials if t.arm == equivalence.SAMPLED}
    assert tested == {1, 2, 3, int(ARTIFACT["gamma"])}


@pytest.fixture(scope="module")
def lm() -> MarkovLM:
    return model()


def part(result: GateResult, name: str) -> Part:
    return next(p for p in result.parts if p.name == name)


@pytest.fixture(scope="module")
def exact(lm: MarkovLM) -> tuple[Any, ...]:
    accumulator = run(make_plan(), lm)
    tables = accumulator.tables()
    return accumulator, tables, equivalence.evaluate(BUDGET, tables)


def test_greedy_pairs_come_first_then_replicates_side_by_side() -> None:
    plan = make_plan()
    greedy = plan.trials[:6]
    assert [t.arm for t in greedy] == ["ordinary", "speculative"] * 3
    assert [t.request.gamma for t in greedy] == [0, 4] * 3
    assert all(a.prompt == b.prompt for a, b in zip(greedy[::2], greedy[1::2], strict=True))
    sampled = plan.trials[6:]
    assert {t.request.gamma for t in sampled} == {1, 4}
    for first, second in zip(sampled[::2], sampled[1::2], strict=True):
        assert (first.prompt, first.request.gamma) == (second.prompt, second.request.gamma)
        assert first.request.seed != second.request.seed
        assert second.replicate == first.replicate + 1
    assert len({t.request.seed for t in plan.trials}) == len(plan.trials)
    assert len({t.request.request_id for t in plan.trials}) == len(plan.trials)
    assert all(t.request.evidence for t in sampled)
    assert not any(t.request.evidence for t in greedy)


def test_every_prompt_has_its_turn_before_one_returns_and_the_order_is_seeded() -> None:
    plan = make_plan()
    sampled = plan.trials[6:]
    assert {t.prompt for t in sampled[: 4 * len(PROMPTS)]} == set(range(len(PROMPTS)))
    assert max(t.replicate for t in sampled) >= 2
    assert make_plan().trials == plan.trials
    assert make_plan(seed=6).trials != plan.trials


def test_settings_of_the_route_replace_those_of_the_policy() -> None:
    greedy = SamplingSettings()
    assert make_plan(sampling=[greedy, WARM]).settings == (WARM,)
    assert make_plan(sampling=[greedy]).settings == (HOT,)
    assert make_plan(sampling=[WARM, HOT]).estimate["sampled_tokens"] == 3600


def test_the_estimate_says_what_it_costs_and_what_it_can_show() -> None:
    estimate = make_plan().estimate
    assert estimate["tokens"] == 2 * 3 * 32 + 1800
    assert estimate["minutes"] is None
    assert estimate["tolerance_attainable"]
    power = estimate["attainable_power"]
    assert power["correction drawn from q"] > power["bonus drawn from q"] > 0.5
    assert power["repetition penalty ignoring the window"] < 0.2
    timed = make_plan(rates=Rates(100, 400)).estimate["minutes"]
    assert timed == pytest.approx(1992 * (1 / 100 + 1 / 400) / 60, abs=0.06)
    json.dumps(estimate)
    strict = replace(BUDGET, tolerance=ToleranceBudget(window=0.01, bonus=0.02))
    assert not make_plan(strict).estimate["tolerance_attainable"]


def declaring(share: float, power: float) -> dict[str, Any]:
    effect = DeclaredEffect(share=share, power=power)
    declared = replace(BUDGET, sampled=replace(BUDGET.sampled, effect=effect))
    found: dict[str, Any] = make_plan(declared).estimate["declared_effect"]
    return found


def test_the_plan_says_what_a_declared_effect_needs() -> None:
    coarse, fine = declaring(0.3, 0.9), declaring(0.1, 0.9)
    assert (coarse["share"], coarse["power"]) == (0.3, 0.9)
    assert 600 < coarse["tokens_needed"] < 1800 < fine["tokens_needed"]
    assert coarse["within_budget"]
    assert not fine["within_budget"]
    assert coarse["power_at_least"] < 0.9 < coarse["power_at_most"]
    assert declaring(0.3, 0.5)["tokens_needed"] < coarse["tokens_needed"]
    assert make_plan().estimate["declared_effect"] is None
    assert tuple(REFERENCE_EFFECTS) == SHARES


def test_the_design_is_stored_with_the_evidence(exact: Any) -> None:
    _, tables, result = exact
    design = result.summary["design"]
    assert design == json.loads(json.dumps(make_plan().design))
    assert design["gammas"] == [4, 1]
    assert design["prompts"] == len(PROMPTS)
    assert design["tokens_per_setting"] == [600, 1800]
    # Evidence of an earlier version has none.
    old = {**tables, "context": tables["context"].query("name != 'design'")}
    assert equivalence.evaluate(BUDGET, old).summary["design"] is None


def test_a_plan_needs_prompts_and_a_window() -> None:
    with pytest.raises(InputError, match="prompts"):
        make_plan(prompts=[])
    with pytest.raises(InputError, match="gamma"):
        make_plan(artifact={**ARTIFACT, "gamma": 0})


def test_exact_decoding_passes_every_part(exact: Any) -> None:
    accumulator, _, result = exact
    assert accumulator.settled
    assert result.outcome is Outcome.PASS, [(p.name, p.detail) for p in result.parts]
    assert [p.name for p in result.parts] == ["greedy identity", "strict e-process", "tolerance"]
    assert all(p.mandatory for p in result.parts)
    assert result.still_needed is None
    assert result.summary["counter_example"] is None
    assert result.summary["tokens"] == accumulator.tokens >= 600
    json.dumps(dict(result.summary), allow_nan=False)


def test_it_stops_as_soon_as_the_verdict_stands(exact: Any) -> None:
    accumulator, tables, _ = exact
    assert accumulator.tokens < 1800 + 64
    assert len(tables["requests"]) < len(make_plan().trials) - 6


@pytest.mark.parametrize(
    ("fault", "family"),
    [("correction_from_q", ""), ("bonus_from_q", "bonus mixture with q"), ("argmax_draft", "")],
)
def test_a_fault_fails_with_a_counter_example(lm: MarkovLM, fault: str, family: str) -> None:
    accumulator = run(make_plan(), lm, fault=fault)
    result = equivalence.evaluate(BUDGET, accumulator.tables())
    assert result.outcome is Outcome.FAIL
    assert result.summary["strict"]["worst_family"].startswith(family)
    example = result.summary["counter_example"]
    assert example["part"] == "strict e-process"
    assert example["prompt"] in {p.id for p in PROMPTS}
    assert 0 <= example["token"] < V
    assert 0 <= example["target_probability"] <= 1
    assert accumulator.settled


def test_one_wrong_greedy_token_fails_at_its_position(lm: MarkovLM) -> None:
    accumulator = run(make_plan(), lm, greedy_broken=True)
    result = equivalence.evaluate(BUDGET, accumulator.tables())
    assert result.outcome is Outcome.FAIL
    assert part(result, "greedy identity").outcome is Outcome.FAIL
    assert result.summary["counter_example"]["position"] == 5
    assert result.summary["greedy"]["mismatches"] == 3
    # Three greedy pairs were enough: no sampled token was spent.
    assert accumulator.tokens == 0


def test_the_bitwise_rule_is_taken_from_the_engine(lm: MarkovLM) -> None:
    accumulator = run(make_plan(), lm, greedy_broken=True, engine=info("bitwise"))
    result = equivalence.evaluate(BUDGET, accumulator.tables())
    assert result.summary["identity_rule"] == "bitwise"
    assert result.summary["greedy"]["tau"] == 0
    assert result.outcome is Outcome.FAIL


def test_too_few_tokens_are_inconclusive_and_say_what_is_missing(lm: MarkovLM) -> None:
    plan = make_plan()
    accumulator = run(replace(plan, trials=plan.trials[:12]), lm)
    result = equivalence.evaluate(BUDGET, accumulator.tables())
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "more sampled tokens" in result.still_needed
    nothing = equivalence.evaluate(BUDGET, equivalence.Accumulator(plan, info()).tables())
    assert nothing.outcome is Outcome.INCONCLUSIVE
    assert nothing.still_needed.startswith("about 600")


def test_trials_may_finish_in_any_order_but_are_read_in_the_plans(lm: MarkovLM) -> None:
    plan = make_plan()
    short = replace(plan, trials=plan.trials[:20])
    straight = run(short, lm).tables()
    mixed = run(short, lm, order=lambda t: [*t[:6], *reversed(t[6:])]).tables()
    for name in equivalence.TABLES:
        pd.testing.assert_frame_equal(straight[name], mixed[name])


def test_a_gap_holds_later_requests_back(lm: MarkovLM) -> None:
    plan = make_plan()
    late = run(plan, lm, order=lambda t: t[7:12])
    assert late.tokens == 0
    assert late.tables()["requests"].empty


def test_adding_a_trial_twice_is_refused(lm: MarkovLM) -> None:
    plan = make_plan()
    accumulator = equivalence.Accumulator(plan, info())
    trial = plan.trials[6]
    emissions, scored = sampled_result(trial, lm, None)
    evidence = equivalence.evidence_of(trial, emissions, scored)
    accumulator.add(trial, evidence, scored)
    with pytest.raises(InputError, match="added before"):
        accumulator.add(trial, evidence, scored)


def test_evidence_and_score_must_cover_the_same_tokens(lm: MarkovLM) -> None:
    trial = make_plan().trials[6]
    emissions, scored = sampled_result(trial, lm, None)
    short = Scored(scored.p[:-1], scored.deficit[:-1])
    with pytest.raises(InputError, match="rows"):
        equivalence.evidence_of(trial, emissions, short)
    emissions[1] = replace(emissions[1], q=None)
    joined = equivalence.evidence_of(trial, emissions, scored)
    at = joined.round == emissions[1].round
    assert np.isnan(joined.q[at]).all()
    assert not np.isnan(joined.q[~at]).any()
    first = len(emissions[0].tokens)
    assert joined.k[: first + 1].tolist() == [*range(first), 0]


def test_every_printed_figure_is_a_claim_that_recomputes(exact: Any) -> None:
    _, tables, result = exact
    claims = {c.id: c for c in result.claims}
    for claim in result.claims:
        value = recompute(claim, lambda name, _: tables[name])
        assert value == pytest.approx(claim.value, rel=1e-12, abs=0)
        assert claim.equation in EQUATIONS
        assert claim.status == "measured"
    summary = result.summary
    assert claims["equivalence.log10_e"].value == summary["strict"]["log10_e"]
    assert claims["equivalence.tokens"].value == summary["tokens"]
    assert claims["equivalence.greedy.mismatches"].value == summary["greedy"]["mismatches"]
    shown = [row["deviation"] for row in summary["tolerance"]]
    deviations = [c.value for c in result.claims if c.equation == "equivalence.tolerance.deviation"]
    assert deviations == shown
    assert len(shown) >= 20


@pytest.mark.parametrize(
    ("table", "column", "claim"),
    [
        ("strict", "log_e_envelope", "equivalence.log10_e"),
        ("tolerance", "s", "equivalence.tolerance.00.deviation"),
        ("requests", "tokens", "equivalence.tokens"),
    ],
)
def test_a_changed_cell_changes_its_claim(exact: Any, table: str, column: str, claim: str) -> None:
    _, tables, result = exact
    changed = {name: frame.copy() for name, frame in tables.items()}
    changed[table][column] = changed[table][column] + 1
    claimed = next(c for c in result.claims if c.id == claim)
    assert recompute(claimed, lambda name, _: changed[name]) != pytest.approx(claimed.value)


def test_tables_survive_parquet(exact: Any, tmp_path: Path) -> None:
    _, tables, result = exact
    for name, frame in tables.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    again = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in tables}
    assert equivalence.evaluate(BUDGET, again) == result


def test_an_approximate_artifact_is_measured_not_called_exact(lm: MarkovLM) -> None:
    artifact = {**ARTIFACT, "acceptance": {"method": "typical", "contract": "approximate"}}
    accumulator = run(make_plan(artifact=artifact), lm, fault="lenient")
    result = equivalence.evaluate(BUDGET, accumulator.tables())
    assert result.summary["contract"] == "approximate"
    assert {p.name: p.mandatory for p in result.parts} == {
        "greedy identity": False,
        "strict e-process": False,
        "tolerance": True,
    }


def test_an_admitted_deviation_stands_in_for_the_tolerance(lm: MarkovLM) -> None:
    acceptance = {"method": "typical", "contract": "approximate"}
    results = []
    for more in ({}, {"deviation": 0.5}):
        artifact = {**ARTIFACT, "acceptance": {**acceptance, **more}}
        tables = run(make_plan(artifact=artifact), lm, fault="accept_above_tenth").tables()
        # who recomputes the verdict knows the policy's budget and these tables alone
        results.append(equivalence.evaluate(BUDGET, tables))
    strict, admitted = results
    assert (strict.outcome, admitted.outcome) == (Outcome.FAIL, Outcome.PASS)
    assert strict.summary["admitted_deviation"] is None
    assert admitted.summary["admitted_deviation"] == 0.5
    assert {row["tolerance"] for row in admitted.summary["tolerance"]} == {0.5}
    assert " of 0.5 in " in part(admitted, "tolerance").detail
    plain = {**ARTIFACT, "acceptance": {"method": "standard", "contract": "exact"}}
    plain["acceptance"]["deviation"] = 0.5
    assert make_plan(artifact=plain).budget == BUDGET


def test_the_strict_part_alone_ends_a_faulty_run_and_demands_its_tokens_of_an_exact_one(
    lm: MarkovLM,
) -> None:
    # So wide a tolerance passes at once and never fails.
    wide = replace(BUDGET, tolerance=ToleranceBudget(window=0.9, bonus=0.9))
    faulty = run(make_plan(wide), lm, fault="correction_from_q")
    assert faulty.settled
    assert faulty.tokens < 500
    exact = run(make_plan(wide), lm)
    assert exact.settled
    assert 600 <= exact.tokens <= 600 + 64


def test_silence_over_fewer_tokens_than_the_policy_demands_is_no_pass(exact: Any) -> None:
    _, tables, _ = exact
    demanding = replace(BUDGET, sampled=replace(BUDGET.sampled, min_tokens=5000, max_tokens=9000))
    result = equivalence.evaluate(demanding, tables)
    assert part(result, "strict e-process").outcome is Outcome.INCONCLUSIVE
    assert result.outcome is Outcome.INCONCLUSIVE


def test_a_stratum_without_tokens_prevents_a_pass(exact: Any) -> None:
    _, tables, _ = exact
    window_only = {**tables, "tolerance": tables["tolerance"].query("stratum == 'window'")}
    result = equivalence.evaluate(BUDGET, window_only)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "no tokens in T=1, bonus" in part(result, "tolerance").detail


def test_a_context_without_its_rule_is_refused(exact: Any) -> None:
    _, tables, _ = exact
    broken = {**tables, "context": tables["context"].query("name != 'identity_rule'")}
    with pytest.raises(EvidenceError, match="identity_rule"):
        equivalence.evaluate(BUDGET, broken)
