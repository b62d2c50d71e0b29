from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.engines.reference.server.reading import (
    document_of,
    read_text,
    read_tokens,
)
from gatekeeper_adapters.engines.reference.server.wire import (
    IGNORED,
    ChatBody,
    CompletionBody,
    Defaults,
    read_body,
)

from gatekeeper.core.decoding import Constraint, SamplingSettings
from gatekeeper.errors import InputError, UnknownKey

DEFAULTS = Defaults(gamma=4, end_tokens=(2,), max_context=64)
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def requests(document: dict[str, Any], prompt: tuple[int, ...] = (5, 6)) -> Any:
    body = read_body(CompletionBody, {"prompt": "x", **document})
    return body.requests("a", prompt, DEFAULTS, seed=9)


def test_a_bare_request_gets_the_defaults_of_the_api_and_of_the_server() -> None:
    (request,) = requests({})
    assert request.sampling == SamplingSettings(temperature=1.0)
    assert (request.gamma, request.end_tokens, request.seed) == (4, (2,), 9)
    assert request.max_tokens == 62  # what the context leaves
    assert (request.stop, request.logprobs, request.constraint) == ((), None, None)
    assert (request.adaptive, request.proposer, request.min_tokens) == (False, None, 0)


def test_every_setting_reaches_the_engine() -> None:
    first, second = requests(
        {
            "n": 2,
            "max_tokens": 7,
            "min_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "presence_penalty": 0.25,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
            "logit_bias": {"3": -100},
            "seed": 11,
            "stop": ["one", "two", "one"],
            "logprobs": 2,
            "gamma": 0,
            "adaptive": True,
            "proposer": "ngram",
            "regex": "[a-z]+",
        }
    )
    assert first.sampling == SamplingSettings(0.5, 40, 0.9, 0.1, 1.1, 0.25, 0.5, ((3, -100.0),))
    assert (first.max_tokens, first.min_tokens, first.gamma) == (7, 3, 0)
    assert (first.stop, first.logprobs) == (("one", "two"), 2)
    assert first.constraint == Constraint(regex="[a-z]+")
    assert (first.adaptive, first.proposer) == (True, "ngram")
    assert (first.seed, second.seed) == (11, 12)
    assert (first.request_id, second.request_id) == ("a.0", "a.1")


def test_what_clients_send_without_meaning_is_ignored_and_nulls_are_absent() -> None:
    sent = {name: {"some": "thing"} for name in IGNORED} | {
        "stop": None,
        "seed": None,
        "tools": None,
    }
    body = read_body(ChatBody, {**HELLO, **sent})
    assert body.seed is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_token": 5}, "max_token"),
        ({"tools": []}, "tools"),
        ({"messages": [{"role": "user", "content": "a", "audio": 1}]}, "messages[0].audio"),
        ({"stream_options": {"include": True}}, "stream_options.include"),
    ],
)
def test_a_field_that_nothing_reads_is_refused_by_name(change: Any, field: str) -> None:
    with pytest.raises(UnknownKey) as refused:
        read_body(ChatBody, {**HELLO, **change}).turns()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"messages": "hello"}, "messages"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"gamma": 65}, "gamma"),
        ({"gamma": 2.0}, "gamma"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": {"a": "b"}}, "stop"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "constraint"),
    ],
)
def test_a_value_out_of_range_is_named(change: Any, field: str) -> None:
    def read() -> None:
        body = read_body(ChatBody, {**HELLO, **change})
        body.turns()
        body.requests("a", (1,), DEFAULTS, seed=0)

    with pytest.raises(InputError) as refused:
        read()
    assert refused.value.field == field
    assert refused.value.remedy


def test_turns_of_a_conversation() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    said = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": "", "tool_calls": None},
    ]
    turns = read_body(ChatBody, {"messages": said}).turns()
    assert [(t.role, t.content) for t in turns] == [
        ("system", "be kind"),
        ("user", "one two"),
        ("assistant", ""),
    ]


def test_formats_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for given, wanted in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, schema),
    ):
        (request,) = requests({"response_format": given})
        found = request.constraint
        assert (found and json.loads(found.json_schema)) == wanted


def test_the_prompt_of_a_text_completion() -> None:
    def read(prompt: object) -> Any:
        return read_body(CompletionBody, {"prompt": prompt}).text_or_tokens()

    assert read("text") == "text"
    assert read(["text"]) == "text"
    assert read([1, 2]) == (1, 2)
    for strange in ([], [1, -1], [1, True], ["a", "b"], 5, [[1], [2]]):
        with pytest.raises(InputError, match="prompt"):
            read(strange)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'"\xff"',
        b"[" * 100_000,
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="body"):
        document_of(data)


def test_bodies_of_the_tokenizer() -> None:
    assert read_text({"content": "a", "add_special_tokens": False}) == "a"
    assert read_text({"prompt": "a", "model": "m"}) == "a"
    assert read_tokens({"tokens": [3, 0]}, vocab_size=4) == (3, 0)
    for text in ({"content": 1}, {}, {"text": "a"}):
        with pytest.raises(InputError):
            read_text(text)
    for tokens in ({"tokens": [4]}, {"tokens": "a"}, {"ids": [1]}):
        with pytest.raises(InputError):
            read_tokens(tokens, vocab_size=4)
