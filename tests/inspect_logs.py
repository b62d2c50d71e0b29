"""Evaluation logs of Inspect AI, made by hand: events of one minute, in samples of one log."""

from __future__ import annotations

import json
from typing import Any

from gatekeeper_adapters.traces.inspect_ai import FORMAT

from gatekeeper.core.trace_documents import read_traces

NOON = 1769860800 * 10**9  # 2026-01-31T12:00:00Z
SECOND = 10**9


def at(seconds: float) -> str:
    return f"2026-01-31T12:00:{seconds:09.6f}+00:00"


def begin(span_id: str, start: float, **changes: Any) -> dict[str, Any]:
    return {
        "event": "span_begin",
        "id": span_id,
        "name": span_id,
        "timestamp": at(start),
        **changes,
    }


def end(span_id: str, when: float) -> dict[str, Any]:
    return {"event": "span_end", "id": span_id, "timestamp": at(when)}


def model(start: float, completed: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "event": "model",
        "uuid": f"model-{start}",
        "span_id": "solve",
        "timestamp": at(start),
        "completed": None if completed is None else at(completed),
        "working_time": None if completed is None else completed - start,
        "model": "me/small",
        "retries": 2,
        "output": {
            "model": "small-1",
            "usage": {
                "input_tokens": 7,
                "output_tokens": 40,
                "input_tokens_cache_read": 3,
                "reasoning_tokens": 5,
            },
        },
        **changes,
    }


def tool(start: float, completed: float, **changes: Any) -> dict[str, Any]:
    return {
        "event": "tool",
        "uuid": f"tool-{start}",
        "span_id": "solve",
        "timestamp": at(start),
        "completed": at(completed),
        "id": "call_123",
        "type": "function",
        "function": "search",
        "arguments": {"q": "x"},
        **changes,
    }


def sample(*events: Any, **changes: Any) -> dict[str, Any]:
    return {"id": 4, "epoch": 1, "uuid": "s1", "events": list(events), **changes}


def log(*samples: Any) -> dict[str, Any]:
    about = {"task": "quiz", "run_id": "r1", "model": "me/small"}
    return {"version": 2, "eval": about, "plan": {}, "samples": list(samples)}


def read(value: Any) -> Any:
    return read_traces(json.dumps(value).encode(), [FORMAT])


def spans(*events: Any, **changes: Any) -> dict[str, Any]:
    (trace,) = read(log(sample(*events, **changes)))
    return {span.span_id: span for span in trace.spans}


def solve(*events: Any, until: float = 9) -> list[Any]:
    return [begin("solve", 0, type="solver"), *events, end("solve", until)]
