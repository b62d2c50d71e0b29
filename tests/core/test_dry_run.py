"""A route's past decided anew: the same rules, at every moment that could have changed something."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gatekeeper.core.dry_run import (
    Measured,
    OverrideSpan,
    PastAlarm,
    RouteHistory,
    enabled_share,
    replay,
)
from gatekeeper.core.policies import MinimumValue, Override, Policy, StoredGate
from gatekeeper.core.value import ValueInterval
from gatekeeper.core.verdicts import GateResult, Outcome

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
END = START + 100 * HOUR
FOLDER = Path(__file__).parents[2] / "policies"
POLICY = replace(
    Policy.from_dict(yaml.safe_load((FOLDER / "ci.yaml").read_text())),
    evidence_ttl_s=50 * 3600,
)


def measured(gate: str, hours: float, outcome: Outcome = Outcome.PASS, **more: Any) -> Measured:
    summary = {"gamma_by_concurrency": {"1": 3}, "envelope": {}} if gate == "serving" else {}
    at = START + hours * HOUR
    stored = StoredGate(GateResult(gate, outcome, (), summary), at, at + HOUR, f"{gate}@{hours}")
    return Measured("a", stored, at - HOUR / 2, **more)


def history(*gates: Measured, **more: Any) -> RouteHistory:
    return RouteHistory({"a": "exact", "b": "exact"}, ((START, "a"),), gates, **more)


def told(policy: Policy, past: RouteHistory) -> list[tuple[float, str, str]]:
    changes = replay(policy, past, until=END)
    return [((c.at - START) / HOUR, c.action, c.reason) for c in changes]


BOTH = (measured("equivalence", 1), measured("serving", 2))
NEEDED = (0, "bypass", "insufficient_evidence")


def test_an_enable_begins_with_the_last_gate_and_ends_with_the_oldest() -> None:
    assert told(POLICY, history(*BOTH)) == [
        NEEDED,
        (2, "enable", "gates_passed"),
        (51, "bypass", "insufficient_evidence"),
    ]
    shorter = replace(POLICY, evidence_ttl_s=10 * 3600)
    assert told(shorter, history(*BOTH))[-1] == (11, "bypass", "insufficient_evidence")
    renewed = history(*BOTH, measured("equivalence", 20), measured("serving", 21))
    assert told(POLICY, renewed)[-1] == (70, "bypass", "insufficient_evidence")


def test_hysteresis_and_cooldown_are_waited_for() -> None:
    calm = replace(POLICY, hysteresis_s=3600, cooldown_s=5 * 3600)
    again = history(*BOTH, measured("equivalence", 52), measured("serving", 52))
    assert told(calm, again) == [
        NEEDED,
        (3, "enable", "gates_passed"),
        (51, "bypass", "insufficient_evidence"),
        (56, "enable", "gates_passed"),
    ]


def test_a_failed_gate_stands_and_another_artifact_has_nothing() -> None:
    failed = history(*BOTH, measured("serving", 5, Outcome.FAIL), measured("serving", 6))
    assert told(POLICY, failed)[-1] == (5, "bypass", "serving_failed")
    moved = replace(history(*BOTH), artifacts=((START, "a"), (START + 9 * HOUR, "b")))
    assert told(POLICY, moved)[-1] == (9, "bypass", "insufficient_evidence")


def test_a_value_is_demanded_as_the_policy_says() -> None:
    priced = replace(POLICY, minimum_value=MinimumValue(0.5, "EUR"))
    worth = (
        (START, None),
        (START + 4 * HOUR, ValueInterval(1.0, 0.6, 1.4, "EUR")),
        (START + 8 * HOUR, ValueInterval(0.2, 0.1, 0.3, "EUR")),
    )
    assert told(priced, history(*BOTH, values=worth)) == [
        NEEDED,
        (4, "enable", "gates_passed"),
        (8, "bypass", "value_negligible"),
        (51, "bypass", "insufficient_evidence"),
    ]


def test_overrides_and_alarms_held_then_as_they_do_now() -> None:
    word = Override("bypass", "incident", "anna", START + 6 * HOUR)
    held = history(*BOTH, overrides=(OverrideSpan(START + 4 * HOUR, word),))
    assert told(POLICY, held)[2:4] == [(4, "bypass", "override"), (6, "enable", "gates_passed")]
    alarm = PastAlarm("a", "low_acceptance", "acceptance .1", START + 10 * HOUR)
    late = measured("serving", 10.2)  # begun before the alarm
    fresh = measured("serving", 12)
    assert told(POLICY, history(*BOTH, late, fresh, alarms=(alarm,)))[2:4] == [
        (10, "bypass", "low_acceptance"),
        (12, "enable", "gates_passed"),
    ]


def test_the_share_of_the_time() -> None:
    changes = replay(POLICY, history(*BOTH), until=END)
    assert enabled_share(changes, start=START, until=END) == pytest.approx(0.49)
    assert enabled_share(changes, start=START + 50 * HOUR, until=END) == pytest.approx(0.02)
    assert enabled_share((), start=START, until=END) is None
