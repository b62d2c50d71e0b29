from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import drive

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROCESSORS = {
    "plain": GREEDY,
    "repetition": SamplingSettings(repetition_penalty=1.3),
    "presence+frequency": SamplingSettings(presence_penalty=0.6, frequency_penalty=0.4),
    "bias+forbidden": SamplingSettings(logit_bias=((5, 4.0), (9, -4.0)), forbidden_tokens=(3, 7)),
    "all": SamplingSettings(
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias=((11, 1.5),),
        forbidden_tokens=(4, 8),
    ),
}


def ragged(count: int, *, gamma: int, tokens: int = 24, **changes: Any) -> list[DecodeRequest]:
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, 97, 3 + 7 * i).tolist()) for i in range(count)]
    return [
        DecodeRequest(f"r{i}", prompt, tokens + i, gamma=gamma, **changes)
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def ordinary(tiny: Any) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["ngram", "draft_lm", "self"])
def test_every_batch_size_equals_transformers_and_ordinary_decoding(
    kind: str, open_tiny: Any, ordinary: Any
) -> None:
    engine = open_tiny(kind)
    expected = {}
    for request in ragged(8, gamma=0):
        prompt = torch.tensor([request.prompt])
        out = ordinary.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected[request.request_id] = out[0, len(request.prompt) :].tolist()
    for batch, gamma in [*zip(range(1, 9), (4, 1, 0, 2) * 2, strict=True), (8, 0), (8, 4)]:
        record = drive(engine, ragged(batch, gamma=gamma))
        assert record.tokens == {f"r{i}": expected[f"r{i}"] for i in range(batch)}
        assert set(record.reasons.values()) == {"length"}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("kind", ["ngram", "draft_lm"])
def test_processors_do_not_change_what_speculation_emits(
    name: str, kind: str, open_tiny: Any
) -> None:
    engine = open_tiny(kind)
    settings = {"sampling": PROCESSORS[name], "end_tokens": (2, 6, 31), "min_tokens": 9}
    plain = drive(engine, ragged(6, gamma=0, **settings))
    for gamma in (1, 3, 6):
        record = drive(engine, ragged(6, gamma=gamma, **settings))
        assert record.tokens == plain.tokens
        assert record.reasons == plain.reasons
    for request_id, tokens in plain.tokens.items():
        assert not set(tokens) & set(PROCESSORS[name].forbidden_tokens)
        assert not set(tokens[:9]) & {2, 6, 31}, request_id


def test_greedy_penalties_agree_with_transformers(open_tiny: Any, ordinary: Any) -> None:
    settings = SamplingSettings(repetition_penalty=1.4)
    record = drive(open_tiny("ngram"), ragged(4, gamma=3, sampling=settings))
    for request in ragged(4, gamma=0):
        prompt = torch.tensor([request.prompt])
        out = ordinary.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            repetition_penalty=1.4,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert record.tokens[request.request_id] == out[0, len(request.prompt) :].tolist()


def test_the_target_as_its_own_draft_accepts_everything(open_tiny: Any) -> None:
    record = drive(open_tiny("self"), ragged(4, gamma=3))
    assert all(entry.accepted == entry.drafted for entry in record.rounds)
    assert all(entry.rejection_position is None for entry in record.rounds)
    assert max(entry.committed for entry in record.rounds) == 4


def test_the_prompt_may_be_cached_in_pieces(open_tiny: Any) -> None:
    requests = ragged(8, gamma=2, tokens=12)
    whole = drive(open_tiny("draft_lm", prefill_chunk=256), requests)
    pieces = drive(open_tiny("draft_lm", prefill_chunk=16), requests)
    assert whole.tokens == pieces.tokens
    first = [entry for entry in pieces.rounds if entry.index == 0]
    assert len(first) == 8
    assert all(entry.context == len(requests[int(entry.request_id[1:])].prompt) for entry in first)


def test_the_context_edge_shortens_windows_and_ends_the_request(open_tiny: Any) -> None:
    engine = open_tiny("self", max_context=40)
    prompt = tuple(range(10, 40))
    for gamma in (0, 1, 8):
        record = drive(engine, [DecodeRequest("edge", prompt, 100, gamma=gamma)])
        assert record.reasons == {"edge": "context"}
        assert len(record.tokens["edge"]) == 10
    assert record.rounds[-1].drafted == 0


def test_end_tokens_stop_inside_a_window(open_tiny: Any) -> None:
    engine = open_tiny("self")
    varied = SamplingSettings(presence_penalty=5.0)  # no token twice, so the text does not loop
    text = drive(engine, ragged(1, gamma=0, sampling=varied)).tokens["r0"]
    stop = next(t for i, t in enumerate(text) if i >= 5 and t not in text[:i])
    place = text.index(stop)
    for gamma in (0, 3, 7):
        record = drive(engine, ragged(1, gamma=gamma, sampling=varied, end_tokens=(stop,)))
        assert record.tokens["r0"] == text[: place + 1]
        assert record.reasons == {"r0": "stop"}
        assert sum(entry.committed for entry in record.rounds) == place + 1


def test_more_requests_than_slots_wait_and_all_finish(open_tiny: Any) -> None:
    few, many = open_tiny("ngram", max_batch=2), open_tiny("ngram", max_batch=8)
    requests = ragged(8, gamma=2)
    assert drive(few, requests).tokens == drive(many, requests).tokens


def test_cancelling_frees_the_slot_at_once(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm", max_batch=1)
    first, second, third = ragged(3, gamma=2)
    alone = drive(engine, [second]).tokens["r1"]
    for request in (first, second, third):
        engine.submit(request)
    engine.step()
    engine.cancel("r0")
    engine.cancel("r2")  # still waiting
    engine.cancel("unknown")
    result = engine.step()
    assert {(end.request_id, end.reason) for end in result.finished} == {
        ("r0", "cancelled"),
        ("r2", "cancelled"),
    }
    assert [entry.request_id for entry in result.rounds] == ["r1"]
    tokens = list(result.emitted[0].tokens)
    while len(tokens) < second.max_tokens:
        tokens += engine.step().emitted[0].tokens
    assert tokens == alone
    assert engine.step() == type(result)((), (), ())


def test_rounds_add_up(open_tiny: Any) -> None:
    record = drive(open_tiny("draft_lm"), ragged(5, gamma=3))
    for request in ragged(5, gamma=3):
        mine = [entry for entry in record.rounds if entry.request_id == request.request_id]
        assert [entry.index for entry in mine] == list(range(len(mine)))
        assert sum(entry.committed for entry in mine) == request.max_tokens
        assert all(entry.committed == entry.accepted + 1 for entry in mine)
        assert all(entry.gamma == 3 and 0 <= entry.drafted <= 3 for entry in mine)
        assert all(entry.verify_s > 0 and entry.memory_bytes > 0 for entry in mine)
        assert all((entry.draft_s > 0) == (entry.drafted > 0) for entry in mine[1:-1])


def test_ordinary_decoding_never_calls_the_proposer(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm")

    class Forbidden:
        def __getattr__(self, name: str) -> Any:
            if name == "held":
                return lambda: (0, 0)
            raise AssertionError(name)

    engine._proposer = Forbidden()
    record = drive(engine, ragged(3, gamma=0))
    assert all(entry.drafted == 0 and entry.draft_s < 1e-3 for entry in record.rounds)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 97)}, "token"),
        ({"prompt": tuple(range(90)) * 3}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"gamma": -1}, "gamma"),
        ({"end_tokens": (-1,)}, "token"),
    ],
)
def test_requests_that_do_not_fit_are_refused(
    changes: dict[str, Any], field: str, open_tiny: Any
) -> None:
    from gatekeeper.errors import InputError

    with pytest.raises(InputError) as caught:
        open_tiny().submit(
            DecodeRequest(**{"request_id": "x", "prompt": (1,), "max_tokens": 3, **changes})
        )
    assert caught.value.field == field


def test_a_live_id_is_refused(open_tiny: Any) -> None:
    from gatekeeper.errors import InputError

    engine = open_tiny()
    engine.submit(DecodeRequest("same", (1, 2), 3))
    with pytest.raises(InputError):
        engine.submit(DecodeRequest("same", (1, 2), 3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_invariant_kernels_make_every_batch_the_same_bits(dtype: str, open_tiny: Any) -> None:
    engine = open_tiny("ngram", invariant=True, dtype=dtype)
    fast = open_tiny("ngram", dtype=dtype)
    assert engine.info.identity_rule in {"bitwise", "deficit"}
    assert fast.info.identity_rule in {"bitwise", "deficit"}
    if engine.info.identity_rule == "bitwise":
        plain = drive(engine, ragged(8, gamma=0))
        for gamma in (1, 4):
            assert drive(engine, ragged(8, gamma=gamma)).tokens == plain.tokens
