"""What people and models wrote is never stored, logged or shown, unless somebody asked for it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from benchmark_scripts import script
from sqlalchemy import select

from gatekeeper import plugins
from gatekeeper.actions.ingest import ingest_otlp
from gatekeeper.actions.ingest_settings import IngestSettings
from gatekeeper.actions.redaction import AttributeRule, Redaction, Redactor, tool_call_ids
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.core.traces import Span, SpanEvent
from gatekeeper.errors import InputError
from gatekeeper.reports.profile import profile_json
from gatekeeper.store import schema_traces
from gatekeeper.telemetry import configure_logging

if TYPE_CHECKING:
    from pathlib import Path

Api = Any  # the fixture's class lives in conftest
CANARY = "canary-4f1d"
MESSAGES = [
    {"role": "user", "parts": [{"type": "text", "content": CANARY}]},
    {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "id": "call_000001", "name": "f", "arguments": {"id": CANARY}}
        ],
    },
]
DIALECTS: dict[str, Any] = {
    # OpenTelemetry GenAI, new and old
    "gen_ai.input.messages": json.dumps(MESSAGES),
    "gen_ai.output.messages": MESSAGES,
    "gen_ai.system_instructions": CANARY,
    "gen_ai.tool.definitions": [CANARY],
    "gen_ai.tool.call.arguments": {"q": CANARY},
    "gen_ai.tool.call.result": CANARY,
    "gen_ai.prompt": CANARY,
    "gen_ai.prompt.0.content": CANARY,
    "gen_ai.completion.0.content": CANARY,
    "gen_ai.completion.0.tool_calls.0.arguments": CANARY,
    # OpenLLMetry
    "traceloop.entity.input": CANARY,
    "traceloop.entity.output": CANARY,
    # OpenInference
    "input.value": CANARY,
    "output.value": CANARY,
    "llm.input_messages.0.message.content": CANARY,
    "llm.output_messages.3.message.contents.0.message_content.text": CANARY,
    "llm.prompt_template.variables": CANARY,
    "retrieval.documents.0.document.content": CANARY,
    # Vercel AI SDK
    "ai.prompt": CANARY,
    "ai.prompt.messages": CANARY,
    "ai.response.text": CANARY,
    "ai.response.toolCalls": CANARY,
    "ai.toolCall.args": CANARY,
    "ai.toolCall.result": CANARY,
    # others
    "mlflow.spanInputs": CANARY,
    "langfuse.observation.input": CANARY,
    "langsmith.inputs.question": CANARY,
    "user_prompt": CANARY,
    "some.framework.nobody.knows.content": CANARY,
    "resource.gen_ai.system_instructions": CANARY,
    "exception.message": CANARY,
}


def span(events: tuple[SpanEvent, ...] = (), **attributes: Any) -> Span:
    return Span("t" * 32, "s" * 16, "chat", 1, 2, attributes=attributes, events=events)


def redacted(one: Span, **settings: Any) -> tuple[Span, Counter[str]]:
    lost: Counter[str] = Counter()
    return Redactor(Redaction(**settings))(one, lost), lost


@pytest.mark.parametrize("key", DIALECTS)
def test_content_of_every_dialect_is_dropped_and_counted(key: str) -> None:
    kept, lost = redacted(span(**{key: DIALECTS[key], "gen_ai.request.model": "m"}))
    assert CANARY not in repr(kept)
    assert lost.total() == kept.attributes["gatekeeper.redacted"] == 1
    assert kept.attributes["gen_ai.request.model"] == "m"


def test_numbers_roles_names_and_ids_stay() -> None:
    stays = {
        "llm.token_count.prompt": 7,
        "langfuse.usage.output": 40,
        "gen_ai.prompt.0.role": "user",
        "gen_ai.completion.0.finish_reason": "stop",
        "gen_ai.completion.0.tool_calls.0.id": "call_1",
        "gen_ai.completion.0.tool_calls.0.name": "search",
        "llm.input_messages.1.message.tool_call_id": "call_1",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "search",
        "gen_ai.prompt.name": "greeting",
        "gen_ai.output.type": "json",
        "ai.response.msToFirstChunk": 12.5,
    }
    one = span(**stays)
    assert redacted(one) == (one, Counter())
    sneaky = span(**{"gen_ai.prompt.0.role": f"user said {CANARY} and more"})
    assert CANARY not in repr(redacted(sneaky)[0])


def test_messages_keep_the_ids_of_tool_calls_and_nothing_else() -> None:
    kept, _ = redacted(span(**{"gen_ai.output.messages": json.dumps(MESSAGES)}))
    assert kept.attributes["gen_ai.output.messages"] == ["call_000001"]
    chat = [
        {"role": "assistant", "tool_calls": [{"id": "call_abcdef", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "call_ghijkl", "content": '{"tool_call_id": "hidden-1"}'},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_123456"}]},
        {"type": "tool_use", "id": "toolu_abcdef", "input": {"tool_call_id": "hidden-2"}},
        {"role": "user", "tool_call_id": f"{CANARY} with words"},
        {"type": "function", "id": 5},
    ]
    assert tool_call_ids(chat) == ["call_abcdef", "call_ghijkl", "toolu_123456", "toolu_abcdef"]
    for nothing in ("tool_call", "[tool", "[" * 100_000 + "tool", json.dumps("tool"), 5, None):
        assert tool_call_ids(nothing) == []


def test_events_lose_their_text_and_keep_their_time() -> None:
    events = (
        SpanEvent("gen_ai.content.prompt", 5, {"gen_ai.prompt": CANARY}),
        SpanEvent("gen_ai.user.message", 6, {"anything": CANARY, "role": "user"}),
        SpanEvent("First Token Stream Event", 7, {"n": 1}),
        SpanEvent("exception", 8, {"exception.type": "E", "exception.stacktrace": CANARY}),
    )
    kept, lost = redacted(span(events))
    assert [(e.name, e.time_ns) for e in kept.events] == [(e.name, e.time_ns) for e in events]
    assert [dict(e.attributes) for e in kept.events] == [
        {},
        {"role": "user"},
        {"n": 1},
        {"exception.type": "E"},
    ]
    assert lost["event gen_ai.*.message"] == 1
    assert kept.attributes["gatekeeper.redacted"] == 3


def test_rules_come_before_what_is_content_and_the_first_one_counts() -> None:
    rules = (
        AttributeRule("user.email", "hash"),
        AttributeRule("user.*", "drop"),
        AttributeRule("input.value", "keep"),
        AttributeRule("team", "drop"),
    )
    given = {"user.email": "a@b", "user.id": 7, "input.value": "x", "output.value": "y", "team": 1}
    kept, lost = redacted(span(**given), attributes=rules)
    digest = kept.attributes["user.email"]
    assert digest.startswith("sha256:")
    assert kept.attributes == {"user.email": digest, "input.value": "x", "gatekeeper.redacted": 4}
    assert lost == {"user.email": 1, "user.*": 1, "output.value": 1, "team": 1}
    again, _ = redacted(span(**{"user.email": "a@b"}), attributes=rules)
    assert again.attributes["user.email"] == digest
    everything = span(**DIALECTS)
    assert redacted(everything, content="keep") == (everything, Counter())


def test_names_without_end_fill_no_memory() -> None:
    redactor = Redactor()
    lost: Counter[str] = Counter()
    for n in range(10_000):
        redactor(span(**{f"gen_ai.prompt.{n}.content": "x"}), lost)
    assert lost == {"gen_ai.prompt.*": 10_000}
    assert len(redactor._fates) < 9000


@pytest.mark.parametrize("name", sorted(script("trace_seeds").seeds()))
def test_figures_do_not_depend_on_content(name: str) -> None:
    formats = list(plugins.load_all("gatekeeper.traces").values())
    redactor, lost = Redactor(), Counter[str]()
    for document in script("trace_seeds").seeds()[name]:
        try:
            traces = read_traces(document, formats)
        except InputError:
            continue  # refused with its reason, redacted or not
        for trace in traces:
            bare = replace(trace, spans=tuple(redactor(one, lost) for one in trace.spans))
            expected = profile_json(profile_task(trace), name)
            assert profile_json(profile_task(bare), name) == expected


def test_a_tool_still_follows_from_the_call_that_asked_for_it() -> None:
    asked = json.dumps([{"type": "tool_call", "id": "call_000001", "arguments": CANARY}])
    chat = {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": 5}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "call_000001"}
    answered = json.dumps([{"role": "tool", "tool_call_id": "call_000001"}])

    def made(n: int, start: int, end: int, **attributes: Any) -> dict[str, Any]:
        pairs = [
            {"key": k, "value": {"intValue": v} if isinstance(v, int) else {"stringValue": v}}
            for k, v in attributes.items()
        ]
        ids = {"traceId": "a" * 32, "spanId": f"{n:016x}"}
        times = {"startTimeUnixNano": start * 10**9, "endTimeUnixNano": end * 10**9}
        return {**ids, **times, "name": "x", "attributes": pairs}

    spans = [
        made(1, 10, 20, **chat, **{"gen_ai.output.messages": asked}),
        made(2, 15, 25, **tool),
        made(3, 30, 40, **chat, **{"gen_ai.input.messages": answered}),
    ]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    (trace,) = read_traces(body, list(plugins.load_all("gatekeeper.traces").values()))
    redactor, lost = Redactor(), Counter[str]()
    bare = replace(trace, spans=tuple(redactor(one, lost) for one in trace.spans))
    assert lost.total() == 2
    assert CANARY not in repr(bare)
    assert profile_json(profile_task(bare), "x") == profile_json(profile_task(trace), "x")


def documents(api: Api) -> str:
    with api.services.db.read() as session:
        rows = session.execute(select(schema_traces.span.c.document)).scalars()
        return "\n".join(rows)


def attribute(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        value = json.dumps(value)
    return {"key": key, "value": {"stringValue": value}}


def request() -> dict[str, Any]:
    good = {
        "traceId": "ab" * 16,
        "spanId": "01" * 8,
        "name": "chat",
        "startTimeUnixNano": "1000000000000000000",
        "endTimeUnixNano": "1000000002000000000",
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            *(attribute(key, value) for key, value in DIALECTS.items()),
        ],
        "events": [
            {
                "name": "gen_ai.choice",
                "timeUnixNano": "1000000001000000000",
                "attributes": [attribute("message", CANARY)],
            }
        ],
    }
    broken = {**good, "spanId": CANARY}
    backwards = {**good, "spanId": "02" * 8, "endTimeUnixNano": "1"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [good, broken, backwards]}]}]}


def test_no_canary_in_the_database_the_log_or_any_answer(
    api: Api, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging(json=True)
    send = api.clients["ingester"].post
    answer = send("/v1/traces", json=request())
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    imported = send("/v1/traces/import", content=json.dumps({**request(), "x": CANARY}).encode())
    assert imported.status_code == 400  # one broken span: nothing of the file is stored
    good = request()["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    file = {"resourceSpans": [{"scopeSpans": [{"spans": [{**good, "traceId": "cd" * 16}]}]}]}
    imported = send("/v1/traces/import", content=json.dumps(file).encode())
    assert imported.json()["redacted_attributes"] == len(DIALECTS) + 1
    api.settle()
    seen = [
        api.reader.get(f"/v1/tasks/{'ab' * 16}").text,
        api.reader.get(f"/v1/tasks/{'ab' * 16}/critical-path").text,
        api.reader.get("/v1/tasks").text,
        api.anonymous.get("/metrics").text,
    ]
    assert "gen_ai.operation.name" in documents(api)
    assert CANARY not in documents(api)
    assert CANARY not in "".join(seen)
    assert 'gatekeeper_redacted_attributes_total{rule="input.value"} 3.0' in seen[-1]
    api.services.db.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(CANARY.encode() not in path.read_bytes() for path in files)
    if api.services.db.sqlite:
        assert any(b"gen_ai.operation.name" in path.read_bytes() for path in files)
    out, err = capfd.readouterr()
    assert CANARY not in out + err


def test_whoever_wants_content_gets_it(api: Api) -> None:
    settings = IngestSettings(redaction=Redaction(content="keep"))
    services = replace(api.services, ingest=settings)
    ingest_otlp(services.intake, json.dumps(request()).encode(), as_json=True)
    assert CANARY in documents(api)
