from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import pytest
from shipped_policies import shipped_policy

from gatekeeper.core.decoding import SamplingSettings, TokenPrompt
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy, Slo
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, serving
from gatekeeper.testing import Costs, FakeEngine, Fault, VirtualClock
from gatekeeper.worker.measured import Cancelled
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

HOT = SamplingSettings(temperature=1.0)
FAST = Costs(draft_token_s=0.001, verify_s=0.02, prefill_token_s=0.002, jitter=0.03)
PROMPTS = tuple(
    TokenPrompt(f"p{i}", "code", tuple(1 + j % 30 for j in range(3 + i))) for i in range(12)
)


def policy() -> Any:
    demo = Policy.from_dict(shipped_policy("demo"))
    sampled = replace(demo.equivalence.sampled, min_tokens=800, max_tokens=2000)
    tolerance = replace(demo.equivalence.tolerance, window=0.12, bonus=0.15)
    budget = replace(demo.serving, gammas=(4,), sweep_blocks=1, confirm_blocks=5, concurrency=(1,))
    return replace(
        demo,
        equivalence=replace(demo.equivalence, sampled=sampled, tolerance=tolerance),
        serving=replace(budget, requests_per_block=6),
    )


def claimed(gate: str, **more: Any) -> Any:
    artifact = {
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "proposer": {"kind": "draft_lm"},
        "engine": {"name": "fake", "device": "cpu"},
    }
    given = {
        "id": "run-1",
        "gate": gate,
        "route": "route",
        "slice": "code",
        "artifact_digest": "d" * 64,
        "artifact": artifact,
        "policy": policy(),
        "parameters": {},
        "attempt": 1,
        "fence": 1,
        "cancel_requested": False,
        "sampling": (HOT,),
        "slo": None,
    }
    return ClaimedRun(**(given | more))


@cache
def run(gate: str, fault: Fault = None, delay: float = 0.0) -> Any:
    clock = VirtualClock()
    engine = FakeEngine(
        fault=fault,
        costs=replace(FAST, draft_round_s=delay),
        spend=clock.advance,
        agreement=0.3 if fault else 0.6,  # the less alike, the more a fault shows
        order=2,
    )
    return measure(claimed(gate), engine, Tracker(clock), lambda: False, clock, prompts=PROMPTS)


def tables(measured: Any) -> Any:
    return {name: pd.read_parquet(io.BytesIO(data)) for name, data in measured.files.items()}


def test_an_exact_engine_passes_equivalence() -> None:
    assert run("equivalence").result.outcome is Outcome.PASS


@pytest.mark.parametrize("fault", ["residual_not_subtracted", "correction_from_q", "bonus_from_q"])
def test_a_faulty_sampler_fails_equivalence(fault: Fault) -> None:
    assert run("equivalence", fault).result.outcome is Outcome.FAIL


def test_a_fast_drafter_passes_serving_and_a_sleeping_one_fails() -> None:
    assert run("serving").result.outcome is Outcome.PASS
    assert run("serving", delay=0.05).result.outcome is Outcome.FAIL


@pytest.mark.parametrize("gate", ["equivalence", "serving"])
def test_verdict_and_claims_follow_from_the_uploaded_bytes(gate: str) -> None:
    measured = run(gate)
    found = tables(measured)
    checked = verify(measured.result.claims, lambda name, _: found[name])
    assert checked
    assert [c.reason for c in checked if not c.agrees] == []
    module = {"equivalence": equivalence, "serving": serving}[gate]
    budget = {"equivalence": policy().equivalence, "serving": policy().serving}[gate]
    assert module.evaluate(budget, found) == measured.result
    assert set(found) == set(module.TABLES)


def test_a_settled_run_stops_early_and_leaves_the_engine_free() -> None:
    clock = VirtualClock()
    engine = FakeEngine(fault="correction_from_q", agreement=0.3, order=2)
    measured = measure(
        claimed("equivalence"), engine, Tracker(clock), lambda: False, clock, prompts=PROMPTS
    )
    assert measured.result.outcome is Outcome.FAIL
    decoded = sum(entry["committed"] for entry in measured.acceptance)
    assert decoded < 1000
    assert engine.step().emitted == ()


@pytest.mark.parametrize("gate", ["equivalence", "serving"])
def test_acceptance_counts_come_along(gate: str) -> None:
    for entry in run(gate).acceptance:
        assert entry["gamma"] in {1, 4}
        assert 0 < entry["accepted"] < entry["drafted"]


@pytest.mark.parametrize("gate", ["equivalence", "serving"])
@pytest.mark.parametrize("after", [0, 5])
def test_cancelling_leaves_the_measurement_and_frees_the_engine(gate: str, after: Any) -> None:
    asked = iter([False] * after)
    engine = FakeEngine()
    clock = VirtualClock()
    with pytest.raises(Cancelled):
        measure(
            claimed(gate),
            engine,
            Tracker(clock),
            lambda: next(asked, True),
            clock,
            prompts=PROMPTS,
        )
    assert engine.step().emitted == ()


def test_the_routes_own_objective_replaces_the_policys() -> None:
    clock = VirtualClock()
    engine = FakeEngine(costs=FAST, spend=clock.advance, agreement=0.9, order=2)
    measured = measure(
        claimed("serving", slo=Slo(5.0, 5.0)),
        engine,
        Tracker(clock),
        lambda: False,
        clock,
        prompts=PROMPTS,
    )
    assert measured.result.summary["regions"][0]["checks"]["goodput"] == "PASS"


def test_prompts_of_the_slice_are_used_in_the_targets_own_tokens() -> None:
    engine = FakeEngine(max_context=2048)
    long = replace(policy(), serving=replace(policy().serving, max_prompt_tokens=150))
    measured = measure(
        claimed("equivalence", slice="prose", policy=long),
        engine,
        Tracker(VirtualClock()),
        lambda: False,
        VirtualClock(),
    )
    used = set(tables(measured)["requests"]["prompt"])
    assert used
    assert all(name.startswith("prose-") for name in used)


def test_an_unknown_gate_or_slice_is_an_input_error() -> None:
    for changes in ({"gate": "pricing"}, {"gate": "serving", "slice": "poetry"}):
        with pytest.raises(InputError):
            measure(
                claimed(**changes),
                FakeEngine(),
                Tracker(VirtualClock()),
                lambda: False,
                VirtualClock(),
            )


def test_progress_counts_up_with_the_time_left() -> None:
    clock = VirtualClock()
    seen = []
    tracker = Tracker(clock, seen.append)
    engine = FakeEngine(costs=FAST, spend=clock.advance, order=2)
    measure(claimed("serving"), engine, tracker, lambda: False, clock, prompts=PROMPTS)
    assert [(p.phase, p.done, p.total) for p in seen] == [
        ("sweep", 0, 2),
        ("sweep", 2, 2),
        ("confirm", 0, 10),
        ("confirm", 10, 10),
    ]
    assert seen[0].seconds_left is None
    assert seen[-1].seconds_left == 0
