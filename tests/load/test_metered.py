from __future__ import annotations

from typing import Any

import pytest

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.load import MeteredEngine, transcripts
from gatekeeper.protocols import Engine
from gatekeeper.testing import Costs, FakeEngine, VirtualClock

HOT = SamplingSettings(temperature=1.0)
COSTS = Costs(prefill_token_s=0.01, draft_token_s=0.001, verify_s=0.02, jitter=0.2)


def metered(clock: VirtualClock) -> MeteredEngine:
    return MeteredEngine(FakeEngine(costs=COSTS, spend=clock.advance, max_batch=4), clock)


def requests(lengths: list[int], gamma: int = 2) -> Any:
    return [DecodeRequest(f"r{i}", (1, 2), n, HOT, i, gamma) for i, n in enumerate(lengths)]


def test_it_is_an_engine() -> None:
    assert isinstance(metered(VirtualClock()), Engine)


def test_bills_add_up_to_the_busy_time() -> None:
    clock = VirtualClock()
    engine = metered(clock)
    bills = {}
    for transcript in transcripts(engine, requests([3, 9, 5, 12, 1, 7]), in_flight=3):
        bills[transcript.request.request_id] = engine.settle(transcript.request.request_id)
    assert len(bills) == 6
    assert sum(bills.values()) == pytest.approx(clock())
    assert min(bills, key=lambda name: bills[name]) == "r4"


def test_time_between_steps_is_nobodys() -> None:
    clock = VirtualClock()
    engine = metered(clock)
    bill = 0.0
    idle = 0.0
    for transcript in transcripts(engine, requests([4, 8, 6]), in_flight=1):
        bill += engine.settle(transcript.request.request_id)
        clock.advance(5.0)
        idle += 5.0
    assert bill == pytest.approx(clock() - idle)


def test_a_step_is_shared_by_those_in_flight() -> None:
    now = VirtualClock()
    costs = Costs(verify_s=1.0)
    engine = MeteredEngine(FakeEngine(costs=costs, spend=now.advance), now)
    found = {}
    for transcript in transcripts(engine, requests([1, 3], gamma=0), in_flight=2):
        found[transcript.request.request_id] = engine.settle(transcript.request.request_id)
    assert found == {"r0": pytest.approx(0.5), "r1": pytest.approx(2.5)}


def test_a_cancelled_request_bills_nobody() -> None:
    clock = VirtualClock()
    engine = metered(clock)
    for request in requests([5, 5]):
        engine.submit(request)
    engine.step()
    engine.cancel("r0")
    engine.step()
    with pytest.raises(KeyError):
        engine.settle("r0")
