"""Bodies and events, as llama.cpp and vLLM write them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from gatekeeper_adapters.engines.openai_http.wire import (
    CHAT,
    COMPLETIONS,
    Reader,
    body,
    counters,
    event_of,
    messages,
)

from gatekeeper import workloads
from gatekeeper.core.decoding import GREEDY, SamplingSettings
from gatekeeper.errors import InputError
from gatekeeper.protocols import DraftCounters, ServerRequest

TEXT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n"
    "<|im_start|>assistant\ncall<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n"
    "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
)


def test_turns_alternate_whatever_the_template() -> None:
    assert messages(TEXT) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "call"},
        {"role": "user", "content": "3\nAnd now?"},
    ]


@pytest.mark.parametrize("name", workloads.SLICES)
def test_every_shipped_prompt_ends_with_a_person_speaking(name: str) -> None:
    for prompt in workloads.prompts(name):
        roles = [turn["role"] for turn in messages(prompt.text)]
        assert roles[-1] == "user"
        assert all(a != b for a, b in pairwise(roles))


def test_a_body_asks_for_usage_and_for_nothing_unknown() -> None:
    request = ServerRequest("r", TEXT, 8, SamplingSettings(temperature=0.5, top_p=0.9), 3, top=5)
    chat = body(request, model="m", api=CHAT)
    assert chat.pop("messages")
    common = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
    }
    assert chat == common | {"logprobs": True, "top_logprobs": 5}
    text = body(request, model="m", api=COMPLETIONS)
    assert text == common | {"prompt": TEXT, "logprobs": 5}


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"forbidden_tokens": (1,)}],
)
def test_what_the_api_has_no_word_for_is_refused(changes: Any) -> None:
    with pytest.raises(InputError, match="sampling"):
        body(ServerRequest("r", TEXT, 8, SamplingSettings(**changes)), model="m", api=CHAT)


def read(*events: dict[str, Any]) -> tuple[list[Any], Any]:
    reader = Reader()
    pieces = [reader.read(event) for event in events]
    return [piece for piece in pieces if piece is not None], reader.ending()


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_pieces_of_any_kind_count_and_the_role_alone_does_not() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a"'}}
    pieces, ending = read(
        delta(role="assistant", content=None),
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="yes"),
        delta(tool_calls=[call]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 9}},
    )
    assert [piece.text for piece in pieces] == ["hm", "yes", 'f{"a"']
    assert (ending.reason, ending.prompt_tokens, ending.tokens) == ("stop", 4, 9)
    assert (ending.drafted, ending.accepted) == (None, None)


def test_timings_tell_drafts() -> None:
    end = {"choices": [{"delta": {}, "finish_reason": "length"}], "timings": {"draft_n": 7}}
    _, ending = read(delta(content="x"), end)
    assert (ending.reason, ending.tokens, ending.drafted, ending.accepted) == (
        "length",
        None,
        7,
        None,
    )


def test_without_an_end_or_with_an_error_an_answer_is_not_complete() -> None:
    assert read(delta(content="x"))[1].reason == "dropped"
    _, ending = read(delta(content="x"), {"error": {"message": "out of memory"}})
    assert ending.reason == "server error"
    assert not ending.complete


def test_scored_tokens_in_both_forms() -> None:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.0}]
    chat = delta(content="a")
    chat["choices"][0]["logprobs"] = {
        "content": [{"token": "a", "logprob": -0.1, "top_logprobs": top}]
    }
    text = {
        "choices": [
            {
                "text": "a",
                "logprobs": {
                    "tokens": ["a"],
                    "token_logprobs": [-0.1],
                    "top_logprobs": [{"b": -2.0, "a": -0.1}],
                },
            }
        ]
    }
    ((one,), (two,)) = (read(event)[0] for event in (chat, text))
    assert one.tokens == two.tokens
    assert one.tokens[0].top == (("a", -0.1), ("b", -2.0))


def test_lines_of_an_event_stream() -> None:
    assert event_of('data: {"a": 1}') == {"a": 1}
    assert [event_of(line) for line in ("", ": ping", "data: [DONE]", "data:")] == [None] * 4
    for broken in ("data: {", "data: 3"):
        with pytest.raises(ValueError, match=r".*"):
            event_of(broken)


def test_counters_of_vllm_and_llama_cpp() -> None:
    vllm = (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 12.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0\n'
    )
    assert counters(vllm) == DraftCounters(3, 12, 5)
    second_engine = vllm + vllm.replace('engine="0"', 'engine="1"')
    assert counters(second_engine) == DraftCounters(6, 24, 10)
    llama = vllm.replace("vllm:", "llamacpp:")
    assert counters(llama) == DraftCounters(3, 12, 5)
    assert counters("up 1\n") is None
    assert counters(vllm.replace(" 12.0", " NaN")) is None
    assert counters(vllm.replace("num_drafts_total", "other")) is None


def test_a_greedy_request_is_temperature_zero() -> None:
    document = body(ServerRequest("r", TEXT, 8, GREEDY), model="m", api=CHAT)
    assert document["temperature"] == 0
    assert "logprobs" not in json.dumps(document)
