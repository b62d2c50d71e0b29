"""One small document of each trace format: what the fuzzer starts from. All are our own."""

from __future__ import annotations

import json
import struct
from importlib.resources import files
from typing import Any

from otlp_payload import Shape, request

__all__ = ["seeds"]

NOON = 1_769_860_800 * 10**9  # 2026-01-31T12:00:00Z
SECOND = 10**9


def seeds() -> dict[str, list[bytes]]:
    """Documents by format; several where a format travels in several containers."""
    essay = files("gatekeeper").joinpath("examples/essay-trace.json").read_bytes()
    binary = request(0, Shape(spans=4, per_task=4, content=60))
    again = request(1, Shape(spans=4, per_task=4))
    framed = b"".join(struct.pack(">I", len(one)) + one for one in (binary, again))
    spans = json.loads(essay)
    return {
        "otlp": [essay, binary, framed, _lines(spans, spans), _text({"batches": _groups(spans)})],
        "langfuse": [_text(_langfuse()), _text({"id": "t", **_langfuse()})],
        "langsmith": [_text(_langsmith()), _lines(*_langsmith())],
        "jaeger": [_text({"data": [_jaeger()]}), _text(_jaeger())],
        "inspect_ai": [_text(_inspect())],
        "managed_agents": [_lines(*_managed())],
        "claude_transcripts": [_lines(*_transcript())],
        "kv_cache": [_text(_kv_cache())],
        "mlflow": [_text(_mlflow()), _text({"info": {"trace_id": "tr-1"}, "data": _mlflow()})],
    }


def _text(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    return json.dumps(value).encode()


def _lines(*values: Any) -> bytes:  # noqa: ANN401 - as _text
    return b"\n".join(_text(value) for value in values)


def _groups(document: Any) -> Any:  # noqa: ANN401 - as _text
    return document["resourceSpans"]


def _iso(seconds: float) -> str:
    return f"2026-01-31T12:00:{seconds:09.6f}Z"


def _langfuse() -> dict[str, Any]:
    observation = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "answer",
        "parentObservationId": None,
        "startTime": _iso(0),
        "endTime": _iso(2),
        "completionStartTime": _iso(0.5),
        "usageDetails": {"input": 3, "output": 40},
        "latency": 2000,
        "metadata": json.dumps({"attributes": {"gen_ai.request.model": "small"}}),
        "input": [{"role": "user", "content": "go"}],
    }
    second = {**observation, "id": "o2", "type": "SPAN", "parentObservationId": "o1"}
    return {"trace": {"id": "t1", "name": "t"}, "observations": [observation, second]}


def _langsmith() -> list[dict[str, Any]]:
    run = {
        "id": "r1",
        "trace_id": "r1",
        "parent_run_id": None,
        "dotted_order": "20260131T120000000000Zr1",
        "name": "Model",
        "run_type": "llm",
        "start_time": _iso(0),
        "end_time": _iso(2),
        "events": [{"name": "new_token", "time": _iso(0.5), "kwargs": {"token": "a"}}],
        "extra": {"metadata": {"ls_model_name": "small", "thread_id": "t"}, "runtime": {}},
        "inputs": {"messages": ["go"]},
        "outputs": {"usage_metadata": {"input_tokens": 7, "output_tokens": 40}},
        "session_name": "shop",
        "status": "success",
    }
    times = {"start_time": 1_769_860_801_000, "end_time": 1_769_860_802_000}
    return [run, {**run, "id": "r2", "parent_run_id": "r1", "run_type": "tool", **times}]


def _jaeger() -> dict[str, Any]:
    span = {
        "traceID": "t1",
        "spanID": "b",
        "operationName": "chat",
        "startTime": 1_769_860_800_000_000,
        "duration": 250,
        "processID": "p1",
        "references": [{"refType": "CHILD_OF", "traceID": "t1", "spanID": "a"}],
        "tags": [{"key": "gen_ai.usage.output_tokens", "type": "int64", "value": 9}],
        "logs": [{"timestamp": 1_769_860_800_000_100, "fields": [{"key": "event", "value": "x"}]}],
    }
    stored = {**span, "spanID": "a", "startTime": _iso(1), "duration": "1m2.5s", "references": []}
    stored = {**stored, "processID": "p2"}  # by another clock, which is a second ahead
    process = {"serviceName": "shop", "tags": [{"key": "hostname", "value": "h"}]}
    other = {"serviceName": "desk", "tags": [{"key": "hostname", "value": "i"}]}
    return {"traceID": "t1", "spans": [span, stored], "processes": {"p1": process, "p2": other}}


def _inspect() -> dict[str, Any]:
    model = {
        "event": "model",
        "uuid": "m1",
        "span_id": "solve",
        "timestamp": _iso(1),
        "completed": _iso(3),
        "working_time": 1.5,
        "model": "me/small",
        "retries": 2,
        "output": {"model": "small", "usage": {"input_tokens": 7, "output_tokens": 40}},
    }
    tool = {
        "event": "tool",
        "uuid": "t1",
        "span_id": "solve",
        "timestamp": _iso(3),
        "completed": _iso(4),
        "id": "call_123",
        "type": "function",
        "function": "search",
        "arguments": {"q": "x"},
    }
    events = [
        {"event": "span_begin", "id": "solve", "name": "solve", "timestamp": _iso(0)},
        model,
        tool,
        {"event": "span_end", "id": "solve", "timestamp": _iso(5)},
    ]
    sample = {"id": 1, "epoch": 1, "uuid": "s1", "events": events}
    return {"version": 2, "status": "success", "eval": {"task": "t"}, "samples": [sample]}


def _managed() -> list[dict[str, Any]]:
    def event(kind: str, at: float, own: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"id": own, "type": kind, "processed_at": _iso(at), **fields}

    end = {"model_request_start_id": "m1", "is_error": False, "model_usage": {"output_tokens": 40}}
    asks = {"type": "requires_action", "event_ids": ["use", "own", "rm"]}
    return [
        event("session.status_running", 0, "run"),
        event("user.message", 0.5, "question", content=[{"type": "text", "text": "go"}]),
        event("span.model_request_start", 1, "m1"),
        event("span.model_request_end", 5, "m1-end", **end),
        event("agent.tool_use", 4.9, "use", name="bash", evaluated_permission="ask"),
        event("agent.custom_tool_use", 4.9, "own", name="lookup"),
        event("agent.tool_use", 4.9, "rm", name="rm", evaluated_permission="ask"),
        event("session.status_idle", 6, "blocked", stop_reason=asks),
        event("user.custom_tool_result", 9, "found", custom_tool_use_id="own"),
        event("user.tool_confirmation", 26, "yes", tool_use_id="use", result="allow"),
        event("user.interrupt", 27, "stop"),
        event("agent.tool_result", 29, "result", tool_use_id="use", is_error=False),
        event("session.status_idle", 34, "end", stop_reason={"type": "end_turn"}),
    ]


def _transcript() -> list[dict[str, Any]]:
    def line(kind: str, at: float, name: str, parent: str | None, **message: Any) -> dict[str, Any]:  # noqa: ANN401
        return {
            "type": kind,
            "timestamp": _iso(at),
            "uuid": name,
            "parentUuid": parent,
            "sessionId": "s1",
            "isSidechain": False,
            "message": {"role": kind, **message},
        }

    usage = {"input_tokens": 5, "output_tokens": 80}
    tool = [{"type": "tool_use", "id": "tool-1", "name": "Bash", "input": {}}]
    answer = {"id": "msg-1", "model": "small", "usage": usage}
    given = [{"type": "tool_result", "tool_use_id": "tool-1"}]
    done = {**answer, "id": "msg-2", "content": [{"type": "text", "text": "done"}]}
    return [
        {"type": "summary", "summary": "earlier", "leafUuid": "a"},
        line("user", 0, "a", None, content="go"),
        line("assistant", 3, "b", "a", content=tool, stop_reason="tool_use", **answer),
        line("user", 9, "c", "b", content=given),
        line("assistant", 12, "d", "c", stop_reason="end_turn", **done),
    ]


def _kv_cache() -> dict[str, Any]:
    def call(t: float, took: float | None, stop: str, given: str) -> dict[str, Any]:
        return {
            "t": t,
            "type": "n",
            "model": "small",
            "in": 1000,
            "out": 50,
            "hash_ids": [1, 2, 3],
            "input_types": [given],
            "stop": stop,
            "api_time": took,
            "think_time": 0.0,
        }

    calls = [call(0, 4.25, "tool_use", "text"), call(10, 2.5, "end_turn", "tool_result")]
    return {"id": "session-1", "block_size": 64, "requests": calls}


def _mlflow() -> dict[str, Any]:
    def span(name: str, parent: str | None, kind: str) -> dict[str, Any]:
        attributes = {
            "mlflow.traceRequestId": json.dumps("tr-1"),
            "mlflow.spanType": json.dumps(kind),
            "mlflow.spanInputs": json.dumps({"messages": []}),
            "mlflow.chat.tokenUsage": json.dumps({"input_tokens": 7, "output_tokens": 40}),
        }
        chunk = {"name": "mlflow.chunk.item.0", "time_unix_nano": NOON + SECOND, "attributes": {}}
        return {
            "trace_id": "tr-1",
            "span_id": name,
            "parent_span_id": parent,
            "name": name,
            "start_time_unix_nano": NOON,
            "end_time_unix_nano": NOON + 2 * SECOND,
            "events": [chunk],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": attributes,
        }

    return {"spans": [span("root", None, "AGENT"), span("call", "root", "CHAT_MODEL")]}
