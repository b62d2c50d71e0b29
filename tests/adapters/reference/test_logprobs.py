from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import drive

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SETTINGS = {
    "greedy": SamplingSettings(),
    "sampled": SamplingSettings(temperature=1.0, top_p=0.9),
    # what the emitted token's probability was is not what the target itself says of it
    "changed": SamplingSettings(
        temperature=0.7, repetition_penalty=1.4, logit_bias=((5, 3.0),), forbidden_tokens=(7,)
    ),
}


def ask(count: int, **changes: Any) -> list[DecodeRequest]:
    rng = np.random.default_rng(8)
    prompts = [tuple(rng.integers(0, 97, 5 + 9 * i).tolist()) for i in range(count)]
    return [
        DecodeRequest(f"r{i}", prompt, 15 + i, seed=40 + i, **changes)
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["self", "draft_lm"])
def test_they_are_those_of_the_independent_forward(name: str, kind: str, open_tiny: Any) -> None:
    engine = open_tiny(kind)
    for gamma in (0, 4):
        settings = {"sampling": SETTINGS[name], "gamma": gamma, "end_tokens": (2,)}
        plain = drive(engine, ask(4, **settings))
        record = drive(engine, ask(4, logprobs=3, **settings))
        assert record.tokens == plain.tokens
        assert all(emission.logprobs is None for emission in plain.emissions)
        for request in ask(4):
            mine = [e for e in record.emissions if e.request_id == request.request_id]
            assert all(len(e.logprobs) == len(e.tokens) for e in mine)
            said = [one for e in mine for one in e.logprobs]
            tokens = record.tokens[request.request_id]
            text = [*request.prompt, *tokens]
            dense = engine._scorer._model.logits(text[:-1], len(tokens)).log_softmax(dim=-1)
            own = dense[range(len(tokens)), tokens]
            np.testing.assert_allclose([one.logprob for one in said], own, atol=1e-4)
            best = dense.topk(3, dim=-1)
            found = [[value for _, value in one.top] for one in said]
            np.testing.assert_allclose(found, best.values, atol=1e-4)
            for row, one in zip(dense, said, strict=True):
                assert len({token for token, _ in one.top}) == 3
                for token, value in one.top:
                    assert float(row[token]) == pytest.approx(value, abs=1e-4)
            if name == "greedy":
                assert [one.top[0][0] for one in said] == tokens


def test_the_emitted_token_alone_and_some_requests_of_a_batch(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm")
    requests = ask(3, gamma=3)
    asked = [requests[0], *ask(2, gamma=3, logprobs=0)[1:], requests[2]]
    record = drive(engine, asked)
    assert record.tokens == drive(engine, requests).tokens
    for emission in record.emissions:
        if emission.request_id == "r1":
            assert [one.top for one in emission.logprobs] == [()] * len(emission.tokens)
            assert all(one.logprob <= 0 for one in emission.logprobs)
        else:
            assert emission.logprobs is None


def test_a_run_cut_by_a_stop_has_as_many_as_tokens(open_tiny: Any) -> None:
    engine = open_tiny("self")
    varied = SamplingSettings(presence_penalty=5.0)
    (request,) = ask(1, sampling=varied)
    text = drive(engine, [request]).tokens["r0"]
    (request,) = ask(1, sampling=varied, gamma=7, logprobs=2, end_tokens=(text[4],))
    (emission,) = drive(engine, [request]).emissions[-1:]
    assert emission.tokens[-1] == text[4]
    assert len(emission.logprobs) == len(emission.tokens) < 8


@pytest.mark.parametrize("wanted", [-1, 98])
def test_more_than_there_are_is_refused(wanted: int, open_tiny: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_tiny().submit(DecodeRequest("r", (1,), 3, logprobs=wanted))
    assert caught.value.field == "logprobs"
