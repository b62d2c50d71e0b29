"""Instrumentations of agents: OpenInference, OpenLLMetry, the Vercel AI SDK."""

from __future__ import annotations

from typing import Any

import otlp_documents as otlp
import pytest
from dialect_tasks import calls, only_call, path, profiled
from otlp_documents import span


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_openinference_event_is_the_first_token(contain: Any) -> None:
    found = profiled(
        span(1, "plan", 0, 1000, openinference__span__kind="CHAIN", llm__token_count__total=99),
        span(
            2,
            "ChatModel",
            0,
            700,
            parent=1,
            events=[("First Token Stream Event", 300)],
            openinference__span__kind="LLM",
            llm__model_name="small",
            llm__token_count__prompt=80,
            llm__token_count__completion=19,
            llm__token_count__total=99,
        ),
        span(3, "rerank", 700, 800, parent=1, openinference__span__kind="RERANKER"),
        span(4, "check", 800, 1000, parent=1, openinference__span__kind="EVALUATOR"),
        contain=contain,
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("B", "small", 19)
    assert call.rule == "OpenInference: event First Token Stream Event"
    assert path(found) == {"prefill": 300, "decode": 400, "tool": 100, "verification": 200}


def test_openinference_without_the_event_counts_tokens() -> None:
    found = profiled(
        span(
            1, "ChatModel", 0, 700, openinference__span__kind="LLM", llm__token_count__completion=19
        )
    )
    assert only_call(found).grade == "C"


TRACELOOP = (
    span(1, "run.workflow", 0, 1000, traceloop__span__kind="workflow"),
    span(2, "step.task", 0, 1000, parent=1, traceloop__span__kind="task"),
    span(3, "lookup", 600, 1000, parent=2, traceloop__span__kind="tool"),
)


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_openllmetry_total_less_the_prompt_is_the_output(contain: Any) -> None:
    found = profiled(
        *TRACELOOP,
        span(
            4,
            "openai.completion",
            0,
            600,
            parent=2,
            llm__request__type="completion",
            gen_ai__request__model="small",
            llm__usage__prompt_tokens=400,
            llm__usage__total_tokens=410,
        ),
        contain=contain,
    )
    call = only_call(found)
    assert (call.grade, call.output_tokens) == ("C", 10)
    assert call.rule == (
        "OpenLLMetry: llm.usage.total_tokens less llm.usage.prompt_tokens × time per output token"
    )
    assert path(found) == {"prefill": 390, "decode": 210, "tool": 400}


def test_openllmetry_first_chunk_of_a_stream_is_the_first_token() -> None:
    chunks = [("llm.content.completion.chunk", at) for at in (200, 300, 600)]
    found = profiled(
        *TRACELOOP,
        span(
            4,
            "openai.chat",
            0,
            600,
            parent=2,
            events=chunks,
            llm__request__type="chat",
            llm__usage__completion_tokens=10,
        ),
    )
    assert only_call(found).rule == "OpenLLMetry: event llm.content.completion.chunk"
    assert path(found) == {"prefill": 200, "decode": 400, "tool": 400}


def test_openllmetry_embedding_is_no_call() -> None:
    found = profiled(*TRACELOOP, span(4, "e", 0, 600, parent=2, llm__request__type="embedding"))
    assert (calls(found), path(found)) == ([], {"tool": 1000})


def vercel(**call: Any) -> Any:
    return (
        span(
            1,
            "ai.streamText",
            0,
            2000,
            ai__operationId="ai.streamText",
            ai__usage__outputTokens=40,
            ai__response__msToFirstChunk=300.5,
        ),
        span(
            2,
            "ai.streamText.doStream",
            0,
            1500,
            parent=1,
            ai__operationId="ai.streamText.doStream",
            ai__model__id="small",
            ai__usage__inputTokens=800,
            ai__usage__outputTokens=40,
            ai__response__avgOutputTokensPerSecond=32.0,
            **call,
        ),
        span(3, "ai.toolCall", 1500, 2000, parent=1, ai__operationId="ai.toolCall"),
    )


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_vercel_decodes_from_the_first_chunk_to_the_finish(contain: Any) -> None:
    timed = {"ai__response__msToFirstChunk": 300.5, "ai__response__msToFinish": 1250.0}
    found = profiled(*vercel(**timed), contain=contain)
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("B", "small", 40)
    assert call.rule == ("Vercel AI SDK: ai.response.msToFirstChunk to ai.response.msToFinish")
    assert path(found) == {"prefill": 300.5, "decode": 949.5, "other": 250, "tool": 500}


def test_vercel_before_version_4() -> None:
    found = profiled(*vercel(ai__stream__msToFirstChunk=500.0))
    assert path(found) == {"prefill": 500, "decode": 1000, "tool": 500}


def test_vercel_average_token_rate_is_never_used() -> None:
    with_rate = profiled(*vercel())
    assert only_call(with_rate).grade == "C"
    without = [
        {**one, "attributes": [a for a in one["attributes"] if "avg" not in a["key"]]}
        for one in vercel()
    ]
    assert path(profiled(*without)) == path(with_rate)


def test_vercel_spans_are_known_by_name_too() -> None:
    bare = [
        {**one, "attributes": [a for a in one["attributes"] if a["key"] != "ai.operationId"]}
        for one in vercel(ai__response__msToFirstChunk=500.0)
    ]
    assert path(profiled(*bare)) == {"prefill": 500, "decode": 1000, "tool": 500}
