"""OpenTelemetry's own names for generative AI, present and former."""

from __future__ import annotations

import json
from typing import Any

import otlp_documents as otlp
import pytest
from dialect_tasks import calls, only_call, path, profiled
from gatekeeper_adapters.traces.jaeger import FORMAT as JAEGER
from otlp_documents import span

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces

GENAI = (
    span(1, "invoke_agent clerk", 0, 1000, gen_ai__operation__name="invoke_agent"),
    span(
        2,
        "chat small",
        0,
        600,
        parent=1,
        gen_ai__operation__name="chat",
        gen_ai__provider__name="example",
        gen_ai__request__model="small",
        gen_ai__response__time_to_first_chunk=0.25,
        gen_ai__usage__input_tokens=900,
        gen_ai__usage__output_tokens=70,
    ),
    span(
        3,
        "execute_tool search",
        600,
        1000,
        parent=1,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="search",
    ),
)


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_genai_spans_are_read_alike_in_every_container(contain: Any) -> None:
    found = profiled(*GENAI, contain=contain)
    assert path(found) == {"prefill": 250, "decode": 350, "tool": 400}
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("B", "small", 70)
    assert call.rule == "OTel GenAI: gen_ai.response.time_to_first_chunk"
    assert found.task.works[0].span.service == "desk"


def test_genai_under_its_former_names() -> None:
    found = profiled(
        span(
            1,
            "openai.chat",
            0,
            2100,
            gen_ai__system="openai",
            gen_ai__response__model="small-2026",
            gen_ai__usage__prompt_tokens=900,
            gen_ai__usage__completion_tokens=50,
        )
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("C", "small-2026", 50)
    assert call.rule == "OTel GenAI: gen_ai.usage.completion_tokens × time per output token"
    assert path(found) == {"prefill": 1050, "decode": 1050}  # 50 × the assumed 21 ms


def test_embeddings_and_retrievals_are_tools_and_plans_are_not() -> None:
    found = profiled(
        span(1, "a", 0, 100, gen_ai__operation__name="embeddings", gen_ai__usage__input_tokens=9),
        span(2, "b", 100, 200, gen_ai__operation__name="retrieval"),
        span(3, "c", 200, 300, gen_ai__operation__name="plan"),
        span(4, "d", 300, 400, mcp__method__name="tools/call"),
    )
    assert path(found) == {"tool": 300, "other": 100}
    assert calls(found) == []


def test_dialects_do_not_depend_on_the_container() -> None:
    spans = [
        {
            "traceID": one["traceId"],
            "spanID": one["spanId"],
            "operationName": one["name"],
            "startTime": int(one["startTimeUnixNano"]) // 1000,
            "duration": (int(one["endTimeUnixNano"]) - int(one["startTimeUnixNano"])) // 1000,
            "references": [
                {"refType": "CHILD_OF", "traceID": one["traceId"], "spanID": one["parentSpanId"]}
            ]
            if "parentSpanId" in one
            else [],
            "tags": [
                {"key": a["key"], "value": next(iter(a["value"].values()))}
                for a in one["attributes"]
            ],
        }
        for one in GENAI
    ]
    (trace,) = read_traces(json.dumps({"data": [{"spans": spans}]}).encode(), [JAEGER])
    found = profile_task(trace)
    assert path(found) == {"prefill": 250, "decode": 350, "tool": 400}
    assert only_call(found).rule == "OTel GenAI: gen_ai.response.time_to_first_chunk"
