"""The ramp: a step is left only for evidence, and anything else goes back to the first."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.ramp import RampState, Rollout, advance, split_of
from gatekeeper.errors import InputError, UnknownKey

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RAMP = Rollout(steps=(0.05, 0.25, 1.0), holdout=0.05)
FIRST = RampState(0.05, 0.05, NOW, "a")


def after(state: RampState, rollout: Rollout = RAMP, **changes: Any) -> RampState:
    given: dict[str, Any] = {
        "enabled": True,
        "artifact": "a",
        "delivered": False,
        "now": NOW + timedelta(days=1),
        **changes,
    }
    return advance(rollout, state, **given)


def test_a_ramp_goes_through_its_steps_by_what_was_delivered() -> None:
    state = advance(RAMP, RampState(), enabled=True, artifact="a", delivered=True, now=NOW)
    assert state == FIRST  # evidence of before does not skip the first step
    second = after(state, delivered=True)
    assert (second.share, second.since) == (0.25, NOW + timedelta(days=1))
    last = after(second, delivered=True)
    assert last.share == 1.0
    assert after(last, delivered=True) is last


@settings(deadline=None)
@given(st.floats(0, 10**7))
def test_time_alone_moves_nothing(seconds: float) -> None:
    """Shows 8: "traffic stops and the gate advances"."""
    assert after(FIRST, now=NOW + timedelta(seconds=seconds)) is FIRST


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("change", [{"enabled": False}, {"artifact": "b"}])
def test_whatever_ends_an_enable_starts_the_ramp_again(
    change: dict[str, Any], *, delivered: bool
) -> None:
    fallen = after(replace(FIRST, share=1.0), delivered=delivered, **change)
    assert fallen.share == (0.0 if "enabled" in change else 0.05)
    assert after(fallen, artifact="b").share == 0.05


STEPS = st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=4, unique=True).map(
    lambda s: (*sorted(s),)
)


@settings(deadline=None)
@given(STEPS, st.floats(0, 1), st.booleans())
def test_a_ramp_declared_anew_goes_no_further_than_it_was(
    steps: tuple[float, ...],
    share: float,
    delivered: bool,  # noqa: FBT001
) -> None:
    rollout = Rollout(steps=steps, holdout=0.1)
    moved = after(RampState(share, 0.1, NOW, "a"), rollout, delivered=delivered)
    assert moved.share in steps
    if share not in steps:
        assert moved.share <= max(share, steps[0])
        assert moved.since == NOW + timedelta(days=1)


def test_another_holdout_begins_a_new_comparison() -> None:
    state = replace(FIRST, share=0.25)
    moved = after(state, replace(RAMP, holdout=0.1), delivered=True)
    assert (moved.share, moved.holdout) == (0.25, 0.1)
    assert moved.since != state.since


def test_the_split_of_a_step() -> None:
    at = split_of(RAMP, replace(FIRST, share=0.25), route="chat")
    assert (at.salt, at.share, at.holdout, at.step, at.steps) == ("chat", 0.25, 0.05, 2, 3)
    none = split_of(RAMP, RampState(), route="chat")
    assert (none.share, none.step) == (0.0, 0)
    forced = split_of(RAMP, RampState(), route="chat", overridden=True)
    assert (forced.share, forced.holdout, forced.step) == (1.0, 0.05, None)


def test_what_is_stored_is_read_back_to_the_digit() -> None:
    state = RampState(0.1, 0.05, datetime.fromtimestamp(1772366400.1234567, UTC), "a")
    assert RampState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert RampState.from_dict(RampState().to_dict()) == RampState()
    assert Rollout.from_dict(json.loads(json.dumps(RAMP.to_dict()))) == RAMP


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "rollout.steps"),
        ({"steps": []}, "rollout.steps"),
        ({"steps": [0.5, 0.2]}, "rollout.steps"),
        ({"steps": [5, 25, 100]}, "rollout.steps"),
        ({"steps": [0.0, 1.0]}, "rollout.steps"),
        ({"holdout": 0.6}, "rollout.holdout"),
        ({"holdout": 0.1, "min_tasks": 0}, "rollout.min_tasks"),
        ({"holdout": 0.1, "min_step_s": -1}, "rollout.min_step_s"),
        ({"holdout": 0.1, "confidence": 1}, "rollout.confidence"),
        ({"holdout": 0.1, "below_promise": "shrug"}, "rollout.below_promise"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Rollout.from_dict(document)
    assert caught.value.field == field


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(UnknownKey, match="holdouts"):
        Rollout.from_dict({"holdouts": 0.1})
