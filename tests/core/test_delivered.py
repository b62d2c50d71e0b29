"""Promised against delivered: intervals by session, and windows that only counts fill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gatekeeper.core.arms import BASELINE, CANDIDATE, HOLDOUT, MIXED
from gatekeeper.core.delivered import (
    BELOW,
    HARM,
    HELD,
    UNKNOWN,
    Promise,
    difference,
    judge,
    promise_of,
    table_of,
)
from gatekeeper.core.delivered_window import MIN_SESSIONS, ArmTask, counted, missing
from gatekeeper.core.ramp import Rollout

PROMISE = Promise({"value": 0.6, "low": 0.5, "high": 0.7}, 0.02, success_needed=False)
ROLLOUT = Rollout(steps=(0.05, 1.0), min_tasks=50, min_step_s=100.0)


def tasks(
    arm: str, wall_s: float, *, count: int = 100, good: float | None = None, per_session: int = 1
) -> list[ArmTask]:
    rng = np.random.default_rng(count)
    walls = wall_s + rng.normal(0, 0.1, count)
    return [
        ArmTask(
            task=f"{arm}-{i}",
            arm=arm,
            session=f"{arm}-{i // per_session}",
            wall_s=float(wall),
            success=None if good is None else i < good * count,
            arrived_at=1000.0 + i,
        )
        for i, wall in enumerate(walls)
    ]


def found(saved_s: float, promise: Promise = PROMISE, **good: Any) -> Any:
    one = tasks(CANDIDATE, 5 - saved_s, good=good.get("candidate"))
    two = tasks(HOLDOUT, 5, good=good.get("holdout"))
    return judge(table_of([*one, *two]), promise, confidence=0.99)


@pytest.mark.parametrize(
    ("saved_s", "outcome"), [(0.6, HELD), (0.5, HELD), (0.48, HELD), (0.4, BELOW), (-0.2, HARM)]
)
def test_saving_against_its_promise(saved_s: float, outcome: str) -> None:
    delivered = found(saved_s)
    assert delivered.outcome == outcome
    assert delivered.saving.low < saved_s < delivered.saving.high
    assert delivered.success is None


def test_success_against_the_margin() -> None:
    assert found(0.6, candidate=0.9, holdout=0.9).outcome == HELD
    assert found(0.6, candidate=0.5, holdout=0.95).outcome == HARM
    owed = replace(PROMISE, success_needed=True)
    assert found(0.6, owed).outcome == UNKNOWN
    assert found(0.6, owed, candidate=1.0, holdout=1.0).success.value == 0.0


def test_too_little_evidence_is_never_success() -> None:
    assert found(0.6, replace(PROMISE, saving=None)).outcome == UNKNOWN
    assert judge(table_of([]), PROMISE, confidence=0.99).outcome == UNKNOWN
    alone = judge(table_of(tasks(CANDIDATE, 4.4)), PROMISE, confidence=0.99)
    assert alone.outcome == UNKNOWN
    assert promise_of(None) is None
    assert promise_of({"saved_s": {"value": 1, "low": 1, "high": 1}, "first_token_s": None}) is None
    ends = {"value": 1.0, "low": 0.5, "high": 2.0}
    late = {"value": 0.1, "low": 0.0, "high": 0.2}
    net = promise_of({"saved_s": ends, "first_token_s": late})
    assert net == {"value": 0.9, "low": 0.3, "high": 2.0}


def test_singleton_sessions_agree_with_welch() -> None:
    """With one task a session the clustered interval is close to what everybody knows."""
    one, two = tasks(CANDIDATE, 4.4, count=150), tasks(BASELINE, 5.0, count=300)
    ours = difference(table_of([*one, *two]), column="wall_s", confidence=0.95)
    theirs = stats.ttest_ind(
        [t.wall_s for t in one], [t.wall_s for t in two], equal_var=False
    ).confidence_interval(0.95)
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=5e-4)


def test_tasks_of_one_session_count_as_one() -> None:
    def width(copies: int) -> float:
        rows = [
            replace(t, task=f"{t.task}-{c}")
            for arm, wall in ((CANDIDATE, 4.4), (HOLDOUT, 5.0))
            for t in tasks(arm, wall)
            for c in range(copies)
        ]
        interval = difference(table_of(rows), column="wall_s", confidence=0.95)
        assert interval is not None
        return interval.high - interval.low

    assert width(20) == pytest.approx(width(1), rel=0.02)


def test_mixed_tasks_are_in_no_figure() -> None:
    sound = [*tasks(CANDIDATE, 4.4), *tasks(HOLDOUT, 5.0)]
    odd = tasks(MIXED, 100.0)
    one, two = (
        difference(table_of(t), column="wall_s", confidence=0.9) for t in (sound, sound + odd)
    )
    assert one == two
    assert counted(sound + odd) == counted(sound)


def full(**changes: Any) -> tuple[str, ...]:
    sides = [*tasks(CANDIDATE, 4.4), *tasks(BASELINE, 5.0), *tasks(HOLDOUT, 5.0)]
    given = {"since": 950.0 - 100.0, "success_needed": False, **changes}
    return missing(counted(given.pop("tasks", sides)), ROLLOUT, **given)


def test_a_window_is_full_by_counts_and_the_tasks_own_time() -> None:
    assert full() == ()
    assert full(since=1000.0) == (
        "candidate tasks over 100 s: so far they came in over 99 s",
        "ordinary tasks over 100 s: so far they came in over 99 s",
    )
    few = [*tasks(CANDIDATE, 4.4, count=49), *tasks(HOLDOUT, 5.0)]
    assert full(tasks=few) == ("50 candidate tasks: there are 49",)
    alike = [*tasks(CANDIDATE, 4.4, per_session=10), *tasks(HOLDOUT, 5.0)]
    assert full(tasks=alike) == (f"{MIN_SESSIONS} sessions of candidate tasks: there are 10",)
    assert len(full(success_needed=True)) == 4
    assert len(full(tasks=[])) == 6


@pytest.mark.calibration
def test_windows_that_hold_their_promise_are_seldom_taken_for_less() -> None:
    """At the promised low end exactly, with log-normal times and a small side: as the how-to says."""
    rng = np.random.default_rng(20240229)
    alarms = 0
    for _ in range(400):
        rows = []
        for arm, sessions in ((CANDIDATE, 600), (HOLDOUT, 30)):
            mine = rng.lognormal(0, 0.5, sessions)
            number = np.repeat(np.arange(sessions), 1 + rng.poisson(6, sessions))
            walls = mine[number] * rng.lognormal(0, 0.6, len(number))
            rows += [
                ArmTask(f"{arm}{i}", arm, f"{arm}{s}", float(w), None, 0.0)
                for i, (s, w) in enumerate(zip(number, walls, strict=True))
            ]
        promise = replace(PROMISE, saving={"value": 0.0, "low": 0.0, "high": 0.0})
        alarms += judge(table_of(rows), promise, confidence=0.99).outcome in {BELOW, HARM}
    assert alarms <= 24  # 3 in 100, and four standard deviations of that
