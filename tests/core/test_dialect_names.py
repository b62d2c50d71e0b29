"""Every name in the table of every dialect, and what it means: a name without a line here fails."""

from __future__ import annotations

from typing import Any

import pytest
from span_builders import span

from gatekeeper.core.dialects import DIALECTS
from gatekeeper.core.model_calls import model_name, output_tokens, timing
from gatekeeper.core.segment_kinds import KINDS, MODEL
from gatekeeper.core.span_kinds import classify
from gatekeeper.core.traces import SpanEvent

MS = 10**6

VALUES: dict[str, dict[str, str]] = {
    "gatekeeper.kind": {kind: kind for kind in (*KINDS, MODEL)},
    "gatekeeper.segment.kind": {kind: kind for kind in (*KINDS, MODEL)},
    "openinference.span.kind": {
        "LLM": "model",
        "TOOL": "tool",
        "RETRIEVER": "tool",
        "EMBEDDING": "tool",
        "RERANKER": "tool",
        "GUARDRAIL": "verification",
        "EVALUATOR": "verification",
        "AGENT": "other",
        "CHAIN": "other",
        "PROMPT": "other",
    },
    "ai.operationId": {
        "ai.streamText.doStream": "model",
        "ai.generateText.doGenerate": "model",
        "ai.streamObject.doStream": "model",
        "ai.generateObject.doGenerate": "model",
        "ai.toolCall": "tool",
        "ai.embed.doEmbed": "tool",
        "ai.embedMany.doEmbed": "tool",
        "ai.rerank.doRerank": "tool",
        "ai.streamText": "other",
        "ai.generateText": "other",
        "ai.streamObject": "other",
        "ai.generateObject": "other",
        "ai.embed": "other",
        "ai.embedMany": "other",
        "ai.rerank": "other",
    },
    "gen_ai.operation.name": {
        "chat": "model",
        "generate_content": "model",
        "text_completion": "model",
        "llm_call": "model",
        "embeddings": "tool",
        "retrieval": "tool",
        "execute_tool": "tool",
        "create_agent": "other",
        "invoke_agent": "other",
        "invoke_workflow": "other",
        "plan": "other",
    },
    "mcp.method.name": {"tools/call": "tool"},
    "traceloop.span.kind": {"tool": "tool", "workflow": "other", "agent": "other"},
    "llm.request.type": {
        "chat": "model",
        "completion": "model",
        "embedding": "tool",
        "rerank": "tool",
    },
    "langfuse.observation.type": {
        "GENERATION": "model",
        "TOOL": "tool",
        "RETRIEVER": "tool",
        "EMBEDDING": "tool",
        "EVALUATOR": "verification",
        "GUARDRAIL": "verification",
        "AGENT": "other",
        "CHAIN": "other",
        "EVENT": "other",
    },
}

STAGE = {"llm_d.pd_proxy.request_id": "r1"}

NAMES: list[tuple[str, dict[str, str], str]] = [
    ("ai.streamText.doStream", {}, "model"),
    ("ai.toolCall", {}, "tool"),
    ("ai.embedMany.doEmbed", {}, "tool"),
    ("ai.streamText", {"gen_ai.usage.output_tokens": "3"}, "other"),
    ("claude_code.tool.blocked_on_user", {}, "human_wait"),
    ("claude_code.tool", {}, "tool"),
    ("claude_code.tool.execution", {}, "tool"),
    ("claude_code.hook", {}, "tool"),
    ("claude_code.llm_request", {}, "model"),
    ("claude_code.interaction", {"gen_ai.usage.output_tokens": "3"}, "other"),
    ("llm_d.pd_proxy.prefill", {}, "prefill"),
    ("llm_d.pd_proxy.decode", {}, "decode"),
    ("prefill", STAGE, "prefill"),
    ("decode", STAGE, "decode"),
    ("llm_d.pd_proxy.request", {}, "model"),
    ("llm_d.pd_proxy.POST /v1/chat/completions", {}, "model"),
    ("llm_request", {}, "model"),
    ("execute_tool search", {}, "tool"),
    ("tools/call search", {}, "tool"),
    ("human approval", {}, "human_wait"),
    ("User_Confirmation", {}, "human_wait"),
    ("waiting for user", {}, "human_wait"),
    ("tool.Search", {}, "tool"),
    ("Verify answer", {}, "verification"),
]

PRESENCE = {
    "llm.token_count.completion": "model",
    "gen_ai.latency.time_in_model_decode": "model",
    "gen_ai.latency.time_in_model_inference": "model",
    "gen_ai.latency.e2e": "model",
    "gen_ai.latency.time_in_model_prefill": "model",
    "gen_ai.latency.time_to_first_token": "model",
    "gen_ai.tool.name": "tool",
    "gen_ai.tool.call.id": "tool",
    "gen_ai.usage.output_tokens": "model",
    "gen_ai.usage.completion_tokens": "model",
    "llm.usage.completion_tokens": "model",
    "llm.usage.total_tokens": "model",
    "db.system.name": "persistence",
    "db.system": "persistence",
}

OUTPUT = (
    "llm.token_count.completion",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
    "output_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "langfuse.usage.output",
)
TOTALS = (
    "llm.token_count.total",
    "ai.usage.totalTokens",
    "gen_ai.usage.total_tokens",
    "llm.usage.total_tokens",
)
INPUT = (
    "llm.token_count.prompt",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
    "input_tokens",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
)
MODELS = (
    "llm.model_name",
    "ai.model.id",
    "ai.response.model",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.request.model",
    "llm.response.model",
    "langfuse.model",
    "langfuse.observation.model.name",
)
DELAYS = {
    "ai.response.msToFirstChunk": 250,
    "ai.stream.msToFirstChunk": 250,
    "ttft_ms": 250,
    "gen_ai.latency.time_to_first_token": 0.25,
    "gen_ai.response.time_to_first_chunk": 0.25,
    "gen_ai.server.time_to_first_token": 0.25,
}
TIMES = ("langfuse.completion_start_ns",)
EVENTS = (
    "First Token Stream Event",
    "ai.stream.firstChunk",
    "gen_ai.content.first_token",
    "llm.content.completion.chunk",
)


def with_attributes(attributes: Any, *, name: Any = "x", events: Any = ()) -> Any:
    one = span("a", 0, 1000 * MS, name=name)
    return type(one)(**{**one.__dict__, "attributes": attributes, "events": events})


@pytest.mark.parametrize("key", VALUES)
def test_value_tells_the_kind_in_any_case(key: Any) -> None:
    for value, kind in VALUES[key].items():
        for written in (value, value.upper(), value.lower()):
            found = classify(with_attributes({key: written}))
            assert found.kind == kind
            assert f"{key} = {value}" in found.rule


@pytest.mark.parametrize(("name", "attributes", "kind"), NAMES)
def test_name_tells_the_kind(name: Any, attributes: Any, kind: Any) -> None:
    found = classify(with_attributes(attributes, name=name))
    assert found.kind == kind
    assert ": name like " in found.rule


@pytest.mark.parametrize(("key", "kind"), PRESENCE.items())
def test_presence_tells_the_kind(key: Any, kind: Any) -> None:
    found = classify(with_attributes({key: "1"}))
    assert (found.kind, found.told) == (kind, False)
    assert found.rule.endswith(f": has {key}")


def test_span_of_no_dialect_is_other_by_no_rule() -> None:
    found = classify(with_attributes({"gen_ai.operation.name": "something new", "n": 3}))
    assert (found.kind, found.rule) == ("other", "no rule")


def test_value_beats_name_and_name_beats_presence() -> None:
    both = {"gen_ai.operation.name": "chat", "gen_ai.tool.name": "x"}
    assert classify(with_attributes(both, name="tool.x")).kind == "model"
    assert classify(with_attributes({"db.system": "x"}, name="tool.x")).kind == "tool"


def test_long_names_are_read_like_short_ones() -> None:
    assert classify(with_attributes({}, name=f"tool.{'x' * 5000}")).kind == "tool"


@pytest.mark.parametrize("key", OUTPUT)
def test_output_tokens(key: Any) -> None:
    assert [output_tokens({key: value}) for value in (12, "12", 12.0, 0, -1, "x")] == [
        12,
        12,
        12,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("total", TOTALS)
def test_total_less_input_is_output(total: Any) -> None:
    for given in INPUT:
        assert output_tokens({total: 30, given: "18"}) == 12
        assert output_tokens({total: 18, given: 18}) is None
    assert output_tokens({total: 30}) is None


@pytest.mark.parametrize("key", MODELS)
def test_model_names(key: Any) -> None:
    assert model_name({key: "small"}) == "small"
    assert model_name({key: ""}) is None


def test_model_asked_for_stands_before_the_one_that_answered() -> None:
    both = {"gen_ai.response.model": "small-2026", "gen_ai.request.model": "small"}
    assert model_name(both) == "small"


@pytest.mark.parametrize(("key", "value"), DELAYS.items())
def test_first_token_delays(key: Any, value: Any) -> None:
    found = timing(with_attributes({key: value}))
    assert (found.grade, found.phases[0].end_ns) == ("B", 250 * MS)
    assert found.rule.endswith(f": {key}")


@pytest.mark.parametrize("key", TIMES)
def test_first_token_times(key: Any) -> None:
    found = timing(with_attributes({key: 250 * MS}))
    assert (found.grade, found.phases[0].end_ns) == ("B", 250 * MS)


@pytest.mark.parametrize("name", EVENTS)
def test_first_token_events(name: Any) -> None:
    events = (SpanEvent("other", 100 * MS), SpanEvent(name, 250 * MS), SpanEvent(name, 300 * MS))
    found = timing(with_attributes({}, events=events))
    assert (found.grade, found.phases[0].end_ns) == ("B", 250 * MS)
    assert found.rule.endswith(f": event {name}")


def test_no_name_goes_untested() -> None:
    for one in DIALECTS:
        for key, meaning in one.kind_by_value.items():
            assert meaning.keys() <= VALUES[key].keys()
        assert one.kind_by_presence.keys() <= PRESENCE.keys()
        assert set(one.output_tokens) <= set(OUTPUT)
        assert set(one.total_tokens) <= set(TOTALS)
        assert set(one.input_tokens) <= set(INPUT)
        assert set(one.models) <= set(MODELS)
        assert {delay.key for delay in one.first_token_delays} <= DELAYS.keys()
        assert set(one.first_token_times) <= set(TIMES)
        assert set(one.first_token_events) <= set(EVENTS)
        rules = {classify(with_attributes(extra, name=name)).rule for name, extra, _ in NAMES}
        for named in one.kind_by_name:
            assert any(f"{one.name}: name like {named.pattern}" in rule for rule in rules)
