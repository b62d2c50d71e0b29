from __future__ import annotations

from typing import Any

import pytest

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import InputError, Unavailable
from gatekeeper.load import REQUEST_COLUMNS, ROUND_COLUMNS, run_block
from gatekeeper.protocols import StepResult
from gatekeeper.testing import Costs, FakeEngine, VirtualClock

HOT = SamplingSettings(temperature=1.0)


def requests(n: int, gamma: int = 0, tokens: int = 10) -> Any:
    return [DecodeRequest(f"r{i}", (1, 2, 3), tokens, HOT, seed=i, gamma=gamma) for i in range(n)]


def engine_and_clock(**more: Any) -> Any:
    clock = VirtualClock()
    costs = Costs(verify_s=0.02, draft_token_s=0.005, prefill_token_s=0.001)
    return FakeEngine(costs=costs, spend=clock.advance, **more), clock


def test_times_of_a_lone_ordinary_request_by_hand() -> None:
    engine, clock = engine_and_clock()
    block = run_block(engine, requests(1), 1, clock)
    (row,) = block.requests.to_dict("records")
    assert row["first_s"] - row["arrival_s"] == pytest.approx(0.023)  # three prompt tokens, a step
    assert row["finish_s"] - row["first_s"] == pytest.approx(9 * 0.02)
    assert row["gaps_s"] == pytest.approx([0.02] * 9)
    assert (row["tokens"], row["first_tokens"], row["reason"]) == (10, 1, "length")
    assert tuple(block.requests.columns) == REQUEST_COLUMNS
    assert tuple(block.rounds.columns) == ROUND_COLUMNS


def test_concurrency_is_held_until_requests_run_out() -> None:
    engine, clock = engine_and_clock(max_batch=4)
    block = run_block(engine, requests(10), 3, clock)
    batch = block.rounds.groupby("step")["batch"].first()
    assert batch.max() == 3
    assert (batch.iloc[:-10] == 3).all()
    assert sorted(block.requests["request_id"]) == [f"r{i}" for i in range(10)]


def test_a_request_arrives_when_a_place_falls_free() -> None:
    engine, clock = engine_and_clock()
    block = run_block(engine, requests(2), 1, clock)
    first, second = block.requests.to_dict("records")
    assert second["arrival_s"] == pytest.approx(first["finish_s"])


def test_steps_with_a_prefill_are_not_steady() -> None:
    engine, clock = engine_and_clock()
    block = run_block(engine, requests(4), 2, clock)
    by_step = block.rounds.groupby("step").agg(steady=("steady", "first"), s=("step_s", "first"))
    assert by_step.loc[by_step["steady"], "s"].to_numpy() == pytest.approx(0.02)
    assert (by_step.loc[~by_step["steady"], "s"] > 0.0229).all()
    assert 0 < by_step["steady"].sum() < len(by_step)


def test_speculative_chunks_hold_several_tokens() -> None:
    engine, clock = engine_and_clock(agreement=1.0)
    block = run_block(engine, requests(3, gamma=4), 3, clock)
    assert (block.requests["first_tokens"] == 5).all()
    assert (block.requests["gaps_s"].map(len) == 1).all()
    assert block.rounds["rejection_position"].isna().all()


def test_cancellation_gives_the_slots_back() -> None:
    engine, clock = engine_and_clock(max_batch=2)
    steps = iter([False] * 3 + [True])
    block = run_block(engine, requests(5), 2, clock, cancelled=lambda: next(steps))
    assert not block.complete
    assert engine.step() == StepResult((), (), ())
    assert run_block(engine, requests(2), 2, clock).complete


@pytest.mark.parametrize(("n", "concurrency"), [(0, 1), (3, 0), (3, 9)])
def test_impossible_blocks_are_refused(n: int, concurrency: int) -> None:
    engine, clock = engine_and_clock(max_batch=8)
    with pytest.raises(InputError):
        run_block(engine, requests(n), concurrency, clock)


def test_a_stuck_engine_does_not_hang_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = engine_and_clock()
    monkeypatch.setattr(engine, "step", lambda: StepResult((), (), ()))
    with pytest.raises(Unavailable, match="no progress"):
        run_block(engine, requests(1), 1, clock)
