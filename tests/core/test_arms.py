"""Arms: one hash for server and client, stable, uniform, and independent across routes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gatekeeper.core.arms import ARMS, BASELINE, CANDIDATE, HOLDOUT, Split, places
from gatekeeper.core.bypass import RULES, RequestContext, decide_request
from gatekeeper.core.lease import Envelope, Lease, in_force

SHARES = st.floats(0, 1)
KEYS = st.text(st.characters(), max_size=40)  # lone surrogates too
SPLIT = Split("chat", 0.25, 0.05, 2, 3)
LEASE = Lease(
    route="chat",
    action="enable",
    variant="gamma-2",
    gamma=2,
    gamma_by_concurrency={1: 4, 8: 2},
    artifact="a" * 64,
    reason="gates_passed",
    explanation="Every gate passed.",
    gates=(),
    value=None,
    envelope=Envelope(max_concurrency=8),
    version=(1, 1),
    decided_at=datetime(2026, 3, 1, tzinfo=UTC),
    evidence_expires_at=None,
    ttl_s=30,
    max_stale_s=120,
)
FINE = RequestContext(concurrency=4, artifact="a" * 64)
MANY = [f"user-{i}" for i in range(20_000)]


def split(share: float, holdout: float = 0.0, salt: str = "chat") -> Split:
    return Split(salt, share, holdout, 1, 1)


@settings(deadline=None)
@given(KEYS, SHARES, SHARES, SHARES)
def test_a_key_that_is_in_stays_in_at_every_later_step(
    key: str, one: float, two: float, holdout: float
) -> None:
    early, late = sorted((one, two))
    if split(early, holdout).arm(key) == CANDIDATE:
        assert split(late, holdout).arm(key) == CANDIDATE


@settings(deadline=None)
@given(KEYS, SHARES, SHARES)
def test_a_held_out_key_never_enters_and_a_larger_holdout_keeps_it(
    key: str, one: float, two: float
) -> None:
    less, more = sorted((one, two))
    arms = {split(share, less).arm(key) for share in (0, 0.05, 0.25, 1)}
    assert (arms == {HOLDOUT}) is (HOLDOUT in arms)
    if HOLDOUT in arms:
        assert split(1, more).arm(key) == HOLDOUT


@settings(deadline=None)
@given(KEYS, SHARES, SHARES)
def test_every_key_has_one_arm_and_the_ends_are_exact(key: str, share: float, held: float) -> None:
    assert split(share, held).arm(key) in ARMS
    assert split(1).arm(key) == CANDIDATE
    assert split(0).arm(key) == BASELINE
    assert split(1, 1).arm(key) == HOLDOUT
    assert all(0 <= place < 1 for place in places("chat", key))


def test_places_are_uniform_and_independent_of_each_other_and_across_routes() -> None:
    held, ramp = zip(*(places("chat", key) for key in MANY), strict=True)
    _, other = zip(*(places("search", key) for key in MANY), strict=True)
    for found in (held, ramp, other):
        assert stats.kstest(found, "uniform").pvalue > 0.001
    for one, two in ((held, ramp), (ramp, other)):
        assert stats.spearmanr(one, two).pvalue > 0.001
        both = [[0] * 4 for _ in range(4)]
        for a, b in zip(one, two, strict=True):
            both[int(4 * a)][int(4 * b)] += 1
        assert stats.chi2_contingency(both).pvalue > 0.001


def test_shares_are_what_they_say() -> None:
    arms = [split(0.25, 0.05).arm(key) for key in MANY]
    for arm, expected in ((HOLDOUT, 0.05), (CANDIDATE, 0.95 * 0.25)):
        found = stats.binomtest(arms.count(arm), len(arms), expected)
        assert found.pvalue > 0.001


VECTORS = {
    ("support-chat", "user-1"): (0.5840154368621309, 0.20007312937551303),
    ("support-chat", "Zoë"): (0.24755682779369736, 0.12679487246486498),
    ("search", "user-1"): (0.6827447110638032, 0.36866930334350867),
}


def test_the_documented_examples() -> None:
    """Whoever writes a client in another language checks it against these."""
    assert {pair: places(*pair) for pair in VECTORS} == VECTORS


def test_the_arm_is_the_same_in_every_process() -> None:
    code = (
        "import json, sys; from gatekeeper.core.arms import places;"
        "print(json.dumps([places('chat', k) for k in json.loads(sys.argv[1])]))"
    )
    keys = MANY[:20]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(keys)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == [list(places("chat", key)) for key in keys]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        split(share)
    with pytest.raises(ValueError, match="holdout"):
        split(0.5, share)


def keys_of(arm: str) -> str:
    return next(key for key in MANY if SPLIT.arm(key) == arm)


@pytest.mark.parametrize(
    ("key", "action", "reason", "arm"),
    [
        (keys_of(CANDIDATE), "enable", "gates_passed", CANDIDATE),
        (keys_of(BASELINE), "bypass", "ramp", BASELINE),
        (keys_of(HOLDOUT), "bypass", "holdout", HOLDOUT),
        (None, "bypass", "no_targeting_key", None),
        ("", "bypass", "no_targeting_key", None),
    ],
)
@pytest.mark.parametrize("over_the_wire", [False, True])
def test_a_partial_rollout_goes_by_the_key(
    key: str | None, action: str, reason: str, arm: str | None, *, over_the_wire: bool
) -> None:
    lease = replace(LEASE, rollout=SPLIT)
    if over_the_wire:
        lease = Lease.from_dict(json.loads(json.dumps(lease.to_wire())))
    decision = decide_request(lease, replace(FINE, targeting_key=key))
    assert (decision.action, decision.reason, decision.arm) == (action, reason, arm)
    assert reason in RULES or action == "enable"


def test_the_arm_stays_whatever_the_other_rules_say() -> None:
    lease = replace(LEASE, rollout=SPLIT)
    inside = replace(FINE, targeting_key=keys_of(CANDIDATE))
    crowded = decide_request(lease, replace(inside, concurrency=99))
    assert (crowded.action, crowded.arm) == ("bypass", CANDIDATE)
    bypassed = replace(lease, action="bypass", rollout=replace(SPLIT, share=0.0, step=0))
    assert decide_request(bypassed, inside).arm == BASELINE
    lapsed = decide_request(lease, inside, age_s=1e9)
    assert (lapsed.reason, lapsed.arm) == ("lease_lapsed", None)


def test_a_whole_rollout_needs_no_key_and_a_route_without_one_has_no_arm() -> None:
    assert decide_request(replace(LEASE, rollout=split(1.0)), FINE).action == "enable"
    held = replace(LEASE, rollout=split(1.0, 0.01))
    assert decide_request(held, FINE).reason == "no_targeting_key"
    aimed = decide_request(LEASE, replace(FINE, targeting_key="user-1"))
    assert (aimed.action, aimed.arm) == ("enable", None)


def test_whoever_knows_nothing_of_rollouts_reads_a_bypass() -> None:
    """An older client, or a gateway that reads ``action`` alone, must not let everybody in."""
    lease = replace(LEASE, rollout=SPLIT)
    wire = lease.to_wire()
    older = {name: wire[name] for name in wire if name != "rollout"}
    assert decide_request(Lease.from_dict(older), FINE).action == "bypass"
    assert (wire["gamma"], wire["gamma_by_concurrency"], wire["variant"]) == (0, {}, "ordinary")
    assert in_force(wire)["gamma"] == 2
    assert Lease.from_dict(wire) == lease == Lease.from_dict(lease.to_dict())
    whole = replace(LEASE, rollout=split(1.0))
    assert whole.to_wire() == whole.to_dict()
    assert LEASE.to_wire() == LEASE.to_dict()


def test_context_documents_carry_the_key() -> None:
    assert RequestContext.from_dict({"targeting_key": "u"}).targeting_key == "u"
