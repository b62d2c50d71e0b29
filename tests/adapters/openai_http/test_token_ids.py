"""Token ids over the wire: every processor is named, and an answer without ids is none."""

from __future__ import annotations

from typing import Any

import pytest
from gatekeeper_adapters.engines.openai_http.token_ids import (
    COMPLETION,
    COMPLETIONS,
    answer,
    token_body,
)

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

END = 2
LLAMA = {"tokens": [5, 6], "stop_type": "limit", "tokens_evaluated": 3, "tokens_predicted": 2}
VLLM = {"choices": [{"token_ids": [5, 6], "finish_reason": "length", "logprobs": None}]}


def asked(**more: Any) -> DecodeRequest:
    return DecodeRequest("r", (1, 7), 4, **{"end_tokens": (END,), **more})


def test_every_processor_is_named_at_either_path() -> None:
    sampling = SamplingSettings(
        temperature=0.7, top_k=20, top_p=0.9, min_p=0.1, repetition_penalty=1.2
    )
    body = token_body(asked(sampling=sampling, seed=2**40 + 5), model="m", path=COMPLETIONS)
    assert body["prompt"] == [1, 7]
    assert body["return_token_ids"] is True
    known = [body[n] for n in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")]
    assert known == [0.7, 20, 0.9, 0.1, 1.2]
    assert body["seed"] == 5
    assert "logprobs" not in body
    body = token_body(asked(sampling=sampling, logprobs=1), model="m", path=COMPLETION)
    assert (body["repeat_penalty"], body["n_probs"], body["return_tokens"]) == (1.2, 1, True)
    assert body["repeat_last_n"] == 6, "a penalty over another history than ours"
    plain = token_body(asked(), model="m", path=COMPLETION)
    assert (plain["top_k"], plain["min_p"], plain["top_p"]) == (0, 0.0, 1.0)


def test_bias_and_forbidden_tokens_go_by_id() -> None:
    sampling = SamplingSettings(temperature=1.0, logit_bias=((5, 1.5),), forbidden_tokens=(6,))
    body = token_body(asked(sampling=sampling), model="m", path=COMPLETIONS)
    assert body["logit_bias"] == {"5": 1.5, "6": -100.0}
    body = token_body(asked(sampling=sampling), model="m", path=COMPLETION)
    assert body["logit_bias"] == [[5, 1.5], [6, False]]


@pytest.mark.parametrize(("path", "document"), [(COMPLETION, LLAMA), (COMPLETIONS, VLLM)])
def test_an_answer_has_its_ids_and_its_end(path: str, document: dict[str, Any]) -> None:
    found = answer(document, asked(), path=path)
    assert (found.tokens, found.ending.reason, found.logprobs) == ((5, 6), "length", None)


@pytest.mark.parametrize(
    ("ids", "counted", "scored"),
    [
        ([5, 6, END], 3, (5, 6, END)),
        ([5, 6], 3, (5, 6, END)),
        ([5, 0], 2, (5, 0)),
        ([5], None, (5,)),
    ],
)
def test_the_token_that_ended_it_is_scored_whether_told_or_not(
    ids: list[int], counted: int | None, scored: tuple[int, ...]
) -> None:
    stopped = {
        "choices": [{"token_ids": ids, "finish_reason": "stop"}],
        "usage": {"completion_tokens": counted},
    }
    assert answer(stopped, asked(), path=COMPLETIONS).tokens == scored
    two = answer(stopped, asked(end_tokens=(END, 9)), path=COMPLETIONS)
    assert two.tokens == tuple(ids), "which of two tokens ended it is not known"


def test_log_probabilities_are_one_a_token_or_none() -> None:
    told = {**LLAMA, "completion_probabilities": [{"logprob": -1.0}, {"logprob": -2.5}]}
    assert answer(told, asked(), path=COMPLETION).logprobs == (-1.0, -2.5)
    told["completion_probabilities"] = [{"logprob": -1.0}, {"logprob": -2.5}, {"logprob": -3.0}]
    assert answer(told, asked(), path=COMPLETION).logprobs is None


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (COMPLETION, {**LLAMA, "tokens": ["5"]}),
        (COMPLETION, {k: v for k, v in LLAMA.items() if k != "tokens"}),
        (COMPLETIONS, {"choices": [{"text": "a", "finish_reason": "stop"}]}),
        (COMPLETIONS, {"choices": [{"token_ids": [-1], "finish_reason": "stop"}]}),
        (COMPLETIONS, {"choices": []}),
    ],
)
def test_an_answer_without_ids_is_no_answer(path: str, document: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        answer(document, asked(), path=path)
