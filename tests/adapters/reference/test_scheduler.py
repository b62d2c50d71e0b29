from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import Record, drive

from gatekeeper.core.decoding import DecodeRequest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def text(size: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 97, size).tolist())


def plan(scheduler: Any) -> dict[str, tuple[int, int | None]]:
    """Tokens cached and window of each work; prompts count as cached then, texts grow by one."""
    works = scheduler.plan()
    assert [work.sequence.slot for work in works] == sorted(work.sequence.slot for work in works)
    out = {}
    for work in works:
        out[work.sequence.id] = (work.until - work.sequence.cached, work.window)
        work.sequence.cached = work.until
        if work.window is not None:
            work.sequence.append([0])
    return out


def scheduler(**changes: Any) -> Any:
    from gatekeeper_adapters.engines.reference.limits import Limits
    from gatekeeper_adapters.engines.reference.scheduler import Scheduler

    most = changes.pop("most_candidates", int)
    return Scheduler(
        Limits(**{"max_batch": 4, "max_context": 256, "prefill_chunk": 32, **changes}), most
    )


def test_a_long_prompt_is_not_held_up_by_a_stream_of_short_ones() -> None:
    queue = scheduler()
    queue.submit(DecodeRequest("long", text(200), 50))
    queue.admit()
    for step in range(7):
        queue.submit(DecodeRequest(f"short{step}", text(20), 1))
        for sequence in queue.admit():
            assert sequence.id != "long"
        done = plan(queue)
        assert done["long"] == ((32, None) if step < 6 else (8, 0))
        for name in [n for n in queue.active if n != "long" and n in done]:
            queue.retire(name)
    assert plan(queue)["long"] == (1, 0)


def test_a_long_prompt_behind_others_starts_in_turn() -> None:
    queue = scheduler(max_batch=2)
    for name, size in (("a", 40), ("b", 40), ("long", 100), ("c", 10), ("d", 10)):
        queue.submit(DecodeRequest(name, text(size), 4))
    started = []
    for _ in range(40):
        started += [sequence.id for sequence in queue.admit()]
        plan(queue)
        for name in [n for n, s in queue.active.items() if s.ended(256)]:
            queue.retire(name)
    assert started == ["a", "b", "long", "c", "d"]
    assert not queue.active


def test_decoding_goes_on_beside_prompts_and_pieces_are_whole_blocks() -> None:
    queue = scheduler(prefill_chunk=40)
    queue.submit(DecodeRequest("busy", text(1), 99, gamma=3))
    queue.submit(DecodeRequest("p", text(70), 9))
    queue.submit(DecodeRequest("q", text(30), 9))
    queue.admit()
    first, second, third = plan(queue), plan(queue), plan(queue)
    assert first == {"busy": (1, 3), "p": (32, None)}
    assert second == {"busy": (1, 3), "p": (38, 0)}  # the chunk has 2 tokens left: no whole block
    assert third == {"busy": (1, 3), "p": (1, 0), "q": (30, 0)}


def test_a_chunk_below_one_block_still_moves_prompts() -> None:
    queue = scheduler(prefill_chunk=1)
    queue.submit(DecodeRequest("p", text(40), 2))
    queue.admit()
    assert [plan(queue)["p"] for _ in range(3)] == [(16, None), (16, None), (8, 0)]


def test_windows_end_with_the_text_and_with_the_slots_rows() -> None:
    queue = scheduler(max_context=40, prefill_chunk=256, most_candidates=lambda gamma: 5 * gamma)
    queue.submit(DecodeRequest("few", text(4), 3, gamma=8))
    queue.submit(DecodeRequest("edge", text(24), 99, gamma=8))
    queue.submit(DecodeRequest("none", text(39), 99, gamma=8))
    queue.submit(DecodeRequest("plain", text(4), 99))
    queue.admit()
    done = plan(queue)
    assert done["few"][1] == 2  # two drafts and a bonus are all it may still emit
    assert done["edge"][1] == 3  # 15 candidates fit the 16 rows left, 20 do not
    assert done["none"][1] == 0
    assert done["plain"][1] == 0


def test_slots_come_back_whatever_the_request_was_doing(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm", max_batch=2, prefill_chunk=16)
    alone = {
        f"r{i}": drive(engine, [DecodeRequest(f"r{i}", text(60, i), 6, gamma=2)]).tokens[f"r{i}"]
        for i in range(4)
    }
    record = Record()
    for i in range(4):
        engine.submit(DecodeRequest(f"r{i}", text(60, i), 6, gamma=2))
    record.take(engine.step())
    engine.cancel("r0")  # in the middle of its prompt
    engine.cancel("r2")  # waiting
    assert sorted(engine._scheduler._free) == [0]
    record.take(engine.step())
    assert record.reasons == {"r0": "cancelled", "r2": "cancelled"}
    assert set(engine._scheduler.active) == {"r1", "r3"}
    engine.submit(DecodeRequest("r0", text(60, 0), 6, gamma=2))  # the id is free again
    while len(record.reasons) < 4 or "r0" in engine._scheduler:
        record.take(engine.step())
    assert record.tokens == {name: alone[name] for name in ("r0", "r1", "r3")}
    assert sorted(engine._scheduler._free) == [0, 1]
    assert not engine._proposer._cached


def test_a_long_prompt_finishes_while_short_requests_keep_coming(open_tiny: Any) -> None:
    engine = open_tiny("ngram", max_batch=3, prefill_chunk=16)
    engine.submit(DecodeRequest("long", text(200), 4, gamma=2))
    record = Record()
    for step in range(40):
        engine.submit(DecodeRequest(f"s{step}", text(12, step), 3, gamma=2))
        record.take(engine.step())
    assert record.reasons["long"] == "length"
    assert sum(name.startswith("s") for name in record.reasons) > 10
