"""Each dialect as its instrumentation writes it, and what a task of it is then made of."""

from __future__ import annotations

import json
from typing import Any

import otlp_documents as otlp
import pytest
from gatekeeper_adapters.traces.jaeger import FORMAT as JAEGER
from gatekeeper_adapters.traces.otlp import FORMAT
from otlp_documents import span

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces

MS = otlp.MS


def profiled(*spans: Any, contain: Any = otlp.as_json, **options: Any) -> Any:
    (trace,) = read_traces(contain(spans), [FORMAT])
    found = profile_task(trace, **options)
    assert found.reconciled
    assert sum(found.critical_path_ns.values()) == found.task.wall_ns
    return found


def path(found: Any) -> Any:
    """Milliseconds on the critical path by kind, without the zeros."""
    return {kind: ns / MS for kind, ns in found.critical_path_ns.items() if ns}


def calls(found: Any) -> Any:
    return [call for _, call in found.task.calls]


def only_call(found: Any) -> Any:
    (call,) = calls(found)
    return call


# --- OpenTelemetry GenAI --------------------------------------------------------------------

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


# --- vLLM and SGLang ------------------------------------------------------------------------

VLLM: dict[str, Any] = {
    "gen_ai__latency__time_in_queue": 0.1,
    "gen_ai__latency__time_in_model_prefill": 0.2,
    "gen_ai__latency__time_in_model_decode": 0.6,
    "gen_ai__latency__time_in_model_inference": 0.8,
    "gen_ai__latency__time_to_first_token": 0.34,
    "gen_ai__latency__e2e": 1.0,
    "gen_ai__usage__prompt_tokens": 900,
    "gen_ai__usage__completion_tokens": 30,
}


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_vllm_phases_become_segments_and_the_rest_stays_unattributed(contain: Any) -> None:
    found = profiled(span(1, "llm_request", 0, 1000, **VLLM), contain=contain)
    call = only_call(found)
    assert call.grade == "A"
    assert call.rule == (
        "vLLM, SGLang: gen_ai.latency.time_in_model_prefill and gen_ai.latency.time_in_model_decode"
    )
    # 40 ms before the queue, since the first token came after 340 and not 300; 60 ms at the end.
    assert [(p.kind, (p.end_ns - p.start_ns) / MS) for p in call.phases] == [
        ("other", 40),
        ("queue", 100),
        ("prefill", 200),
        ("decode", 600),
        ("other", 60),
    ]


def test_sglang_writes_no_queue_and_counts_from_its_dispatch() -> None:
    found = profiled(
        span(
            1,
            "Req 7",
            0,
            1000,
            gen_ai__latency__time_to_first_token=0.5,
            gen_ai__latency__e2e=1.0,
            gen_ai__latency__time_in_model_prefill=0.4,
            gen_ai__latency__time_in_model_decode=0.5,
            gen_ai__latency__time_in_model_inference=0.9,
        ),
        span(2, "prefill_forward", 100, 500, parent=1),  # a slice of the scheduler: detail
        span(3, "decode_loop", 500, 900, parent=1),
    )
    assert only_call(found).grade == "A"
    assert path(found) == {"other": 100, "prefill": 400, "decode": 500}
    assert found.saving.value == 250 * MS


def test_server_that_only_prefills_decodes_nothing() -> None:
    found = profiled(
        span(
            1,
            "Req 8",
            0,
            500,
            gen_ai__latency__time_to_first_token=0.5,
            gen_ai__latency__time_in_model_prefill=0.4,
        )
    )
    assert only_call(found).rule.endswith("of a server that only prefills")
    assert path(found) == {"prefill": 400, "other": 100}


def test_prefill_alone_is_no_proof_that_many_tokens_took_no_time() -> None:
    found = profiled(
        span(
            1,
            "Req 8",
            0,
            500,
            gen_ai__latency__time_in_model_prefill=0.4,
            gen_ai__usage__completion_tokens=10,
        )
    )
    assert only_call(found).grade == "C"


def test_clients_span_around_the_servers_gives_way_to_it() -> None:
    found = profiled(
        span(
            1,
            "chat small",
            0,
            1200,
            gen_ai__operation__name="chat",
            gen_ai__request__model="small",
            gen_ai__response__time_to_first_chunk=0.5,
            gen_ai__usage__output_tokens=30,
        ),
        span(2, "llm_request", 100, 1100, parent=1, **VLLM),
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("A", "small", 30)
    assert path(found)["decode"] == 600


# --- OpenInference --------------------------------------------------------------------------


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


# --- OpenLLMetry ----------------------------------------------------------------------------

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


# --- Vercel AI SDK --------------------------------------------------------------------------


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


# --- Claude Code ----------------------------------------------------------------------------


def claude(**request: Any) -> Any:
    values: dict[str, Any] = {"ttft_ms": 200, "duration_ms": 1000, "attempt": 1, **request}
    events = values.pop("events", ())
    return (
        span(1, "claude_code.interaction", 0, 4000, interaction__duration_ms=4000),
        span(
            2,
            "claude_code.llm_request",
            0,
            1000,
            parent=1,
            events=events,
            gen_ai__system="anthropic",
            gen_ai__request__model="opus",
            output_tokens=40,
            **values,
        ),
        span(3, "claude_code.tool", 1000, 4000, parent=1, tool_name="Bash"),
        span(4, "claude_code.tool.blocked_on_user", 1000, 3000, parent=3, decision="accept"),
        span(5, "claude_code.tool.execution", 3000, 3900, parent=3, success=True),
    )


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_claude_code_tells_waiting_for_a_person_from_the_tool(contain: Any) -> None:
    found = profiled(*claude(), contain=contain)
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("B", "opus", 40)
    assert call.rule == "Claude Code: ttft_ms"
    # The last 100 ms of the tool's span are its own, after the execution.
    assert path(found) == {"prefill": 200, "decode": 800, "human_wait": 2000, "tool": 1000}
    assert found.without_waiting.basis == "measured"
    assert found.without_waiting.wall_ns == 2000 * MS


def test_claude_code_tool_that_nobody_was_asked_about_hides_no_wait() -> None:
    found = profiled(*(one for one in claude() if "blocked" not in one["name"]))
    assert found.without_waiting is None


def test_claude_code_subagent_is_not_hidden_by_the_execution_that_ran_it() -> None:
    found = profiled(
        span(1, "claude_code.tool", 0, 3000, tool_name="Agent"),
        span(2, "claude_code.tool.execution", 0, 3000, parent=1),
        span(
            3,
            "claude_code.llm_request",
            100,
            2100,
            parent=1,
            ttft_ms=500,
            output_tokens=90,
        ),
    )
    assert path(found) == {"tool": 1000, "prefill": 500, "decode": 1500}
    assert found.saving.value == 750 * MS


@pytest.mark.parametrize("events", [[0, 400], [400]], ids=["every-attempt", "retries-only"])
def test_claude_code_retry_counts_neither_as_prefill_nor_as_decode(events: Any) -> None:
    marks = [("gen_ai.request.attempt", at) for at in events]
    found = profiled(*claude(attempt=2, events=marks))
    call = only_call(found)
    assert (call.grade, call.attempts) == ("B", 2)
    lengths = {"other": 400, "prefill": 200, "decode": 400, "human_wait": 2000, "tool": 1000}
    assert path(found) == lengths
    assert "2 attempts inside one model span" in found.repairs


def test_claude_code_retry_of_unknown_time_leaves_the_first_token_out() -> None:
    found = profiled(*claude(attempt=3))
    call = only_call(found)
    assert (call.grade, call.attempts) == ("C", 3)
    assert any("does not say of which attempt" in note for note in found.repairs)


# --- llm-d ----------------------------------------------------------------------------------

STAGE = {"llm_d__pd_proxy__request_id": "r1"}


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
@pytest.mark.parametrize("prefix", ["llm_d.pd_proxy.", ""], ids=["older", "newer"])
def test_llm_d_decode_outlives_the_prefill_it_is_a_child_of(prefix: Any, contain: Any) -> None:
    found = profiled(
        span(1, f"{prefix}prefill", 0, 300, **STAGE),
        span(2, f"{prefix}decode", 320, 1000, parent=1, **STAGE),
        contain=contain,
    )
    assert path(found) == {"prefill": 300, "decode": 680, "other": 20}
    assert only_call(found).grade == "A"
    assert found.saving.value == 340 * MS


def test_spans_that_are_merely_called_decode_are_not_llm_ds() -> None:
    found = profiled(span(1, "decode", 0, 300), span(2, "prefill", 300, 400))
    assert (path(found), calls(found)) == ({"other": 400}, [])


def test_llm_d_counts_one_call_whatever_the_two_servers_write_below() -> None:
    found = profiled(
        span(1, "llm_d.pd_proxy.POST /v1/chat/completions", 0, 1010),
        span(2, "forward_request", 0, 1010, parent=1),
        span(3, "prefill", 0, 300, parent=2, **STAGE),
        span(
            4,
            "llm_request",
            5,
            290,
            parent=3,
            gen_ai__response__model="small",
            **{**VLLM, "gen_ai__usage__completion_tokens": 1},
        ),
        span(5, "decode", 310, 1000, parent=3, **STAGE),
        # By its own clock it ends after the proxy that waited for it.
        span(6, "llm_request", 330, 1200, parent=5, gen_ai__response__model="small", **VLLM),
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("A", "small", 30)
    assert path(found)["decode"] == 690
    assert found.saving.value == 345 * MS


def test_llm_d_stages_sent_off_together_decode_only_after_the_prefill() -> None:
    both = {**STAGE, "llm_d__pd_proxy__parallel_dispatch": True}
    found = profiled(
        span(1, "llm_d.pd_proxy.request", 0, 1000),
        span(2, "prefill", 0, 400, parent=1, **both),
        span(3, "decode", 10, 1000, parent=1, **both),
    )
    assert len(calls(found)) == 1
    assert found.segments_ns["queue"] == 390 * MS
    assert found.segments_ns["decode"] == 600 * MS
    assert found.saving.value == 300 * MS


# --- what no dialect owns -------------------------------------------------------------------


def test_segment_kind_named_by_the_application_is_the_last_word() -> None:
    found = profiled(
        span(1, "ask", 0, 500, gatekeeper__segment__kind="human_wait", gen_ai__tool__name="ask"),
        span(2, "INSERT", 500, 600, db__system__name="sqlite"),
        span(3, "wait for approval", 600, 700),
        span(4, "verify answer", 700, 800),
    )
    assert path(found) == {"human_wait": 600, "persistence": 100, "verification": 100}


CHAT = {"gen_ai__operation__name": "chat", "gen_ai__usage__output_tokens": 20}


@pytest.mark.parametrize(
    "resend", ["http.request.resend_count", "http.resend_count", "http.retry_count"]
)
def test_request_sent_again_below_a_call_is_an_attempt(resend: Any) -> None:
    found = profiled(
        span(1, "chat", 0, 1000, gen_ai__response__time_to_first_chunk=0.2, **CHAT),
        span(2, "POST", 0, 300, parent=1, http__request__method="POST"),
        span(3, "POST", 400, 1000, parent=1, http__request__method="POST", **{resend: 1}),
    )
    call = only_call(found)
    assert (call.grade, call.attempts) == ("B", 2)
    assert path(found) == {"other": 400, "prefill": 200, "decode": 400}


def test_failed_request_below_a_call_is_an_attempt() -> None:
    found = profiled(
        span(1, "chat", 0, 1000, gen_ai__response__time_to_first_chunk=0.7, **CHAT),
        span(
            2,
            "POST",
            0,
            300,
            parent=1,
            http__request__method="POST",
            http__response__status_code=503,
        ),
        span(
            3,
            "POST",
            400,
            1000,
            parent=1,
            http__request__method="POST",
            http__response__status_code=200,
        ),
    )
    # 0.7 s after the second attempt the call had ended: the time counts from the first.
    assert only_call(found).attempts == 2
    assert path(found) == {"other": 400, "prefill": 300, "decode": 300}


def test_refused_call_is_no_unknown_decode() -> None:
    found = profiled(
        span(1, "chat", 0, 200, gen_ai__operation__name="chat", http__response__status_code=429),
        span(2, "chat", 200, 1000, gen_ai__response__time_to_first_chunk=0.2, **CHAT),
    )
    refused, answered = calls(found)
    assert refused.rule == "refused with status 429: nothing was decoded"
    assert (refused.grade, answered.grade, found.evidence_grade) == ("B", "B", "B")
    assert path(found) == {"other": 200, "prefill": 200, "decode": 600}


def test_timed_out_call_may_have_decoded() -> None:
    found = profiled(
        span(1, "chat", 0, 200, gen_ai__operation__name="chat", http__response__status_code=504)
    )
    assert found.evidence_grade == "D"
