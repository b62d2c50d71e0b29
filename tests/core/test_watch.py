"""What one look means: in range, out of it on either side, or not known."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.watch import (
    DESIGN_EFFECT,
    Judgement,
    Reference,
    Sighting,
    WatchState,
    judge,
)
from gatekeeper.core.watch_counts import LiveCounts, design_effect
from gatekeeper.core.watch_detector import ALPHA, START, alarms, follow, wilson
from gatekeeper.errors import InputError

REFERENCE = Reference(
    "run-1",
    measured=(0.55, 0.60),
    min_acceptance=0.25,
    max_memory_utilisation=0.9,
    max_draft_queue=8,
    expected={"version": "1", "weights": "w"},
)
GATED = {"version": "1", "weights": "w", "model": "m"}
BUSY = 4000
"""Draft tokens that a small engine proposes in one look: 20 streams, 7.5 s, 27 tokens a second."""


def sight(rate: float | None = 0.58, drafted: int = BUSY, **changes: Any) -> Sighting:
    counts = None
    if rate is not None:
        counts = LiveCounts(drafted // 4, drafted, round(rate * drafted))
    given: dict[str, Any] = {"memory_utilisation": 0.3, "waiting": 0, "readings": GATED}
    return Sighting(counts, **{**given, **changes})


def looks(*sightings: Sighting, reference: Reference = REFERENCE) -> tuple[WatchState, Judgement]:
    state, judgement = WatchState(), None
    for sighting in sightings:
        state, judgement = judge(state, sighting, reference)
        # what is remembered survives the way through the database
        assert WatchState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert judgement is not None
    return state, judgement


def reasons(judgement: Judgement) -> list[str | None]:
    return [finding.reason for finding in judgement.raised]


def test_all_is_well() -> None:
    _, judgement = looks(sight())
    assert judgement.outcome == "ok"
    assert [f.outcome for f in judgement.findings] == ["ok"] * 4
    acceptance = judgement.findings[0].says
    assert acceptance.startswith("0.580 [0.531, 0.627] of 4000 draft tokens")
    assert "measured 0.550 to 0.600, least 0.350, most 0.800" in acceptance


def test_the_bounds_come_from_policy_and_evidence() -> None:
    assert (REFERENCE.floor, REFERENCE.ceiling) == (pytest.approx(0.35), pytest.approx(0.80))
    only_policy = Reference("r", min_acceptance=0.25)
    assert (only_policy.floor, only_policy.ceiling) == (0.25, None)
    high = Reference("r", measured=(0.9, 0.95))
    assert (high.floor, high.ceiling) == (pytest.approx(0.7), None)
    assert Reference("r", measured=(0.1, 0.1)).floor is None


@pytest.mark.parametrize(
    ("rate", "reason"),
    [(0.1, "low_acceptance"), (0.2, "low_acceptance"), (0.97, "high_acceptance")],
)
def test_acceptance_far_out_alarms_in_one_look(rate: float, reason: str) -> None:
    assert reasons(looks(sight(rate))[1]) == [reason]


def test_a_slow_decline_alarms_and_a_good_past_does_not_delay_it() -> None:
    past = [sight()] * 200
    state, judgement = looks(*past)
    assert judgement.outcome == "ok"
    n = 0
    while not judgement.raised:
        state, judgement = judge(state, sight(0.31), REFERENCE)
        n += 1
    assert 1 < n <= 20


@settings(max_examples=50)
@given(st.integers(0, 30), st.integers(0, 30))
def test_a_handful_of_tokens_never_alarms(drafted: int, accepted: int) -> None:
    counts = LiveCounts(drafted, drafted, min(accepted, drafted))
    assert not judge(WatchState(), Sighting(counts), REFERENCE)[1].raised


def test_no_traffic_is_unknown_and_moves_nothing() -> None:
    """Shows 8: "traffic stops and the gate advances"."""
    state, judgement = looks(sight(0.31), sight(drafted=0))
    assert judgement.outcome == "unknown"
    assert "no tokens were drafted" in judgement.findings[0].says
    assert state.low == looks(sight(0.31))[0].low
    assert looks(sight(None))[1].outcome == "unknown"
    assert looks(sight(restarted=True))[1].outcome == "unknown"


def test_a_problem_keeps_a_look_from_being_well() -> None:
    """Shows 8: "misnamed metric passes"."""
    assert looks(sight(problems=("vllm:kv_cache_usage_perc is missing",)))[1].outcome == "unknown"
    assert looks(sight(), reference=Reference("r"))[1].outcome == "unknown"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_no_share_is_refused(bad: float) -> None:
    """Shows 8: "NaN passes"."""
    with pytest.raises(InputError, match="memory_utilisation"):
        sight(memory_utilisation=bad)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"memory_utilisation": 0.95}, "memory_pressure"), ({"waiting": 9}, "draft_overloaded")],
)
def test_what_lasts_two_looks_alarms_and_a_peak_does_not(
    change: dict[str, Any], reason: str
) -> None:
    over = sight(**change)
    assert looks(over)[1].outcome == "ok"
    assert reasons(looks(over, over)[1]) == [reason]
    assert not looks(over, sight(), over)[1].raised
    unseen = sight(**dict.fromkeys(change))
    assert not looks(over, unseen)[1].raised
    assert reasons(looks(over, unseen, over)[1]) == [reason]  # not seen is not well


def test_another_version_than_was_gated() -> None:
    _, judgement = looks(sight(readings={**GATED, "version": "2"}))
    assert reasons(judgement) == ["version_mismatch"]
    assert "version is 2, but 1 was gated" in judgement.raised[0].says
    _, judgement = looks(sight(readings={"weights": "w"}))
    assert judgement.outcome == "unknown"
    assert "version was gated, and is not told" in judgement.findings[-1].says


def test_a_target_that_changes_in_silence() -> None:
    other = sight(readings={**GATED, "model": "n"})
    assert looks(other)[1].outcome == "ok"  # nobody gated a name
    state, judgement = looks(sight(), other)
    assert reasons(judgement) == ["target_changed"]
    assert reasons(judge(state, other, REFERENCE)[1]) == ["target_changed"]  # it stays changed
    unsaid = {k: v for k, v in GATED.items() if k != "model"}
    assert looks(sight(), sight(readings=unsaid))[1].outcome == "ok"


def test_new_evidence_begins_the_watch_anew() -> None:
    changed = sight(0.1, readings={**GATED, "model": "n"})
    state, judgement = looks(sight(), changed, changed)
    assert reasons(judgement) == ["low_acceptance", "target_changed"]
    newer = Reference("run-2", measured=(0.1, 0.1), expected=REFERENCE.expected)
    state, judgement = judge(state, sight(0.1, readings=changed.readings), newer)
    assert not judgement.raised
    assert state.counts.drafted == BUSY


def test_few_false_alarms_at_the_bound_with_requests_that_differ() -> None:
    """4,000 looks of a rate that lies on the bound: ALPHA would allow 0.004 alarms."""
    rng, bound = random.Random(5), 0.5
    alarmed = 0
    for _ in range(4):
        logs = START
        for _ in range(1000):
            hits = trials = 0
            for _ in range(12):
                # requests of 60 draft tokens, whose rates have a standard deviation of 0.14
                rate = rng.betavariate(6, 6)
                trials += 60
                mean, spread = 60 * rate, math.sqrt(60 * rate * (1 - rate))
                hits += min(60, max(0, round(rng.gauss(mean, spread))))
            logs = follow(logs, hits=hits, trials=trials, bound=bound, design_effect=DESIGN_EFFECT)
            if alarms(logs):
                alarmed, logs = alarmed + 1, START
    assert alarmed == 0
    # the guard is the design effect: as if tokens were independent, it flaps
    logs, naive = START, 0
    for _ in range(300):
        hits = sum(round(60 * rng.betavariate(6, 6)) for _ in range(12))
        logs = follow(logs, hits=hits, trials=720, bound=bound, design_effect=1.0)
        if alarms(logs):
            naive, logs = naive + 1, START
    assert naive > 0


@settings(max_examples=30)
@given(st.integers(1, 60), st.floats(0.05, 0.95))
def test_the_detector_is_an_e_value_at_the_bound(n: int, bound: float) -> None:
    """E[M of one look] <= 1 under Binomial(n, bound), for each alternative."""
    totals = [0.0] * len(START)
    for k in range(n + 1):
        weight = math.comb(n, k) * bound**k * (1 - bound) ** (n - k)
        logs = follow(START, hits=k, trials=n, bound=bound, design_effect=1.0)
        totals = [t + weight * math.exp(x) for t, x in zip(totals, logs, strict=True)]
    assert all(t == pytest.approx(1.0, rel=1e-6) for t in totals)


def test_the_alarm_is_at_one_over_alpha() -> None:
    at = -math.log(ALPHA)
    assert alarms([at] * 5)
    assert not alarms([at - 1e-9] * 5)


@settings(max_examples=50)
@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(1, 100))
def test_wilson_contains_the_rate(trials: int, share: float, effect: float) -> None:
    hits = round(share * trials)
    low, high = wilson(hits, trials, design_effect=effect)
    assert 0 <= low <= hits / trials <= high <= 1
    assert low < high


_rows = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 8), st.integers(0, 8)).map(
        lambda r: (r[0], r[1], min(r[1], r[2]))
    ),
    max_size=40,
)


@settings(max_examples=30)
@given(_rows, _rows)
def test_counts_of_disjoint_requests_add(
    one: list[tuple[str, int, int]], two: list[tuple[str, int, int]]
) -> None:
    other = [(name.upper(), d, a) for name, d, a in two]
    both = LiveCounts.from_rounds(one) + LiveCounts.from_rounds(other)
    assert both == LiveCounts.from_rounds([*other, *one])
    assert LiveCounts.from_dict(json.loads(json.dumps(both.to_dict()))) == both
    assert (both + LiveCounts(0, 0, 0)).clusters is None  # unknown stays unknown


def test_the_design_effect_of_requests_that_differ() -> None:
    alike = LiveCounts.from_rounds([(f"r{i}", 1, i % 2) for i in range(200)])
    apart = LiveCounts.from_rounds([(f"r{i}", 10, 10 * (i % 2)) for i in range(200)])
    assert alike.clusters is not None
    assert apart.clusters is not None
    effect = design_effect(alike.accepted, alike.drafted, alike.clusters)
    assert effect == pytest.approx(1.0, rel=0.01)
    assert design_effect(1000, 2000, apart.clusters) == pytest.approx(10.0, rel=0.01)
    few = LiveCounts.from_rounds([("a", 4, 2)])
    assert few.clusters is not None
    assert design_effect(2, 4, few.clusters) is None
