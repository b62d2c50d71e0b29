from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.bypass import (
    RULES,
    Envelope,
    Lease,
    RequestContext,
    decide_request,
    gamma_at,
)
from gatekeeper.errors import InputError, UnknownKey

ENVELOPE = Envelope(
    max_concurrency=8,
    max_context_tokens=1000,
    min_remaining_tokens=4,
    min_acceptance=0.3,
    max_memory_utilisation=0.9,
    max_draft_queue=2,
)
LEASE = Lease(
    route="chat",
    action="enable",
    variant="gamma-2",
    gamma=2,
    gamma_by_concurrency={1: 4, 4: 3, 8: 2},
    artifact="a" * 64,
    reason="gates_passed",
    explanation="Every gate passed.",
    gates=(),
    value=None,
    envelope=ENVELOPE,
    version=(1, 1),
    decided_at=datetime(2026, 3, 1, tzinfo=UTC),
    evidence_expires_at=None,
    ttl_s=30,
    max_stale_s=120,
)
FINE = RequestContext(
    concurrency=4,
    context_tokens=1000,
    remaining_tokens=4,
    acceptance=0.3,
    memory_utilisation=0.9,
    draft_queue=2,
    artifact="a" * 64,
)


def test_inside_every_limit_it_speculates() -> None:
    decision = decide_request(LEASE, FINE, age_s=120)
    assert (decision.action, decision.gamma, decision.reason) == ("enable", 3, "gates_passed")
    assert decision.unchecked == ()


BREACHES = {
    "concurrency": (9, "outside_envelope"),
    "context_tokens": (1001, "outside_envelope"),
    "remaining_tokens": (3, "few_remaining_tokens"),
    "acceptance": (0.29, "low_acceptance"),
    "memory_utilisation": (0.91, "memory_pressure"),
    "draft_queue": (3, "draft_overloaded"),
    "artifact": ("b" * 64, "version_mismatch"),
}


@pytest.mark.parametrize("fact", BREACHES)
def test_each_rule_bypasses_alone(fact: str) -> None:
    value, reason = BREACHES[fact]
    decision = decide_request(LEASE, replace(FINE, **{fact: value}))
    assert (decision.action, decision.gamma, decision.reason) == ("bypass", 0, reason)
    assert reason in RULES
    assert decision.explanation.endswith(".")


@given(st.dictionaries(st.sampled_from(list(BREACHES)), st.booleans(), min_size=1))
def test_any_breach_bypasses_whatever_else_holds(breached: dict[str, bool]) -> None:
    values = {fact: BREACHES[fact][0] for fact, broken in breached.items() if broken}
    decision = decide_request(LEASE, replace(FINE, **values))
    assert (decision.action == "bypass") is bool(values)


@pytest.mark.parametrize("fact", ["acceptance", "memory_utilisation"])
def test_a_fact_that_is_no_number_bypasses(fact: str) -> None:
    assert decide_request(LEASE, replace(FINE, **{fact: math.nan})).action == "bypass"


@pytest.mark.parametrize("age", [120.1, math.inf, math.nan])
def test_a_lapsed_lease_bypasses(age: float) -> None:
    assert decide_request(LEASE, FINE, age_s=age).reason == "lease_lapsed"


def test_no_lease_bypasses() -> None:
    assert decide_request(None, FINE).reason == "lease_lapsed"


def test_a_bypass_lease_keeps_its_reason() -> None:
    lease = replace(LEASE, action="bypass", reason="serving_failed", gamma=0)
    decision = decide_request(lease, FINE)
    assert (decision.action, decision.gamma, decision.reason) == ("bypass", 0, "serving_failed")


def test_unknown_facts_are_listed_and_take_the_safe_window() -> None:
    decision = decide_request(LEASE, RequestContext())
    assert (decision.action, decision.gamma) == ("enable", 2)
    assert set(decision.unchecked) == set(BREACHES)
    no_limits = replace(LEASE, envelope=Envelope())
    assert decide_request(no_limits, RequestContext()).unchecked == ("artifact",)


@pytest.mark.parametrize(
    ("concurrency", "gamma"), [(0, 0), (1, 4), (2, 3), (4, 3), (5, 2), (8, 2), (9, 0)]
)
def test_window_between_measured_levels(concurrency: int, gamma: int) -> None:
    assert gamma_at(LEASE.gamma_by_concurrency, concurrency) == gamma


def test_a_level_that_failed_closes_its_surroundings() -> None:
    windows = {1: 4, 4: 0, 8: 2}
    assert [gamma_at(windows, c) for c in (1, 2, 4, 6, 8)] == [4, 0, 0, 0, 2]
    lease = replace(LEASE, gamma_by_concurrency=windows)
    assert decide_request(lease, replace(FINE, concurrency=6)).reason == "outside_envelope"


def test_context_documents_are_strict() -> None:
    document = {"concurrency": 2, "acceptance": 1, "artifact": None}
    assert RequestContext.from_dict(document) == RequestContext(concurrency=2, acceptance=1.0)
    with pytest.raises(UnknownKey, match=r"context\.load=1"):
        RequestContext.from_dict({"load": 1})
    with pytest.raises(InputError, match=r"context\.concurrency=2\.5"):
        RequestContext.from_dict({"concurrency": 2.5})


@pytest.mark.parametrize(
    "module",
    [
        "gatekeeper.core",
        "gatekeeper.core.bypass",
        "gatekeeper.core.verdicts",
        "gatekeeper.core.claims",
        "gatekeeper.core.policies",
    ],
)
def test_the_request_path_loads_no_numpy(module: str) -> None:
    heavy = "numpy", "pandas", "scipy", "statsmodels", "sqlalchemy", "fastapi", "torch"
    program = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
