from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from span_builders import span, trace

from gatekeeper.core.model_calls import ASSUMED_RATE, observed_rates, timing
from gatekeeper.core.span_kinds import classify
from gatekeeper.core.task_profile import profile_task, token_rates
from gatekeeper.core.tasks import build_task, untrusted_timings
from gatekeeper.core.traces import SpanEvent, assemble

SECOND = 10**9
VLLM = {
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": "0.2",
    "gen_ai.latency.time_in_model_decode": 0.5,
}


def call(end: Any = SECOND, **attributes: Any) -> Any:
    one = span("llm", 0, end, kind="model")
    return type(one)(**{**one.__dict__, "attributes": {**one.attributes, **attributes}})


# --- duplicates, conflicts, unfinished, roots -----------------------------------------------


def test_equal_copies_count_once_without_a_word() -> None:
    one = span("a", 0, 5)
    assert trace(one, one, span("a", 0, 5)) == trace(one)
    assert trace(one, one).repairs == ()


def test_different_copies_are_a_conflict_decided_the_same_in_any_order() -> None:
    short, long = span("a", 0, 5), span("a", 0, 9)
    assert trace(short, long) == trace(long, short)
    assert trace(short, long).spans == (long,)
    assert "conflict" in trace(short, long).repairs[0]


def test_unfinished_copy_gives_way_to_the_finished_one() -> None:
    got = trace(span("a", 0, None), span("a", 0, 9))
    assert got.spans[0].end_ns == 9
    assert "conflict" not in got.repairs[0]


def test_unfinished_span_is_neither_zero_long_nor_until_now() -> None:
    task = build_task(trace(span("root", 0, 10), span("open", 4, None, parent="root")))
    work = task.works[1]
    assert (work.end_ns, work.phases) == (None, ())
    assert task.wall_ns == 10
    assert task.completeness == 0.5
    assert any("unfinished" in note for note in task.repairs)


def test_unfinished_model_call_makes_the_task_unpriced() -> None:
    profiled = profile_task(
        trace(
            span("root", 0, 10),
            call(8, **{"gen_ai.response.time_to_first_chunk": 2e-9}),
            span("lost", 8, None, kind="model"),
        )
    )
    assert profiled.evidence_grade == "D"
    assert profiled.saving.value is None
    assert profiled.model_calls == 2


def test_end_before_start_is_an_unknown_end() -> None:
    task = build_task(trace(span("root", 0, 10), span("skewed", 5, 3, parent="root")))
    assert task.works[1].end_ns is None
    assert task.wall_ns == 10


def test_orphan_lowers_completeness_and_is_a_root() -> None:
    task = build_task(trace(span("a", 0, 5), span("b", 5, 10, parent="never-exported")))
    assert task.completeness == pytest.approx(2 / 3)
    assert [w.parent for w in task.works] == [None, None]
    assert any("orphan" in note for note in task.repairs)
    assert any("2 roots" in note for note in task.repairs)


def test_loops_of_parents_are_cut() -> None:
    task = build_task(
        trace(
            span("self", 0, 9, parent="self"),
            span("a", 1, 5, parent="b"),
            span("b", 2, 6, parent="c"),
            span("c", 3, 7, parent="a"),
        )
    )
    parents = {w.span.span_id: w.parent for w in task.works}
    assert parents["self"] is None
    assert parents["a"] is None  # the earliest of its loop
    assert parents["b"] is not None


def test_unknown_attributes_stay() -> None:
    one = span("a", 0, 5, some__vendor__thing={"x": [1]})
    assert build_task(trace(one)).works[0].span.attributes["some.vendor.thing"] == {"x": [1]}


# --- kinds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("chat gpt", {"gen_ai.operation.name": "chat"}, "model"),
        ("x", {"gen_ai.operation.name": "execute_tool"}, "tool"),
        ("x", {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.output_tokens": 3}, "other"),
        ("x", {"gen_ai.system": "openai", "gen_ai.usage.completion_tokens": 3}, "model"),
        ("llm_request", VLLM, "model"),
        ("x", {"openinference.span.kind": "LLM"}, "model"),
        ("x", {"openinference.span.kind": "GUARDRAIL"}, "verification"),
        ("x", {"openinference.span.kind": "RETRIEVER"}, "tool"),
        ("x", {"langfuse.observation.type": "GENERATION"}, "model"),
        ("x", {"langfuse.observation.type": "EVALUATOR"}, "verification"),
        ("tool.Search", {"langfuse.observation.type": "SPAN"}, "tool"),
        ("ai.toolCall", {"ai.operationId": "ai.toolCall"}, "tool"),
        ("claude_code.tool.blocked_on_user", {}, "human_wait"),
        ("llm_d.pd_proxy.decode", {}, "decode"),
        ("INSERT runs", {"db.system.name": "postgresql"}, "persistence"),
        ("x", {"gatekeeper.kind": "queue", "gen_ai.operation.name": "chat"}, "queue"),
        ("GET /", {"http.method": "GET"}, "other"),
    ],
)
def test_dialects_map_to_kinds(name: Any, attributes: Any, kind: Any) -> None:
    one = span("a", 0, 1, name=name)
    got = classify(type(one)(**{**one.__dict__, "attributes": attributes}))
    assert got.kind == kind


# --- grades and phases ----------------------------------------------------------------------


def lengths(timed: Any) -> Any:
    return [(p.kind, p.end_ns - p.start_ns) for p in timed.phases]


def test_server_phases_are_grade_a_and_the_rest_stays_visible() -> None:
    timed = timing(call(**VLLM))
    assert timed.grade == "A"
    assert lengths(timed) == [
        ("queue", 100_000_000),
        ("prefill", 200_000_000),
        ("decode", 500_000_000),
        ("other", 200_000_000),
    ]


def test_server_phases_longer_than_the_span_are_not_used() -> None:
    timed = timing(call(SECOND // 2, **VLLM))
    assert timed.grade == "D"
    assert "exceed" in timed.problems[0]


def test_inference_minus_prefill_is_decode() -> None:
    timed = timing(
        call(
            **{
                "gen_ai.latency.time_in_model_prefill": 0.25,
                "gen_ai.latency.time_in_model_inference": 1.0,
            }
        )
    )
    assert lengths(timed) == [("prefill", 250_000_000), ("decode", 750_000_000)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.response.time_to_first_chunk": 0.25},
        {"ai.response.msToFirstChunk": 250},
        {"ttft_ms": "250"},
        {"langfuse.completion_start_ns": 250_000_000},
    ],
)
def test_client_first_token_is_grade_b_in_every_dialect(attributes: Any) -> None:
    timed = timing(call(**attributes))
    assert (timed.grade, lengths(timed)) == (
        "B",
        [("prefill", 250_000_000), ("decode", 750_000_000)],
    )


def test_openinference_event_is_the_first_token() -> None:
    one = call()
    event = SpanEvent("First Token Stream Event", 250_000_000)
    timed = timing(type(one)(**{**one.__dict__, "events": (event,)}))
    assert lengths(timed)[0] == ("prefill", 250_000_000)


def test_stream_that_stays_open_for_tools_ends_decode_at_its_own_finish() -> None:
    timed = timing(call(**{"ai.response.msToFirstChunk": 250, "ai.response.msToFinish": 500}))
    assert lengths(timed)[1:] == [("decode", 250_000_000), ("other", 500_000_000)]


@pytest.mark.parametrize("seconds", [-1, "nan", True, 2.0, None, [1]])
def test_unusable_first_token_times_are_no_evidence(seconds: Any) -> None:
    assert timing(call(**{"gen_ai.response.time_to_first_chunk": seconds})).grade == "D"


def test_answer_that_arrived_at_once_has_no_first_token_time() -> None:
    timed = timing(call(**{"ttft_ms": 1000, "gen_ai.usage.output_tokens": 40}))
    assert timed.grade == "C"


def test_zero_tokens_is_how_exporters_write_unknown() -> None:
    assert timing(call(**{"gen_ai.usage.output_tokens": 0})).grade == "D"


def test_grade_c_prices_with_a_wide_interval_and_says_which_rate() -> None:
    profiled = profile_task(trace(call(**{"gen_ai.usage.output_tokens": 20})))
    saving = profiled.saving
    assert profiled.evidence_grade == "C"
    assert saving.value == 20 * ASSUMED_RATE.typical_ns / 2
    assert saving.low == 20 * ASSUMED_RATE.low_ns * (1 - Fraction(4, 7))
    assert saving.high == 20 * ASSUMED_RATE.high_ns * (1 - Fraction(4, 9))
    assert any("assumed" in note for note in profiled.repairs)


def test_grade_c_never_decodes_longer_than_the_call() -> None:
    profiled = profile_task(trace(call(10**6, **{"gen_ai.usage.output_tokens": 500})))
    assert profiled.critical_path_ns["decode"] == 10**6


def test_rate_comes_from_calls_to_the_same_model_that_show_their_first_token() -> None:
    shown = call(
        **{"ttft_ms": 0, "gen_ai.usage.output_tokens": 100, "gen_ai.request.model": "small"}
    )
    (rate,) = token_rates([trace(shown)]).fitted.values()
    assert rate.typical_ns == 10**7
    assert rate.low_ns == Fraction(61, 100) * 10**7
    hidden = trace(
        call(**{"gen_ai.usage.output_tokens": 10, "gen_ai.request.model": "small"}),
    )
    stranger = trace(
        call(**{"gen_ai.usage.output_tokens": 10, "gen_ai.request.model": "large"}),
    )
    rates = observed_rates([timing(shown)])
    assert profile_task(hidden, rates=rates).critical_path_ns["decode"] == 10**8
    assert profile_task(stranger, rates=rates).critical_path_ns["decode"] == 21 * 10**7


def test_grade_d_is_unknown_not_zero() -> None:
    profiled = profile_task(trace(call()))
    assert profiled.evidence_grade == "D"
    assert profiled.saving.value is profiled.saving.low is profiled.saving.high is None
    assert profiled.ceiling_ns == SECOND  # all of the model time bounds it


def test_task_without_model_calls_has_no_ceiling_either() -> None:
    profiled = profile_task(trace(span("job", 0, 10)))
    assert (profiled.ceiling_ns, profiled.saving.value) == (None, None)


def test_worst_grade_on_the_path_counts_and_off_the_path_does_not() -> None:
    known = {"gen_ai.response.time_to_first_chunk": 0.1}
    slow = call(**known)
    hidden = span("side", 0, SECOND // 2, kind="model")
    assert profile_task(trace(slow, hidden)).evidence_grade == "B"
    after = span("next", SECOND, 2 * SECOND, kind="model")
    assert profile_task(trace(slow, after)).evidence_grade == "D"


def test_slowdown_costs_and_the_interval_stays_ordered() -> None:
    saving = profile_task(trace(span("llm", 0, 100, kind="decode")), speedup=Fraction(1, 2)).saving
    assert saving.value == -100
    assert saving.low <= saving.value <= saving.high < 0


def test_tool_with_a_model_call_inside_keeps_its_own_time() -> None:
    profiled = profile_task(
        trace(span("tool", 0, 100, kind="tool"), span("llm", 20, 60, parent="tool", kind="decode"))
    )
    assert profiled.critical_path_ns["tool"] == profiled.segments_ns["tool"] == 60
    assert profiled.saving.value == 20


# --- flushed exporters ----------------------------------------------------------------------


def flushed(count: Any, *, ends: Any) -> Any:
    return trace(
        span("root", 0, 1000),
        *(
            span(f"c{i}", 200 * i, ends(i), parent="root", kind="model", ttft_ms=0)
            for i in range(count)
        ),
    )


def test_spans_that_all_end_at_the_flush_are_reconciled_but_not_priced() -> None:
    profiled = profile_task(flushed(4, ends=lambda i: 1000))
    assert profiled.reconciled
    assert not profiled.trusted
    assert profiled.saving.value is None
    assert any("untrusted" in note for note in profiled.repairs)


def test_spans_with_their_own_ends_are_trusted() -> None:
    assert untrusted_timings(build_task(flushed(4, ends=lambda i: 200 * i + 150))) is None


def test_nested_spans_may_all_end_together() -> None:
    chain = [span(f"d{i}", 200 * i, 1000, parent=f"d{i - 1}" if i else None) for i in range(5)]
    assert untrusted_timings(build_task(trace(*chain))) is None


def test_traces_are_told_apart_by_id_and_sorted_by_time() -> None:
    one = span("a", 5, 9)
    other = type(one)(**{**one.__dict__, "trace_id": "e" * 32, "start_ns": 1})
    assert [t.trace_id[0] for t in assemble([one, other], source_format="x")] == ["e", "f"]


def test_spans_of_a_trace_stand_in_canonical_order() -> None:
    got = trace(span("a", 5, 9), span("c", 0, 4), span("b", 0, 4), span("d", 0, None))
    assert [s.span_id for s in got.spans] == ["d", "b", "c", "a"]


def test_plain_span_between_a_tool_and_its_model_call_is_no_mere_detail() -> None:
    profiled = profile_task(
        trace(
            span("tool", 0, 100, kind="tool"),
            span("step", 10, 90, parent="tool"),
            span("llm", 20, 60, parent="step", kind="decode"),
        )
    )
    assert profiled.critical_path_ns["decode"] == 40
    assert profiled.saving.value == 20


def test_unfinished_call_beside_the_path_might_have_been_on_it() -> None:
    known = call(**{"gen_ai.response.time_to_first_chunk": 0.1})
    aside = span("lost", SECOND // 2, None, kind="model")
    profiled = profile_task(trace(known, aside))
    assert profiled.evidence_grade == "D"
    assert profiled.saving.value is None
