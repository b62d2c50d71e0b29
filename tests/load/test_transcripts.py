from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import InputError, Unavailable
from gatekeeper.load import transcripts
from gatekeeper.protocols import StepResult
from gatekeeper.testing import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

HOT = SamplingSettings(temperature=1.0)


def requests(n: int) -> Any:
    return [
        DecodeRequest(f"r{i}", (1, 2), 4 + i % 5, HOT, seed=i, gamma=2, evidence=True)
        for i in range(n)
    ]


def test_every_request_comes_once_with_all_its_tokens() -> None:
    engine = FakeEngine(max_batch=3)
    found = list(transcripts(engine, requests(11), in_flight=5))
    assert sorted(t.request.request_id for t in found) == sorted(f"r{i}" for i in range(11))
    for transcript in found:
        assert len(transcript.tokens) == transcript.request.max_tokens
        assert len(transcript.rounds) == len(transcript.emissions)
        assert all(e.q.shape == (len(e.tokens), 32) for e in transcript.emissions)


def test_requests_are_drawn_only_as_places_fall_free() -> Iterator[Any]:
    drawn = []

    def source() -> Iterator[Any]:
        for one in requests(9):
            drawn.append(one.request_id)
            yield one

    stream = transcripts(FakeEngine(), source(), in_flight=2)
    next(stream)
    assert len(drawn) <= 4
    stream.close()


def test_scoring_between_steps_changes_nothing() -> None:
    plain = {
        t.request.request_id: t.tokens for t in transcripts(FakeEngine(), requests(8), in_flight=4)
    }
    engine = FakeEngine()
    scored = {}
    for transcript in transcripts(engine, requests(8), in_flight=4):
        engine.score(transcript.request.prompt, transcript.tokens, HOT)
        scored[transcript.request.request_id] = transcript.tokens
    assert plain == scored


def test_closing_early_and_cancelling_free_the_engine() -> None:
    engine = FakeEngine(max_batch=2)
    stream = transcripts(engine, requests(9), in_flight=4)
    next(stream)
    stream.close()
    assert engine.step() == StepResult((), (), ())
    answers = iter([False, False, True])
    assert (
        len(list(transcripts(engine, requests(9), in_flight=4, cancelled=lambda: next(answers))))
        < 9
    )
    assert engine.step() == StepResult((), (), ())


def test_bad_use_and_a_stuck_engine_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError):
        list(transcripts(FakeEngine(), requests(1), in_flight=0))
    engine = FakeEngine()
    monkeypatch.setattr(engine, "step", lambda: StepResult((), (), ()))
    with pytest.raises(Unavailable):
        list(transcripts(engine, requests(1), in_flight=1))
