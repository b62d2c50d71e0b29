from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from shipped_policies import shipped_policy

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.decoding import GREEDY, Rates, SamplingSettings, TokenPrompt
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy, ServingBudget, ServingLimits, Slo
from gatekeeper.core.stats.paired_blocks import PairedMean
from gatekeeper.core.stats.serving_blocks import ratio
from gatekeeper.core.stats.serving_rounds import counts
from gatekeeper.core.verdicts import GateResult, Outcome, from_json, to_json
from gatekeeper.errors import InputError
from gatekeeper.gates import serving
from gatekeeper.gates.serving_region import Region, _rather_fails, _ratio_check
from gatekeeper.testing import Costs, FakeEngine, VirtualClock
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.serving_run import run_serving

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = Costs(
    prefill_token_s=0.002, draft_token_s=0.001, verify_s=0.02, verify_position_s=0.0002, jitter=0.03
)
HOT = SamplingSettings(temperature=1.0)
PROMPTS = tuple(
    TokenPrompt(f"p{i}", "code", tuple(1 + j % 30 for j in range(4 + i))) for i in range(12)
)


def policy() -> Any:
    return Policy.from_dict(shipped_policy("demo"))


def small(**changes: Any) -> Any:
    budget = ServingBudget(
        gammas=(2, 4),
        concurrency=(1, 4),
        tokens_per_request=16,
        requests_per_block=6,
        sweep_blocks=1,
        confirm_blocks=6,
        confidence=0.95,
        limits=ServingLimits(1.0, 1.5, None, 2.0),
        slo=Slo(None, None),
        max_prompt_tokens=100,
    )
    limits = {k: changes.pop(k) for k in list(changes) if hasattr(budget.limits, k)}
    return replace(budget, limits=replace(budget.limits, **limits), **changes)


def planned(budget: Any, gamma: int = 4, **more: Any) -> Any:
    given = {"prompts": PROMPTS, "sampling": [GREEDY], "end_tokens": (), "seed": 1} | more
    return serving.plan(policy(), {"gamma": gamma}, budget=budget, **given)


@cache
def measured(costs: Any = FAST, budget: Any = None, agreement: Any = 0.9, order: Any = 2) -> Any:
    """Run the whole gate on a virtual clock: seconds of load take no time."""
    clock = VirtualClock()
    engine = FakeEngine(
        costs=costs, spend=clock.advance, agreement=agreement, order=order, max_batch=4
    )
    plan = planned(budget or small(), sampling=[HOT])
    return run_serving(plan, engine, Tracker(clock), lambda: False, clock)


def tables(run: Any) -> Any:
    return {name: pd.read_parquet(io.BytesIO(data)) for name, data in run.files.items()}


def region(result: Any, concurrency: int) -> Any:
    (row,) = [r for r in result.summary["regions"] if r["concurrency"] == concurrency]
    return row


# --- plan


def test_arms_of_a_pair_decode_the_same_requests_side_by_side() -> None:
    plan = planned(small())
    trials = plan.confirm({1: 2, 4: 4})
    assert len(trials) == 2 * 2 * 6
    for first, second in zip(trials[::2], trials[1::2], strict=True):
        assert (first.pair, first.concurrency) == (second.pair, second.concurrency)
        assert {first.arm, second.arm} == {"ordinary", "speculative"}
        same = [(r.prompt, r.seed, r.max_tokens, r.sampling) for r in first.requests]
        assert same == [(r.prompt, r.seed, r.max_tokens, r.sampling) for r in second.requests]
    orders = {t.arm for t in trials[::2]}
    assert orders == {"ordinary", "speculative"}  # which arm goes first is drawn


def test_confirmation_is_fresh_and_the_plan_is_a_function_of_the_seed() -> None:
    plan = planned(small())
    seeds = {r.seed for t in plan.trials for r in t.requests}
    fresh = {r.seed for t in plan.confirm({1: 2, 4: 4}) for r in t.requests}
    assert not seeds & fresh
    assert planned(small()) == plan
    assert planned(small(), seed=2).trials != plan.trials
    ids = [r.request_id for t in (*plan.trials, *plan.confirm({1: 2, 4: 4})) for r in t.requests]
    assert len(set(ids)) == len(ids)


def test_every_block_has_short_and_long_prompts_and_fills_its_concurrency() -> None:
    for trial in planned(small(requests_per_block=2)).trials:
        assert {label["load_class"] for label in trial.labels} == {"short", "long"}
        assert len(trial.requests) == max(2, trial.concurrency)


def test_windows_longer_than_the_artifacts_are_not_swept() -> None:
    gammas = {t.gamma for t in planned(small(), gamma=3).trials}
    assert gammas == {0, 2, 3}


def test_the_estimate_counts_what_is_planned() -> None:
    plan = planned(small(), rates=Rates(100.0, 1000.0))
    trials = [*plan.trials, *plan.confirm({1: 2, 4: 4})]
    tokens = sum(r.max_tokens for t in trials for r in t.requests)
    assert plan.estimate["tokens"] == tokens
    assert plan.estimate["blocks"] == len(trials)
    assert plan.estimate["minutes"] == pytest.approx(
        (tokens / 100 + plan.estimate["prompt_tokens"] / 1000) / 60
    )
    assert planned(small()).estimate["minutes"] is None
    more = planned(small(confirm_blocks=40)).estimate["detectable_speedup"]
    assert 1 < more < plan.estimate["detectable_speedup"]


@pytest.mark.parametrize("missing", ["prompts", "sampling"])
def test_a_plan_needs_prompts_and_settings(missing: Any) -> None:
    with pytest.raises(InputError) as caught:
        planned(small(), **{missing: []})
    assert caught.value.field == missing


# --- choice


def sweep_table(times: Any) -> Any:
    """Two-token requests whose only gap is the wanted TPOT."""
    rows = [
        {
            "pair": 0,
            "arm": "speculative" if gamma else "ordinary",
            "concurrency": c,
            "gamma": gamma,
            "first_s": 1.0,
            "finish_s": 1.0 + tpot,
            "tokens": 2,
            "first_tokens": 1,
            "arrival_s": 0.0,
            "reason": "length",
            "gaps_s": [tpot],
        }
        for (c, gamma), tpot in times.items()
    ]
    return pd.DataFrame(rows)


def test_the_fastest_window_of_each_level_is_chosen_ties_to_the_shorter() -> None:
    sweep = sweep_table({(1, 0): 1, (1, 2): 3, (1, 4): 2, (4, 0): 1, (4, 2): 2, (4, 4): 2})
    assert serving.choose(sweep, small()) == {1: 4, 4: 2}


def test_a_level_without_speculative_blocks_cannot_be_chosen_for() -> None:
    with pytest.raises(InputError):
        serving.choose(sweep_table({(1, 0): 1, (1, 2): 3}), small())


# --- verdict


def test_a_good_drafter_passes_everywhere_and_every_figure_has_a_claim() -> None:
    run = measured()
    result = run.result
    assert result.outcome is Outcome.PASS
    assert result.summary["envelope"]["max_concurrency"] == 4
    assert set(result.summary["gamma_by_concurrency"]) == {"1", "4"}
    assert result.summary["speedup"]["low"] > 1
    found = tables(run)
    checked = verify(result.claims, lambda name, _: found[name])
    assert len(checked) > 100
    assert [c.reason for c in checked if not c.agrees] == []
    assert len({c.id for c in result.claims}) == len(result.claims)
    printed = set(_numbers(result.summary))
    assert printed <= {c.value for c in result.claims} | {0.95, 6.0} | {1.0, 2.0, 4.0} | _counts(
        result
    )


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, (int, float)):
        yield float(value)


def _counts(result: Any) -> Any:
    """The envelope's context is the least of the levels' longest contexts, each of them claimed."""
    return {float(result.summary["envelope"]["max_context_tokens"])}


def test_the_result_survives_json_and_is_recomputed_from_parquet_alone() -> None:
    run = measured()
    assert serving.evaluate(small(), tables(run)) == run.result
    assert from_json(to_json(run.result)).outcome is Outcome.PASS


def test_a_changed_cell_breaks_the_claims_that_rest_on_it() -> None:
    run = measured()
    found = tables(run)
    broken = found["confirm"].copy()
    broken.loc[0, "finish_s"] += 0.5
    found["confirm"] = broken
    failed = [
        c.claim.id for c in verify(run.result.claims, lambda name, _: found[name]) if not c.agrees
    ]
    assert any("speedup" in name for name in failed)
    assert not any("acceptance" in name or "surface" in name for name in failed)


def test_a_drafter_that_sleeps_fails() -> None:
    result = measured(replace(FAST, draft_round_s=0.05)).result
    assert result.outcome is Outcome.FAIL
    assert result.summary["gamma_by_concurrency"] == {}
    assert result.summary["envelope"] is None
    assert {str(p.outcome) for p in result.parts} == {"FAIL"}
    assert result.still_needed is None


def test_no_gain_and_no_loss_is_inconclusive_and_says_what_is_missing() -> None:
    # one drafted token at the price of the token it saves
    costs = Costs(verify_s=0.02, draft_round_s=0.0175, jitter=0.2, prefill_token_s=0.01)
    budget = small(gammas=(1,), confirm_blocks=5, requests_per_block=4, concurrency=(1,))
    clock = VirtualClock()
    engine = FakeEngine(costs=costs, spend=clock.advance, agreement=0.8, order=2)
    plan = planned(budget, gamma=1, sampling=[HOT])
    result = run_serving(plan, engine, Tracker(clock), lambda: False, clock).result
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "block pairs" in result.still_needed
    assert "concurrency 1" in result.still_needed


def test_measurements_without_any_noise_are_no_evidence() -> None:
    result = measured(replace(FAST, jitter=0.0), small(gammas=(4,)), 1.0).result
    assert region(result, 1)["speedup"]["ratio"] > 1
    assert region(result, 1)["speedup"]["low"] is None
    assert result.outcome is Outcome.INCONCLUSIVE


def test_a_level_passes_only_if_all_below_it_do() -> None:
    found = tables(measured())
    confirm = found["confirm"]
    slow = (confirm["concurrency"] == 1) & (confirm["arm"] == "speculative")
    late = confirm["arrival_s"] + 10 * (confirm["finish_s"] - confirm["arrival_s"])
    found["confirm"] = confirm.assign(finish_s=confirm["finish_s"].where(~slow, late))
    result = serving.evaluate(small(), found)
    assert [str(p.outcome) for p in result.parts] == ["FAIL", "PASS"]
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.summary["gamma_by_concurrency"] == {}
    assert "concurrency 1" in result.still_needed


def test_a_slow_first_token_fails_the_level_whatever_the_speed_up() -> None:
    found = tables(measured())
    confirm = found["confirm"]
    shift = 5 * (confirm["arm"] == "speculative") * (confirm["first_s"] - confirm["arrival_s"])
    found["confirm"] = confirm.assign(arrival_s=confirm["arrival_s"] - shift)
    result = serving.evaluate(small(), found)
    assert region(result, 1)["checks"]["speedup"] == "PASS"
    assert region(result, 1)["checks"]["ttft"] == "FAIL"
    assert result.outcome is Outcome.FAIL


def test_memory_beyond_the_limit_fails_and_unmeasured_memory_proves_nothing() -> None:
    found = tables(measured())
    total = (
        found["memory"]
        .groupby(["phase", "pair", "arm", "gamma", "concurrency"])["bytes"]
        .sum()
        .max()
    )
    assert serving.evaluate(small(max_memory_bytes=10 * int(total)), found).outcome is Outcome.PASS
    assert serving.evaluate(small(max_memory_bytes=1000), found).outcome is Outcome.FAIL
    unsure = found["memory"].assign(measured=found["memory"]["purpose"] != "workspace")
    result = serving.evaluate(small(max_memory_bytes=10 * int(total)), {**found, "memory": unsure})
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.summary["memory"]["workspace"] is None
    assert result.summary["memory"]["unmeasured"] == ["workspace"]


def test_the_ledger_says_how_many_sequences_speculation_displaces() -> None:
    memory = measured().result.summary["memory"]
    assert memory["speculative"] == (
        memory["draft_weights"] + memory["draft_kv"] + memory["candidates"]
    )
    assert memory["active_sequences_lost"] >= 1  # draft KV takes half as much as the target's


def test_what_was_foretold_stands_beside_what_was_held() -> None:
    found = tables(measured())
    unknown = serving.evaluate(small(), found).summary["memory"]["predicted"]
    assert set(unknown.values()) == {None}
    foretold = found["memory"].assign(predicted=found["memory"]["bytes"].clip(lower=8.0))
    result = serving.evaluate(small(), {**found, "memory": foretold})
    memory = result.summary["memory"]
    assert memory["predicted"]["target_kv"] == memory["target_kv"]
    parts = ("draft_weights", "draft_kv", "candidates")
    assert memory["predicted"]["speculative"] == sum(memory["predicted"][name] for name in parts)
    (claim,) = (c for c in result.claims if c.id == "serving.memory_predicted.total")
    assert (claim.status, claim.value) == ("estimated", memory["predicted"]["total"])
    older = {**found, "memory": found["memory"].drop(columns="predicted")}
    assert serving.evaluate(small(), older).summary["memory"]["predicted"]["total"] is None


def test_goodput_counts_only_with_objectives_and_must_not_fall() -> None:
    found = tables(measured())
    easy = serving.evaluate(small(slo=Slo(10.0, 10.0)), found)
    assert region(easy, 1)["checks"]["goodput"] == "PASS"
    assert region(easy, 1)["goodput_difference"]["mean"] > 0
    confirm = found["confirm"]
    wait = (confirm["first_s"] - confirm["arrival_s"]).groupby(confirm["arm"]).min()
    between = (wait["ordinary"] + 2 * wait["speculative"]) / 3
    ordinary = confirm["arm"] == "ordinary"
    in_time = confirm.assign(
        arrival_s=confirm["first_s"]
        - pd.Series(between * 0.9, confirm.index).where(ordinary, between * 1.1)
    )
    hard = serving.evaluate(small(slo=Slo(between, None)), {**found, "confirm": in_time})
    assert region(hard, 1)["checks"]["goodput"] == "FAIL"
    assert "goodput" not in region(measured().result, 1)["checks"]


def test_a_class_that_pays_for_the_others_speed_fails() -> None:
    found = tables(measured())
    confirm = found["confirm"]
    hit = (confirm["arm"] == "speculative") & (confirm["load_class"] == "long")
    slowed = confirm["first_s"] + 8 * (confirm["finish_s"] - confirm["first_s"])
    found["confirm"] = confirm.assign(finish_s=confirm["finish_s"].where(~hit, slowed))
    result = serving.evaluate(small(), found)
    assert region(result, 4)["checks"]["fairness"] == "FAIL"
    assert region(result, 4)["slowdown_spread"]["low"] > 2
    assert "fairness" not in region(result, 1)["checks"]  # alone, nobody can pay for another


def test_different_gains_are_not_unfair_when_nobody_is_slowed() -> None:
    found = tables(measured())
    confirm = found["confirm"]
    favoured = (confirm["arm"] == "speculative") & (confirm["load_class"] == "short")
    faster = confirm["first_s"] + 0.3 * (confirm["finish_s"] - confirm["first_s"])
    found["confirm"] = confirm.assign(finish_s=confirm["finish_s"].where(~favoured, faster))
    result = serving.evaluate(small(), found)
    assert region(result, 4)["slowdown_spread"]["ratio"] > 2
    assert region(result, 4)["checks"]["fairness"] == "PASS"
    (part,) = [part for part in result.parts if part.name.endswith(" 4")]
    assert (
        "long prompts gain least; their time per token with speculation ÷ without is "
        in part.detail
    )
    assert " times that of short prompts; enough is the first below 1 " in part.detail


def test_throughput_lost_at_the_end_of_a_block_is_an_alarm() -> None:
    found = tables(measured())
    confirm = found["confirm"]
    # the speculative arm starves its last request: TPOT of the others hides it
    last = (
        confirm.groupby(["concurrency", "arm", "pair"])["finish_s"].transform("max")
        == confirm["finish_s"]
    ) & (confirm["arm"] == "speculative")
    hidden = confirm[["arrival_s", "first_s", "finish_s"]].add(3.0, axis=0)
    confirm = confirm.copy()
    confirm.loc[last, ["arrival_s", "first_s", "finish_s"]] = hidden[last]
    result = serving.evaluate(small(), {**found, "confirm": confirm})
    assert region(result, 1)["checks"]["speedup"] == "PASS"
    assert region(result, 1)["checks"]["throughput"] == "FAIL"
    assert result.outcome is Outcome.FAIL


def test_levels_that_were_not_run_are_inconclusive() -> None:
    found = tables(measured())
    only = {**found, "confirm": found["confirm"][found["confirm"]["concurrency"] == 1]}
    assert serving.evaluate(small(), only).summary["envelope"]["max_concurrency"] == 1
    nothing = {**found, "confirm": found["confirm"].iloc[:0]}
    result = serving.evaluate(small(), nothing)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.still_needed


# --- figures


def test_the_predicted_speed_up_is_the_measured_one_within_a_few_percent() -> None:
    row = region(measured().result, 1)
    assert row["predicted_speedup"] == pytest.approx(row["speedup"]["ratio"], rel=0.15)
    times = row["times"]
    parts = times["draft_s"] + times["verify_s"] + times["overhead_s"]
    by_hand = row["mean_accepted_length"] * times["ordinary_s"] / parts
    assert row["predicted_speedup"] == pytest.approx(by_hand)


def test_step_times_are_those_the_engine_spent() -> None:
    run = measured()
    times = region(run.result, 1)["times"]
    rounds = tables(run)["rounds"]
    steady = rounds[
        rounds["steady"]
        & (rounds["phase"] == "confirm")
        & (rounds["concurrency"] == 1)
        & (rounds["arm"] == "speculative")
    ]
    drafted = steady["drafted"].mean()
    assert times["ordinary_s"] == pytest.approx(0.0202, rel=0.01)
    assert times["draft_s"] == pytest.approx(0.001 * drafted, rel=0.03)
    assert times["verify_s"] == pytest.approx(0.02 + 0.0002 * (drafted + 1), rel=0.03)
    assert times["overhead_s"] == pytest.approx(0.0, abs=1e-6)


def test_surfaces_cover_every_window_at_every_level() -> None:
    rows = measured().result.summary["surfaces"]
    assert {(r["concurrency"], r["gamma"]) for r in rows} == {
        (c, g) for c in (1, 4) for g in (0, 2, 4)
    }
    by = {(r["concurrency"], r["gamma"]): r for r in rows}
    assert by[4, 0]["throughput"] > 2 * by[1, 0]["throughput"]
    assert by[1, 4]["tpot_mean"] < by[1, 0]["tpot_mean"]


def test_columnar_counts_equal_those_of_rounds() -> None:
    rounds = tables(measured())["rounds"]
    chosen = rounds[
        (rounds["phase"] == "confirm")
        & (rounds["arm"] == "speculative")
        & (rounds["concurrency"] == 4)
    ]
    gamma = int(chosen["gamma"].iloc[0])
    expected = AcceptanceCounts.from_frame(chosen)
    found = counts(rounds, concurrency=4, gamma=gamma)
    for name, value in expected.to_dict().items():
        assert getattr(found, name) == pytest.approx(
            tuple(value) if isinstance(value, list) else value
        ), name


def test_the_acceptance_matrix_is_conditional_position_by_position() -> None:
    (row, _) = measured().result.summary["acceptance_matrix"]
    assert row["slice"] == "code"
    assert row["accepted_per_round"] <= row["drafted_per_round"] <= row["gamma"]
    curve = row["conditional_acceptance"]
    assert len(curve) == row["gamma"]
    assert all(0 <= c <= 1 for c in curve)


def test_sampled_requests_cycle_through_the_settings_of_the_route() -> None:
    plan = planned(small(), sampling=[GREEDY, HOT])
    labels = [label["sampling"] for label in plan.trials[0].labels]
    assert labels == ["greedy", "T=1"] * 3
    assert math.isclose(plan.trials[0].requests[1].sampling.temperature, 1.0)


def test_the_correlation_that_pricing_draws_by_is_that_of_the_pairs() -> None:
    run = measured(Costs(prefill_token_s=1e-3, verify_s=0.05, jitter=0.2))
    found = tables(run)["confirm"]
    for row in run.result.summary["regions"]:
        both = {"concurrency": row["concurrency"], "confidence": 0.95}
        later = ratio(found, statistic="ttft_p50", numerator="speculative", **both)
        faster = ratio(found, statistic="tpot_mean", numerator="ordinary", **both)
        rho = float(np.corrcoef(faster.values, later.values)[0, 1])
        assert row["log_ttft"] == pytest.approx(
            {"mean": later.mean, "sd": later.sd, "correlation": rho}
        )


def test_a_level_that_fails_is_named_beside_what_another_still_needs() -> None:
    regions = [
        Region(1, 2, Outcome.INCONCLUSIVE, (), {}, "", 37),
        Region(2, 2, Outcome.FAIL, (), {}, "", None),
    ]
    wanted = serving._still_needed(policy().serving, regions)
    assert wanted == "about 37 block pairs at concurrency 1, 5 were run; at concurrency 2 it fails"


def test_where_the_estimate_itself_fails_more_pairs_are_said_to_settle_it_so() -> None:
    slow = PairedMean((-0.1, -0.2, 0.1, -0.1, 0.0), 0.95, -0.06, 0.11, -0.17, 0.05, None)
    (said,) = _rather_fails("speedup", slow, 1.0, "above")
    assert said == "TPOT speed-up 0.942, wanted > 1"
    assert _rather_fails("ttft", slow, 1.0, "below") == ()
    assert _rather_fails("ttft", slow, 0.9, "below") == ("TTFT ratio 0.942, wanted < 0.9",)
    assert _rather_fails("speedup", slow, 0.9, "above") == ()
    sure = PairedMean((-0.1,) * 4 + (-0.11,), 0.95, -0.1, 0.005, -0.11, -0.09, None)
    assert _rather_fails("speedup", sure, 1.0, "above") == ()  # FAIL already: nothing is open
    regions = [
        Region(1, 2, Outcome.INCONCLUSIVE, (), {}, "", 97, (said,)),
        Region(2, 2, Outcome.FAIL, (), {}, "", None),
    ]
    wanted = serving._still_needed(policy().serving, regions)
    assert wanted == (
        "about 97 block pairs at concurrency 1, 5 were run; at concurrency 2 it fails; more pairs "
        "would rather settle concurrency 1 as FAIL, as the estimate stands: TPOT speed-up 0.942, "
        "wanted > 1"
    )


def test_a_slow_down_that_is_not_settled_yet_says_where_it_leans() -> None:
    found = barely(0.02)
    assert region(found, 1)["speedup"]["ratio"] < 1
    assert "rather settle concurrency 1 as FAIL, as the estimate stands: TPOT speed-up" in (
        found.still_needed
    )
    assert region(barely(0.018), 1)["speedup"]["ratio"] > 1
    assert "FAIL" not in barely(0.018).still_needed


@cache
def barely(draft_round_s: float) -> GateResult:
    """One drafted token at about the price of the token it saves: nothing is settled."""
    costs = Costs(verify_s=0.02, draft_round_s=draft_round_s, jitter=0.3, prefill_token_s=0.01)
    budget = small(gammas=(1,), confirm_blocks=5, requests_per_block=4, concurrency=(1,))
    clock = VirtualClock()
    engine = FakeEngine(costs=costs, spend=clock.advance, agreement=0.8, order=2)
    plan = planned(budget, gamma=1, sampling=[HOT])
    result = run_serving(plan, engine, Tracker(clock), lambda: False, clock).result
    assert result.outcome is Outcome.INCONCLUSIVE
    return result


def test_bounds_on_one_side_that_settle_nothing_say_why() -> None:
    pairs = (0.5, 0.5, 0.5, 0.4, -0.02)
    split = PairedMean(pairs, 0.95, 0.376, 0.226, 0.16, 0.592, None)
    check = _ratio_check("speedup", split, 1.0, "above")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.detail.endswith(
        "(not settled: by flipping the signs of the pairs, p 0.062, wanted 0.05 or less; 5 pairs give "
        "p in steps of 1/32 = 0.031, and 6 pairs that go on like these would reach it)"
    )
    going_on = replace(split, values=(*pairs, 0.5))
    assert _ratio_check("speedup", going_on, 1.0, "above").outcome is Outcome.PASS
    alone = Region(1, 2, Outcome.INCONCLUSIVE, (check,), {}, "", 5)
    assert serving._still_needed(policy().serving, [alone]) == check.detail
    wide = replace(split, low=-0.1)
    assert "flipping" not in _ratio_check("speedup", wide, 1.0, "above").detail
    settled = replace(split, values=(0.5, 0.5, 0.5, 0.4, 0.02))
    assert _ratio_check("speedup", settled, 1.0, "above").outcome is Outcome.PASS
