from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.documents import compared
from gatekeeper.core.granting import Hold, grant, settle
from gatekeeper.core.lease import Envelope, Lease
from gatekeeper.core.policies import REASONS, MinimumValue, Override, Policy, StoredGate, decide
from gatekeeper.core.value import ValueInterval
from gatekeeper.core.verdicts import GATES, GateResult, Outcome
from gatekeeper.errors import InputError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FOLDER = Path(__file__).parents[2] / "policies"
TWO = replace(
    Policy.from_dict(yaml.safe_load((FOLDER / "demo.yaml").read_text())),
    mandatory_gates=("equivalence", "serving"),
    minimum_value=None,
)
MINIMUM = MinimumValue(0.5, "EUR")
ALL = replace(
    TWO, name="all", mandatory_gates=GATES, minimum_value=MINIMUM, hysteresis_s=0, cooldown_s=0
)
SUMMARIES = {
    "equivalence": {},
    "serving": {
        "gamma_by_concurrency": {"1": 4, "4": 2},
        "envelope": {"max_concurrency": 4, "max_context_tokens": 256},
    },
    "outcome": {},
}
GOOD = ValueInterval(1.0, 0.6, 1.4, "EUR")


def stored(
    gate: str, outcome: Outcome = Outcome.PASS, expires: timedelta = HOUR, **summary: Any
) -> StoredGate:
    result = GateResult(gate, outcome, (), {**SUMMARIES[gate], **summary})
    return StoredGate(result, NOW - HOUR, NOW + expires, f"run-{gate}")


def passing() -> dict[str, StoredGate]:
    return {gate: stored(gate) for gate in GATES}


def state_of(gate: str, state: str) -> dict[str, StoredGate]:
    if state == "missing":
        return {}
    if state == "expired":
        return {gate: stored(gate, expires=-HOUR)}
    return {gate: stored(gate, Outcome(state))}


STATES = [*[str(o) for o in Outcome], "missing", "expired"]
VALUES = {
    "above": GOOD,
    "below": ValueInterval(0.2, 0.1, 0.4, "EUR"),
    "straddles": ValueInterval(0.5, 0.4, 0.6, "EUR"),
    "low end at the minimum": ValueInterval(0.6, 0.5, 0.7, "EUR"),
    "high end at the minimum": ValueInterval(0.4, 0.3, 0.5, "EUR"),
    "unknown": None,
    "other currency": ValueInterval(1.0, 0.6, 1.4, "USD"),
}


def expected_reason(states: tuple[str, str, str], value: Any) -> str:
    """The table of the design, written a second time and independently of the code."""
    for gate, state in zip(GATES, states, strict=True):
        if state == "FAIL":
            return f"{gate}_failed"
    if states != ("PASS", "PASS", "PASS"):
        return "insufficient_evidence"
    return {"above": "gates_passed", "below": "value_negligible"}.get(
        value, "insufficient_evidence"
    )


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("states", list(itertools.product(STATES, repeat=3)))
def test_whole_decision_table(states: tuple[str, str, str], value: Any) -> None:
    results = {}
    for gate, state in zip(GATES, states, strict=True):
        results |= state_of(gate, state)
    verdict = decide(ALL, "exact", results, VALUES[value], NOW)
    assert verdict.reason == expected_reason(states, value)
    enabled = verdict.reason == "gates_passed"
    assert verdict.action == ("enable" if enabled else "bypass")
    assert (verdict.gamma > 0) is enabled
    assert bool(verdict.gamma_by_concurrency) is enabled
    assert bool(verdict.still_needed) is (verdict.reason == "insufficient_evidence")
    assert bool(verdict.investigate) is (verdict.reason == "outcome_failed")
    assert verdict.explanation.endswith(".")
    assert [row["gate"] for row in verdict.gates] == list(GATES)


@pytest.mark.parametrize(
    ("high", "said"),
    [
        (0.4, "At most 0.4 EUR a task is gained, less than"),
        (0.0, "At most nothing is gained, less than"),
        (-0.0032, "At least 0.0032 EUR a task is lost, and the minimum to be gained is"),
    ],
)
def test_a_negligible_value_is_told_by_its_sign(high: float, said: str) -> None:
    results = {name: row for gate in GATES for name, row in state_of(gate, "PASS").items()}
    verdict = decide(ALL, "exact", results, ValueInterval(high - 1, high - 2, high, "EUR"), NOW)
    assert verdict.reason == "value_negligible"
    assert verdict.explanation.startswith(said)


def needed(value: ValueInterval, minimum: MinimumValue) -> str:
    results = {name: row for gate in GATES for name, row in state_of(gate, "PASS").items()}
    verdict = decide(replace(ALL, minimum_value=minimum), "exact", results, value, NOW)
    assert verdict.reason in {"insufficient_evidence", "value_negligible"}
    return verdict.explanation


def test_a_straddling_value_is_told_with_its_interval() -> None:
    minimum = MinimumValue(0.002, "EUR")
    said = needed(ValueInterval(0.0069, 0.0015, 0.012, "EUR"), minimum)
    assert said.endswith(
        "still needed: narrow the value interval: 0.0069 EUR a task [0.0015, 0.012] straddles the "
        "minimum of 0.002 EUR."
    )
    close = needed(ValueInterval(0.00203, 0.0019996, 0.012, "EUR"), minimum)
    assert "0.00203 EUR a task [0.0019996, 0.012]" in close  # two digits would read as the minimum
    short = needed(ValueInterval(0.001, 0.0, 0.00199999997, "EUR"), minimum)
    assert "At most 0.00199999997 EUR a task is gained, less than the minimum of 0.002" in short


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (0.002003, 0.002, ("0.002003", "0.002")),
        (0.0020341, 0.002034, ("0.0020341", "0.002034")),  # 0.00203 would read as the smaller one
        (0.0031, 0.002, ("0.0031", "0.002")),
        (0.002, 0.002, ("0.002", "0.002")),
        (-0.0020001, -0.002, ("−0.0020001", "−0.002")),
        (0.00200000013, 0.00200000012, ("0.00200000013", "0.00200000012")),
    ],
)
def test_amounts_that_are_compared_read_in_their_true_order(
    first: float, second: float, told: tuple[str, str]
) -> None:
    assert compared(first, second, 3) == told


outcomes = st.sampled_from(list(Outcome))


@given(
    found=st.dictionaries(st.sampled_from(GATES), st.tuples(outcomes, st.integers(-100, 100))),
    extra=st.sets(st.sampled_from(GATES)),
    contract=st.sampled_from(["exact", "approximate"]),
    allow=st.booleans(),
    minimum=st.sampled_from([None, MINIMUM]),
    value=st.sampled_from(list(VALUES.values())),
)
def test_fails_closed(
    *,
    found: dict[str, tuple[Outcome, int]],
    extra: set[str],
    contract: str,
    allow: bool,
    minimum: MinimumValue | None,
    value: ValueInterval | None,
) -> None:
    mandatory = tuple(g for g in GATES if g in {"equivalence", "serving", *extra})
    policy = replace(ALL, mandatory_gates=mandatory, allow_approximate=allow, minimum_value=minimum)
    results = {
        gate: stored(gate, outcome, timedelta(minutes=minutes))
        for gate, (outcome, minutes) in found.items()
    }
    verdict = decide(policy, contract, results, value, NOW)
    assert verdict.reason in REASONS
    good = {gate for gate, (outcome, minutes) in found.items() if outcome == "PASS" and minutes > 0}
    if not set(mandatory) <= good:
        assert verdict.action == "bypass"
    if any(outcome == "FAIL" for outcome, _ in found.values()):
        assert verdict.action == "bypass"
    if contract == "approximate" and not (allow and "outcome" in good):
        assert verdict.action == "bypass"
    if minimum is not None and (value is None or not value.low > minimum.per_task):
        assert verdict.action == "bypass"


def test_enable_carries_region_rules_and_expiry() -> None:
    results = passing() | {"serving": stored("serving", expires=HOUR / 2)}
    verdict = decide(ALL, "exact", results, GOOD, NOW)
    assert verdict.gamma == 2
    assert verdict.gamma_by_concurrency == {1: 4, 4: 2}
    assert verdict.evidence_expires_at == NOW + HOUR / 2
    rules = ALL.bypass
    assert verdict.envelope == Envelope(
        max_concurrency=4,
        max_context_tokens=256,
        min_remaining_tokens=rules.min_remaining_tokens,
        min_acceptance=rules.min_acceptance,
        max_memory_utilisation=rules.max_memory_utilisation,
        max_draft_queue=rules.max_draft_queue,
    )


def test_the_stricter_of_measured_and_declared_limits_holds() -> None:
    envelope = {"max_concurrency": 99, "min_acceptance": 0.6, "min_remaining_tokens": 1}
    results = passing() | {"serving": stored("serving", envelope=envelope)}
    found = decide(ALL, "exact", results, GOOD, NOW).envelope
    assert found.max_concurrency == 4
    assert found.min_acceptance == 0.6
    assert found.min_remaining_tokens == ALL.bypass.min_remaining_tokens


def test_a_stricter_policy_shortens_the_life_of_stored_evidence() -> None:
    strict = replace(ALL, evidence_ttl_s=1800.0)
    verdict = decide(strict, "exact", passing(), GOOD, NOW)
    assert verdict.reason == "insufficient_evidence"
    assert "expired" in verdict.still_needed[0]


def test_evidence_expires_at_the_instant() -> None:
    results = passing() | {"outcome": stored("outcome", expires=timedelta(0))}
    assert decide(ALL, "exact", results, GOOD, NOW).action == "bypass"


def test_a_failure_does_not_expire() -> None:
    results = passing() | {"equivalence": stored("equivalence", Outcome.FAIL, expires=-HOUR)}
    assert decide(ALL, "exact", results, GOOD, NOW).reason == "equivalence_failed"


def test_a_failure_of_a_gate_nobody_demanded_still_bypasses() -> None:
    results = passing() | {"outcome": stored("outcome", Outcome.FAIL)}
    assert decide(TWO, "exact", results, None, NOW).reason == "outcome_failed"


def test_optional_gates_may_be_absent() -> None:
    results = passing()
    del results["outcome"]
    verdict = decide(TWO, "exact", results, None, NOW)
    assert (verdict.action, verdict.reason) == ("enable", "gates_passed")


def test_every_gap_is_named() -> None:
    results = {
        "equivalence": StoredGate(
            GateResult("equivalence", Outcome.INCONCLUSIVE, (), still_needed="4,000 tokens more"),
            NOW - HOUR,
            NOW + HOUR,
            "run",
        )
    }
    needed = decide(ALL, "exact", results, GOOD, NOW).still_needed
    assert needed == (
        "equivalence is INCONCLUSIVE: 4,000 tokens more",
        "run the serving gate",
        "run the outcome gate",
    )


def test_nobody_is_told_to_run_a_gate_that_the_artifact_cannot_be_put_through() -> None:
    results = passing()
    del results["serving"], results["outcome"]
    serving, outcome = decide(ALL, "exact", results, GOOD, NOW, refused=("outcome",)).still_needed
    assert serving == "run the serving gate"
    assert outcome.startswith("the outcome gate, which cannot be measured on servers")


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        ({"1": 0, "4": 0}, "serving_failed"),
        ({}, "insufficient_evidence"),
        (None, "insufficient_evidence"),
        ({"one": 4}, "insufficient_evidence"),
        ({"1": None}, "insufficient_evidence"),
        ({"1": -4}, "insufficient_evidence"),
        ([4], "insufficient_evidence"),
    ],
)
def test_a_pass_without_a_usable_window_enables_nothing(windows: Any, reason: str) -> None:
    results = passing() | {"serving": stored("serving", gamma_by_concurrency=windows)}
    assert decide(ALL, "exact", results, GOOD, NOW).reason == reason


def test_a_window_that_nobody_stated_is_asked_for_by_name() -> None:
    results = passing() | {"serving": stored("serving", gamma_by_concurrency={"1": None})}
    assert "--gamma" in decide(ALL, "exact", results, GOOD, NOW).explanation
    results = passing() | {"serving": stored("serving", gamma_by_concurrency={"one": 4})}
    assert "--gamma" not in decide(ALL, "exact", results, GOOD, NOW).explanation


@pytest.mark.parametrize("envelope", [[4], {"max_concurrency": "4"}, {"max_concurrency": math.nan}])
def test_a_pass_without_readable_limits_enables_nothing(envelope: Any) -> None:
    results = passing() | {"serving": stored("serving", envelope=envelope)}
    assert decide(ALL, "exact", results, GOOD, NOW).reason == "insufficient_evidence"


def test_approximate_artifacts() -> None:
    allowing = replace(TWO, allow_approximate=True)
    measured = passing() | {"equivalence": stored("equivalence", tolerance=[{"deviation": 0.03}])}
    assert decide(TWO, "approximate", measured, None, NOW).reason == "equivalence_failed"
    enabled = decide(allowing, "approximate", measured, None, NOW)
    assert enabled.action == "enable"
    assert enabled.approximate
    assert "approximate" in enabled.explanation
    lease = grant(allowing, enabled, route="r", artifact="a", version=(1, 1), now=NOW)
    assert lease.variant == "approximate-gamma-2"
    # the outcome gate is owed even though this policy does not demand it
    without = {g: r for g, r in measured.items() if g != "outcome"}
    assert decide(allowing, "approximate", without, None, NOW).reason == "insufficient_evidence"
    failed = measured | {
        "equivalence": stored("equivalence", Outcome.FAIL, tolerance=[{"deviation": 0.5}])
    }
    assert decide(allowing, "approximate", failed, None, NOW).reason == "equivalence_failed"


@pytest.mark.parametrize("deviation", [None, math.nan, "small", True])
def test_approximate_needs_a_measured_deviation(deviation: Any) -> None:
    allowing = replace(TWO, allow_approximate=True)
    rows = [{"deviation": 0.01}, {"deviation": deviation}]
    results = passing() | {"equivalence": stored("equivalence", tolerance=rows)}
    verdict = decide(allowing, "approximate", results, None, NOW)
    assert verdict.reason == "insufficient_evidence"
    assert "deviation" in verdict.still_needed[0]


@pytest.mark.parametrize("rows", [None, [], {}, "none", [7]])
def test_approximate_needs_readable_deviations(rows: Any) -> None:
    allowing = replace(TWO, allow_approximate=True)
    results = passing() | {"equivalence": stored("equivalence", tolerance=rows)}
    assert decide(allowing, "approximate", results, None, NOW).reason == "insufficient_evidence"


def test_overrides() -> None:
    stop = Override("bypass", "incident 7", "ada", NOW + HOUR)
    verdict = decide(ALL, "exact", passing(), GOOD, NOW, override=stop)
    assert (verdict.action, verdict.reason) == ("bypass", "override")
    assert "ada" in verdict.explanation
    lapsed = replace(stop, expires_at=NOW)
    assert decide(ALL, "exact", passing(), GOOD, NOW, override=lapsed).action == "enable"
    waiver = Override("enable", "trial", "ada", NOW + HOUR, gamma=3)
    waived = decide(ALL, "exact", {}, None, NOW, override=waiver)
    assert (waived.action, waived.gamma, waived.reason) == ("enable", 3, "override")
    assert waived.evidence_expires_at == NOW + HOUR


@pytest.mark.parametrize(
    "fields",
    [
        ("maybe", "why", "ada", NOW, None),
        ("bypass", "", "ada", NOW, None),
        ("bypass", "why", "", NOW, None),
        ("enable", "why", "ada", NOW, None),
        ("enable", "why", "ada", NOW, 0),
    ],
)
def test_half_an_override_is_refused(fields: Any) -> None:
    with pytest.raises(InputError, match=r"override\."):
        Override(*fields)


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(InputError, match=r"acceptance\.contract=lossless"):
        decide(ALL, "lossless", passing(), GOOD, NOW)
    with pytest.raises(InputError, match="file each result"):
        decide(ALL, "exact", {"serving": stored("equivalence")}, GOOD, NOW)


SLOW = replace(ALL, hysteresis_s=600.0, cooldown_s=3600.0)
ENABLED = decide(ALL, "exact", passing(), GOOD, NOW)
BYPASSED = decide(ALL, "exact", {}, GOOD, NOW)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_enable_waits_for_an_unbroken_run() -> None:
    verdict, hold = settle(SLOW, ENABLED, Hold(), NOW)
    assert (verdict.action, verdict.reason) == ("bypass", "insufficient_evidence")
    assert (verdict.gamma, verdict.gamma_by_concurrency) == (0, {})
    assert settle(SLOW, ENABLED, hold, after(599))[0].action == "bypass"
    broken = settle(SLOW, BYPASSED, hold, after(300))[1]
    assert settle(SLOW, ENABLED, broken, after(601))[0].action == "bypass"
    verdict, hold = settle(SLOW, ENABLED, hold, after(600))
    assert verdict == ENABLED
    assert settle(SLOW, ENABLED, hold, after(601))[0].action == "enable"


def test_bypass_takes_effect_at_once_and_cools_down() -> None:
    hold = Hold("enable", NOW)
    verdict, hold = settle(SLOW, BYPASSED, hold, after(10))
    assert verdict == BYPASSED
    assert hold.fell_back_at == after(10)
    verdict, hold = settle(SLOW, ENABLED, hold, after(20))
    assert settle(SLOW, ENABLED, hold, after(3609))[0].action == "bypass"
    assert settle(SLOW, ENABLED, hold, after(3610))[0].action == "enable"


def test_override_takes_effect_at_once_and_stability_starts_again() -> None:
    waiver = Override("enable", "trial", "ada", after(60), gamma=3)
    overridden = decide(SLOW, "exact", passing(), GOOD, NOW, override=waiver)
    verdict, hold = settle(SLOW, overridden, Hold(), NOW)
    assert verdict.action == "enable"
    assert settle(SLOW, ENABLED, hold, after(61))[0].action == "bypass"
    stop = replace(waiver, action="bypass")
    stopped = decide(SLOW, "exact", passing(), GOOD, NOW, override=stop)
    assert settle(SLOW, stopped, Hold("enable", NOW), NOW)[1] == Hold("bypass", None, NOW)


def test_lease_never_outlives_its_evidence() -> None:
    results = passing() | {"outcome": stored("outcome", expires=timedelta(seconds=7))}
    verdict = decide(ALL, "exact", results, GOOD, NOW)
    lease = grant(ALL, verdict, route="chat", artifact="a" * 64, version=(1, 2), now=NOW)
    assert (lease.ttl_s, lease.max_stale_s) == (7, 7)
    assert lease.variant == "gamma-2"


def test_lease_has_exactly_the_published_fields() -> None:
    lease = grant(ALL, ENABLED, route="chat", artifact="a" * 64, version=(1, 2), now=NOW)
    document = lease.to_dict()
    assert list(document) == [
        "route",
        "action",
        "variant",
        "gamma",
        "gamma_by_concurrency",
        "artifact",
        "reason",
        "explanation",
        "gates",
        "value",
        "envelope",
        "version",
        "decided_at",
        "evidence_expires_at",
        "ttl_s",
        "max_stale_s",
        "rollout",
    ]
    assert document["value"] == {"per_task": 1.0, "low": 0.6, "high": 1.4, "currency": "EUR"}
    assert document["gamma_by_concurrency"] == {"1": 4, "4": 2}
    assert Lease.from_dict(document) == lease
    assert Lease.from_dict({**document, "added_later": 1}) == lease
    bypass = grant(ALL, BYPASSED, route="chat", artifact=None, version=(1, 3), now=NOW)
    assert bypass.variant == "ordinary"
    assert Lease.from_dict(bypass.to_dict()) == bypass
