from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_builders import span, trace

from gatekeeper.core.critical_path import saving, stretch
from gatekeeper.core.joint_ratios import JointRatio, joint_saving, measured_ratios
from gatekeeper.core.task_profile import profile_task
from gatekeeper.errors import InputError

MS = 10**6


def block(pair: int, arm: str, ttft: float, tpot: float, concurrency: int = 2) -> dict[str, Any]:
    """One request of a block: 11 tokens, the first after ``ttft`` seconds."""
    return {
        "pair": pair,
        "arm": arm,
        "concurrency": concurrency,
        "gamma": 3 if arm == "speculative" else 0,
        "load_class": "short",
        "prompt_tokens": 8,
        "arrival_s": 0.0,
        "first_s": ttft,
        "finish_s": ttft + 10 * tpot,
        "tokens": 11,
        "first_tokens": 1,
        "reason": "length",
        "gaps_s": [tpot] * 10,
    }


def confirm(*speculative: tuple[float, float], concurrency: int = 2) -> pd.DataFrame:
    rows = []
    for pair, (ttft, tpot) in enumerate(speculative):
        rows.append(block(pair, "ordinary", 0.1, 0.02, concurrency))
        rows.append(block(pair, "speculative", ttft, tpot, concurrency))
    return pd.DataFrame(rows)


def call(name: str, start: int, first: int, end: int, **more: Any) -> Any:
    return span(
        name,
        start * MS,
        end * MS,
        parent="root",
        kind="model",
        langfuse__completion_start_ns=first * MS,
        **more,
    )


TASK = profile_task(
    trace(
        span("root", 0, 100 * MS),
        call("one", 0, 10, 50),
        call("two", 50, 60, 100),
        span("beside", 0, 80 * MS, parent="root", kind="tool"),
    )
)


def test_both_ratios_of_a_pair_stay_together() -> None:
    table = confirm((0.1, 0.01), (0.2, 0.005), (0.15, 0.02))
    found = measured_ratios(table, concurrency=2)
    assert [(round(r.prefill, 9), round(r.decode, 9)) for r in found] == [
        (1.0, 0.5),
        (2.0, 0.25),
        (1.5, 1.0),
    ]


@pytest.mark.parametrize("table", [confirm((0.1, 0.01)), confirm((0.1, 0.01), (0.2, 0.01))])
def test_a_level_without_pairs_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="concurrency=3: has 0 usable block pairs"):
        measured_ratios(table, concurrency=3)
    with pytest.raises(InputError, match="has 0 usable"):
        measured_ratios(table.iloc[1:], concurrency=2)  # a pair that lacks an arm


def test_one_ratio_for_all_calls_is_the_what_if_itself() -> None:
    ratios = [JointRatio(1.5, 0.5)] * 2
    found = joint_saving(TASK, ratios, draws=3, rng=np.random.default_rng(1))
    factors = {kind: Fraction(3, 2) for kind in ("queue", "prefill")} | {"decode": Fraction(1, 2)}
    expected = saving(TASK.graph, stretch(TASK.graph, TASK.task, kinds=factors))
    assert found.mean_ns == found.low_ns == found.high_ns == found.at_mean_ns == expected


def test_a_slower_first_token_is_held_against_faster_decoding() -> None:
    rng = np.random.default_rng(2)
    gain = joint_saving(TASK, [JointRatio(1.0, 0.5)] * 2, draws=1, rng=rng)
    harmed = joint_saving(TASK, [JointRatio(3.0, 0.5)] * 2, draws=1, rng=rng)
    assert gain.mean_ns > harmed.mean_ns
    assert harmed.mean_ns == 100 * MS - 2 * (30 + 20) * MS


def test_calls_are_drawn_one_by_one_and_their_two_ratios_together() -> None:
    two = [JointRatio(2.0, 0.25), JointRatio(1.0, 1.0)]
    alone = profile_task(trace(span("root", 0, 100 * MS), *calls()))
    found = joint_saving(alone, two, draws=400, rng=np.random.default_rng(3), confidence=0.999)
    # Each call saves 30 - 10 or nothing: never 30, never -10, and both calls need not agree.
    assert found.low_ns == 0
    assert found.high_ns == 2 * 20 * MS
    assert found.mean_ns == pytest.approx(20 * MS, rel=0.15)
    # Half of all draws give the two calls different pairs: drawn as one, they never would.
    middle = joint_saving(alone, two * 20, draws=400, rng=np.random.default_rng(3), confidence=0.2)
    assert middle.low_ns == middle.high_ns == 20 * MS


def calls() -> list[Any]:
    return [call("one", 0, 10, 50), call("two", 50, 60, 100)]


def test_the_saving_at_the_mean_ratios_overstates_the_mean_saving() -> None:
    two = [JointRatio(1.0, 0.1), JointRatio(1.0, 1.9)]
    found = joint_saving(TASK, two, draws=200, rng=np.random.default_rng(4))
    assert found.at_mean_ns > found.mean_ns + MS


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.2, 4), st.floats(0.1, 4)).map(lambda two: JointRatio(*two)),
        min_size=2,
        max_size=5,
    ),
    st.integers(0, 2**32),
)
def test_a_mean_never_beats_its_ratios_mean(ratios: Any, seed: int) -> None:
    found = joint_saving(TASK, ratios, draws=20, rng=np.random.default_rng(seed))
    assert found.mean_ns <= found.at_mean_ns
    assert found.low_ns <= found.high_ns
    worst = max(max(r.prefill, r.decode) for r in ratios)
    grain = 100 * MS / 2**20  # ratios are multiples of a millionth
    assert found.low_ns >= -(worst - 1) * 100 * MS - grain or worst < 1


def test_phases_in_spans_below_a_call_are_drawn_with_it_and_others_stay() -> None:
    spans = (
        span("root", 0, 100 * MS),
        span("llm", 0, 50 * MS, parent="root", kind="model", who="a"),
        span("p", 0, 10 * MS, parent="llm", kind="prefill"),
        span("d", 10 * MS, 50 * MS, parent="llm", kind="decode"),
        call("other", 50, 60, 100, who="b"),
    )
    profile = profile_task(trace(*spans))
    half = [JointRatio(0.5, 0.5)] * 2
    rng = np.random.default_rng(5)
    both = joint_saving(profile, half, draws=1, rng=rng)
    mine = joint_saving(
        profile, half, draws=1, rng=rng, only=lambda one: one.attributes.get("who") == "a"
    )
    assert both.mean_ns == 50 * MS
    assert mine.mean_ns == 25 * MS


def test_what_cannot_be_priced_or_drawn_is_refused() -> None:
    rng = np.random.default_rng(6)
    hidden = profile_task(trace(span("llm", 0, 10, kind="model")))
    with pytest.raises(InputError, match="is not priced"):
        joint_saving(hidden, [JointRatio(1, 1)] * 2, draws=1, rng=rng)
    with pytest.raises(InputError, match="ratios=1: has no spread"):
        joint_saving(TASK, [JointRatio(1, 1)], draws=1, rng=rng)
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"ratio\.decode"):
            JointRatio(1.0, bad)
