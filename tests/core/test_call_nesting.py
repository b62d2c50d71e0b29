from __future__ import annotations

from typing import Any

import pytest
from span_builders import span, trace

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task

CHAT = {"gen_ai__operation__name": "chat"}


def calls(*spans: Any) -> Any:
    """Output tokens of every call, by span id."""
    task = build_task(trace(*spans))
    return {task.works[i].span.span_id: call.output_tokens for i, call in task.calls}


def chat(span_id: Any, start: Any, end: Any, tokens: Any = None, **more: Any) -> Any:
    usage = {} if tokens is None else {"gen_ai__usage__output_tokens": tokens}
    return span(span_id, start, end, **CHAT, **usage, **more)


def test_usage_above_the_calls_counts_once_at_the_leaves() -> None:
    found = trace(
        span("agent", 0, 100, gen_ai__usage__output_tokens=50),
        chat("a", 0, 40, 20, parent="agent", ttft_ms=0),
        chat("b", 40, 100, 30, parent="agent", ttft_ms=0),
    )
    profiled = profile_task(found)
    assert {w.span.span_id: w.kind for w in profiled.task.works}["agent"] == "other"
    assert profiled.model_calls == 2
    assert profiled.reconciled


def test_total_that_differs_from_its_calls_is_not_priced() -> None:
    found = profile_task(
        trace(
            span("agent", 0, 100, gen_ai__usage__output_tokens=51),
            chat("a", 0, 40, 20, parent="agent"),
            chat("b", 40, 100, 30, parent="agent"),
        )
    )
    assert not found.reconciled
    assert found.saving.value is None


def test_call_whose_tool_calls_a_model_is_a_call_too() -> None:
    found = calls(
        chat("outer", 0, 100, 20),
        span("tool", 30, 80, parent="outer", kind="tool"),
        chat("inner", 40, 70, 5, parent="tool"),
    )
    assert found == {"outer": 20, "inner": 5}


def test_agents_total_includes_the_calls_inside_its_tools() -> None:
    found = calls(
        span("agent", 0, 100, gen_ai__usage__output_tokens=5),
        span("tool", 30, 80, parent="agent", kind="tool"),
        chat("inner", 40, 70, 5, parent="tool"),
    )
    assert found == {"inner": 5}


@pytest.mark.parametrize("own", [None, 7])
def test_span_around_one_call_tells_its_tokens_where_the_call_does_not(own: Any) -> None:
    found = calls(
        chat("client", 0, 100, 20),
        span("hop", 0, 100, parent="client"),
        chat("server", 10, 90, own, parent="hop"),
    )
    assert found == {"server": own or 20}


def test_span_around_two_calls_tells_neither() -> None:
    found = calls(
        chat("client", 0, 100, 20),
        chat("a", 10, 40, parent="client"),
        chat("b", 50, 90, parent="client"),
    )
    assert found == {"a": None, "b": None}


def test_nearest_span_that_tells_is_believed() -> None:
    found = calls(
        chat("gateway", 0, 100, 20),
        chat("client", 0, 100, parent="gateway"),
        chat("server", 10, 90, parent="client"),
    )
    assert found == {"server": 20}


def test_lent_tokens_name_their_source_and_the_model() -> None:
    task = build_task(
        trace(
            chat("client", 0, 100, 20, gen_ai__request__model="small"),
            chat("server", 10, 90, parent="client"),
        )
    )
    ((_, call),) = task.calls
    assert (call.grade, call.model) == ("C", "small")
    assert call.rule.startswith("OTel GenAI: gen_ai.usage.output_tokens")


def test_phases_below_a_tool_belong_to_another_call() -> None:
    found = profile_task(
        trace(
            chat("outer", 0, 100, 20, gen_ai__response__time_to_first_chunk=20e-9),
            span("tool", 30, 80, parent="outer", kind="tool"),
            span("inner", 40, 70, parent="tool", kind="decode"),
        )
    )
    assert [call.grade for _, call in found.task.calls] == ["B", "A"]


def test_server_below_a_proxys_stage_stays_out_whatever_its_clock_says() -> None:
    found = profile_task(
        trace(
            span("p", 0, 30, kind="prefill"),
            span("d", 30, 100, parent="p", kind="decode"),
            chat("server", 40, 140, 9, parent="d"),
            span("detail", 50, 150, parent="server"),
        )
    )
    assert found.model_calls == 1
    assert found.saving.value == 35
    assert found.task.calls[0][1].output_tokens == 9


def test_server_below_a_stage_with_work_of_its_own_stays_in_the_graph() -> None:
    found = profile_task(
        trace(
            span("d", 0, 100, kind="decode"),
            chat("server", 10, 90, 9, parent="d"),
            span("tool", 20, 80, parent="server", kind="tool"),
        )
    )
    absorbed = {w.span.span_id: w.absorbed for w in found.task.works}
    assert absorbed == {"d": False, "server": False, "tool": False}
    assert found.reconciled


def test_execution_that_ran_beside_no_other_span_keeps_its_time() -> None:
    found = build_task(
        trace(
            span("t", 0, 100, name="claude_code.tool"),
            span("ask", 0, 30, parent="t", name="claude_code.tool.blocked_on_user"),
            span("run", 30, 80, parent="t", name="claude_code.tool.execution"),
            chat("after", 80, 100, parent="t"),
        )
    )
    absorbed = {w.span.span_id: w.absorbed for w in found.works}
    assert not any(absorbed.values())
