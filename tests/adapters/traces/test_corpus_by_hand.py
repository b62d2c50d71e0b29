"""Figures of tests/corpus.toml worked out again from the files themselves, without the product's code.

Each file is simple enough to be read by eye: calls follow one another, so that all of them lie on the
path, and what is estimated is tokens × 21 ms.
"""

from __future__ import annotations

import json
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trace_corpus

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)

TOKEN = 21 * 10**6
Figures = dict[str, int]


def ns(time: str) -> int:
    head, _, fraction = time.replace("Z", "+00:00")[:-6].partition(".")
    whole = datetime.fromisoformat(head + time.replace("Z", "+00:00")[-6:])
    return int(whole.timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def seconds(value: float) -> int:
    return round(Fraction(str(value)) * 10**9)


def text(name: str) -> str:
    return (trace_corpus.ROOT / name).read_text()


def estimated(calls: list[tuple[int, int, int]]) -> Figures:
    """Calls as (start, end, tokens): all on the path, decode from tokens."""
    return {
        "model_calls": len(calls),
        "model_ns": sum(end - start for start, end, _ in calls),
        "decode_ns": sum(min(end - start, tokens * TOKEN) for start, end, tokens in calls),
    }


def langfuse(name: str) -> list[Figures]:
    spans = json.loads(text(name))["observations"]
    times = [ns(one[key]) for one in spans for key in ("startTime", "endTime")]
    calls = [
        (ns(one["startTime"]), ns(one["endTime"]), one["usageDetails"]["output"])
        for one in spans
        if one["type"] == "GENERATION"
    ]
    return [{"wall_ns": max(times) - min(times), **estimated(calls)}]


def vercel_in_langfuse(name: str) -> list[Figures]:
    """One call was streamed: decode is from the first chunk to the finish that the SDK reports."""
    spans = json.loads(text(name))["observations"]
    times = [ns(one[key]) for one in spans for key in ("startTime", "endTime")]
    (call,) = (one for one in spans if one["name"] == "ai.streamText.doStream")
    told = call["metadata"]
    told = json.loads(told) if isinstance(told, str) else told
    start, first, end = (ns(call[key]) for key in ("startTime", "completionStartTime", "endTime"))
    finish = round(Fraction(str(told["attributes"]["ai.response.msToFinish"])) * 10**6)
    return [
        {
            "wall_ns": max(times) - min(times),
            "model_calls": 1,
            "model_ns": end - start,
            "decode_ns": start + finish - first,
        }
    ]


def managed(name: str) -> list[Figures]:
    """The tool is asked for a microsecond before the first call ends: there the path leaves it."""
    lines = [json.loads(line) for line in text(name).splitlines() if line.strip()]
    events = [one for call, one in lines if call.endswith(".stream")]
    times = [ns(one["processed_at"]) for one in events]
    began = {e["id"]: ns(e["processed_at"]) for e in events if e["type"].endswith("request_start")}
    calls = [
        (began[e["model_request_start_id"]], ns(e["processed_at"]), e["model_usage"])
        for e in events
        if e["type"].endswith("request_end")
    ]
    (asked,) = (ns(e["processed_at"]) for e in events if e["type"].endswith("tool_use"))
    (given,) = (ns(e["processed_at"]) for e in events if e["type"].endswith("tool_result"))
    found = estimated([(a, b, usage["output_tokens"]) for a, b, usage in calls])
    overlap = calls[0][1] - asked
    found["model_ns"] -= overlap
    found["decode_ns"] -= overlap
    found["wall_ns"] = max(times) - min(times)
    if "custom" in name:  # the client's tool may hide a person; without it, call follows call
        found["wall_without_waiting_ns"] = found["wall_ns"] - (given - calls[0][1])
    return [found]


def langsmith(name: str) -> list[Figures]:
    runs = json.loads(text(name))
    post, patch = runs["post"][0], runs["patch"][0]
    tokens = patch["outputs"]["usage_metadata"]["output_tokens"]
    start, end = post["start_time"] * 10**6, patch["end_time"] * 10**6
    return [{"wall_ns": end - start, **estimated([(start, end, tokens)])}]


def langsmith_streamed(name: str) -> list[Figures]:
    runs = json.loads(text(name))
    start, end = ns(runs["post"][0]["start_time"]), ns(runs["patch"][0]["end_time"])
    first = next(e["time"] for e in runs["patch"][0]["events"] if e["name"] == "new_token")
    return [
        {"wall_ns": end - start, "model_calls": 1, "model_ns": end - start}
        | {"decode_ns": end - ns(first)}
    ]


def inspect(name: str) -> list[Figures]:
    found = []
    for sample in json.loads(text(name))["samples"]:
        events = sample["events"]
        told = [one[key] for one in events for key in ("timestamp", "completed") if one.get(key)]
        calls = [
            (0, seconds(one["working_time"]), one["output"]["usage"]["output_tokens"])
            for one in events
            if one["event"] == "model"
        ]
        found.append({"wall_ns": max(map(ns, told)) - min(map(ns, told)), **estimated(calls)})
    return found


def kv_cache(name: str) -> list[Figures]:
    """Turns follow each other; what passes after ``end_turn`` is a person's, after tools theirs."""
    end = waited = gaps = 0
    calls, stop = [], ""
    for one in json.loads(text(name))["requests"]:
        start = max(seconds(one["t"]), end)
        gaps += start - end
        waited += start - end if stop == "end_turn" else 0
        end, stop = start + seconds(one["api_time"]), one["stop"]
        calls.append((start, end, one["out"]))
    return [
        {"wall_ns": end, **estimated(calls), "human_wait_ns": waited}
        | {"wall_without_waiting_ns": end - gaps}
    ]


def transcript(name: str) -> list[Figures]:
    """Every line waits for the one before: an answer, a tool's result, or a person."""
    lines = [one for one in map(json.loads, text(name).splitlines()) if one.get("timestamp")]
    calls, waited, tools = [], 0, 0
    for before, line in pairwise(lines):
        start, end = ns(before["timestamp"]), ns(line["timestamp"])
        if line["type"] == "assistant":
            calls.append((start, end, line["message"]["usage"]["output_tokens"]))
        elif any(block["type"] == "tool_result" for block in line["message"]["content"]):
            tools += end - start
        else:
            waited += end - start
    wall = ns(lines[-1]["timestamp"]) - ns(lines[0]["timestamp"])
    return [
        {"wall_ns": wall, **estimated(calls), "human_wait_ns": waited}
        | {"wall_without_waiting_ns": wall - waited - tools}
    ]


def openinference(name: str) -> list[Figures]:
    groups = [group for one in json.loads(text(name)) for group in one["resourceSpans"]]
    spans = [one for group in groups for scope in group["scopeSpans"] for one in scope["spans"]]
    times = [int(one[f"{edge}TimeUnixNano"]) for one in spans for edge in ("start", "end")]
    (call,) = (one for one in spans if one["name"] == "ChatOpenAI")
    values = {one["key"]: one["value"] for one in call["attributes"]}
    (tokens,) = values["llm.token_count.completion"].values()
    edges = (int(call["startTimeUnixNano"]), int(call["endTimeUnixNano"]))
    return [{"wall_ns": max(times) - min(times), **estimated([(*edges, int(tokens))])}]


def jaeger(name: str) -> list[Figures]:
    document = json.loads(text(name))
    (trace,) = document["data"]
    ends = [one["startTime"] + one["duration"] for one in trace["spans"]]
    wall = (max(ends) - min(one["startTime"] for one in trace["spans"])) * 1000
    return [{"wall_ns": wall, **estimated([])}]


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("langfuse/koog-2025-08-26.trace.json", langfuse),
        ("langfuse/pydantic-ai-tools-2025-12-04.trace.json", langfuse),
        ("agent-prism/langfuse-1.json", vercel_in_langfuse),
        ("agent-prism/test_data_3.json", openinference),
        ("anthropic-managed-agents/anthropic_managed_builtin_tools.jsonl", managed),
        ("anthropic-managed-agents/anthropic_managed_custom_tools.jsonl", managed),
        ("langsmith/langsmith_js_wrap_openai_default.json", langsmith),
        ("langsmith/langsmith_py_wrap_openai_stream_no_usage.json", langsmith_streamed),
        ("inspect-ai/2025-05-12T20-28-13-04-00_popularity.json", inspect),
        ("kv-cache-tester/trace_0026.json", kv_cache),
        ("claude-code-log/representative_messages.jsonl", transcript),
        ("crisp/7.json", jaeger),
    ],
)
def test_the_manifest_states_what_the_file_says(
    name: str, figures: Callable[[str], list[Figures]]
) -> None:
    stated: list[dict[str, Any]] = trace_corpus.manifest()[name]["tasks"]
    found = figures(name)
    assert [{key: one[key] for key in found[0]} for one in stated] == found
