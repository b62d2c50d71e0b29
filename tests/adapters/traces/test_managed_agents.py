from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.managed_agents import FORMAT

from gatekeeper.core.model_calls import timing
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

SECOND = 10**9


def event(kind: str, at: float, event_id: str, /, **fields: Any) -> Any:
    """An event at a second of one minute, to the microsecond."""
    return {
        "id": event_id,
        "type": kind,
        "processed_at": f"2026-03-01T09:00:{at:09.6f}Z",
        **fields,
    }


def call(start: float, end: float, name: str, tokens: int = 40) -> Any:
    return [
        event("span.model_request_start", start, name),
        event(
            "span.model_request_end",
            end,
            f"{name}-end",
            model_request_start_id=name,
            is_error=False,
            model_usage={
                "input_tokens": 2,
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 98,
                "output_tokens": tokens,
            },
        ),
    ]


def idle(at: float, name: str, *blocking: str) -> Any:
    reason = {"type": "requires_action", "event_ids": list(blocking)} if blocking else None
    return event("session.status_idle", at, name, stop_reason=reason or {"type": "end_turn"})


def asked(result: str = "allow") -> Any:
    """A tool that needs a confirmation, which takes 20 s; it then runs for 3 s."""
    return [
        event("session.status_running", 0, "run"),
        event("user.message", 0.5, "question", content=[{"type": "text", "text": "delete it"}]),
        *call(1, 5, "first"),
        event("agent.tool_use", 4.9, "use", name="bash", evaluated_permission="ask"),
        idle(6, "blocked", "use"),
        event("user.tool_confirmation", 26, "yes", tool_use_id="use", result=result),
        event("session.status_running", 26.5, "again"),
        event("agent.tool_result", 29, "result", tool_use_id="use", is_error=False),
        *call(30, 33, "second"),
        event("agent.message", 31, "text", content=[]),
        idle(34, "end"),
    ]


def trace(events: Any) -> Any:
    (one,) = read_traces("\n".join(map(json.dumps, events)).encode(), [FORMAT])
    return one


def spans(events: Any) -> dict[str, Any]:
    return {span.span_id: span for span in trace(events).spans}


def length(span: Any) -> float:
    return float((span.end_ns - span.start_ns) / SECOND)


def test_wait_for_a_confirmation_is_exact_and_the_tool_starts_after_it() -> None:
    found = spans(asked())
    assert length(found["use.confirmation"]) == 20
    assert length(found["use"]) == 3
    assert found["use"].attributes["gen_ai.tool.name"] == "bash"
    profiled = profile_task(trace(asked()))
    assert profiled.reconciled
    assert profiled.critical_path_ns["human_wait"] == 20 * SECOND
    assert profiled.critical_path_ns["tool"] == 3 * SECOND


def test_call_has_its_tokens_and_no_first_token() -> None:
    found = spans(asked())["first"]
    timed = timing(found)
    assert (timed.grade, timed.output_tokens) == ("C", 40)
    assert found.attributes["gen_ai.usage.input_tokens"] == 1000
    # A message is written when it is complete: the second call stays at grade C.
    assert timing(spans(asked())["second"]).grade == "C"


def test_tool_that_was_denied_never_ran() -> None:
    profiled = profile_task(trace(asked("deny")))
    assert profiled.critical_path_ns["tool"] == 0
    assert profiled.critical_path_ns["human_wait"] == 20 * SECOND


def test_confirmation_that_never_came_is_unfinished_and_its_tool_has_not_begun() -> None:
    found = spans(asked()[:6])
    assert found["use.confirmation"].end_ns is None
    assert "use" not in found


def together(answered: dict[str, float], ended: dict[str, float]) -> Any:
    """Two tools that are asked about at one moment, second 6, beside a tool of the client's."""
    uses = [
        event("agent.tool_use", 4.7, "one", name="write", evaluated_permission="ask"),
        event("agent.tool_use", 4.8, "two", name="delete", evaluated_permission="ask"),
        event("agent.custom_tool_use", 4.9, "own", name="lookup"),
    ]
    answers = [
        event("user.custom_tool_result", at, "answer own", custom_tool_use_id="own")
        if name == "own"
        else event("user.tool_confirmation", at, f"yes {name}", tool_use_id=name, result="allow")
        for name, at in answered.items()
    ]
    results = [
        event("agent.tool_result", at, f"result {name}", tool_use_id=name)
        for name, at in ended.items()
    ]
    return [
        *call(1, 5, "first"),
        *uses,
        idle(6, "blocked", "one", "two", "own"),
        *answers,
        *results,
    ]


@pytest.mark.parametrize("last", ["two", "own"])
def test_tool_begins_when_all_that_was_asked_for_together_is_answered(last: str) -> None:
    (other,) = {"two", "own"} - {last}
    events = together({"one": 10, other: 12, last: 40}, {"one": 43, "two": 42})
    found = spans(events)
    assert length(found["one.confirmation"]) == 4
    assert length(found["one"]) == 3
    assert length(found["two"]) == 2
    causes = {link.span_id for link in found["one"].links}
    assert causes == {"one.confirmation", "two.confirmation" if last == "two" else "own"}
    profiled = profile_task(trace(events))
    assert profiled.reconciled
    if last == "two":
        assert profiled.critical_path_ns["human_wait"] == 34 * SECOND
        assert profiled.critical_path_ns["tool"] == 3 * SECOND


def test_result_that_came_first_shows_that_its_tool_waited_for_nobody_else() -> None:
    found = spans(together({"one": 10, "own": 12, "two": 40}, {"one": 13, "two": 42}))
    assert length(found["one"]) == 3
    assert [link.span_id for link in found["one"].links] == ["one.confirmation"]


def test_confirmed_tool_has_not_begun_while_another_answer_is_missing() -> None:
    found = spans(together({"one": 10}, {}))
    assert length(found["one.confirmation"]) == 4
    assert found["two.confirmation"].end_ns is None
    assert {"one", "two"}.isdisjoint(found)


def test_interrupt_ends_the_wait_and_the_tool_never_ran() -> None:
    events = [
        *asked()[:6],
        event("user.interrupt", 26, "stop"),
        event("session.status_running", 26.5, "again"),
        event("agent.tool_result", 29, "result", tool_use_id="use", is_error=True),
    ]
    profiled = profile_task(trace(events))
    assert profiled.critical_path_ns["human_wait"] == 20 * SECOND
    assert profiled.critical_path_ns["tool"] == 0
    assert spans(events)["use"].name == "bash interrupted"


def test_interrupt_of_one_thread_leaves_the_questions_of_another() -> None:
    use = {**asked()[4], "session_thread_id": "a"}
    events = [*asked()[:4], use, asked()[5], event("user.interrupt", 26, "stop")]
    for thread, ended in (("b", False), ("a", True)):
        events[-1]["session_thread_id"] = thread
        assert (spans(events)["use.confirmation"].end_ns is not None) == ended


def test_tools_hide_nobody_where_every_wait_is_in_the_log() -> None:
    use = event("agent.tool_use", 4.9, "use", name="bash", evaluated_permission="allow")
    result = event("agent.tool_result", 7, "result", tool_use_id="use")
    assert profile_task(trace([*call(1, 5, "first"), use, result])).without_waiting is None
    waited = profile_task(trace(asked())).without_waiting
    assert waited is not None
    assert (waited.basis, waited.wall_ns) == ("measured", 14 * SECOND)


def test_custom_tool_is_the_clients_and_may_hide_a_person() -> None:
    events = [
        *call(1, 5, "first"),
        event("agent.custom_tool_use", 4.9, "use", name="lookup"),
        idle(6, "blocked", "use"),
        event("user.custom_tool_result", 9.25, "result", custom_tool_use_id="use"),
        *call(10, 12, "second"),
    ]
    found = spans(events)
    assert found["use"].attributes["gatekeeper.human_wait"] == "possible"
    assert length(found["use"]) == pytest.approx(4.35)
    assert profile_task(trace(events)).critical_path_ns["human_wait"] == 0
    assert "human wait of up to 3.250 s: the session was idle until" in trace(events).repairs[0]


def test_tools_that_were_allowed_hide_nobody_and_are_noted_as_such() -> None:
    use = event("agent.tool_use", 4.9, "use", name="bash", evaluated_permission="allow")
    result = event("agent.tool_result", 7, "result", tool_use_id="use")
    note = "human wait of 0.000 s in tools: each was allowed without asking"
    assert trace([*call(1, 5, "first"), use, result]).repairs == (note,)
    assert note not in trace(asked()).repairs


def test_log_that_starts_with_a_call_has_a_session_around_it() -> None:
    found = spans(call(1, 5, "first"))
    assert found["first"].parent_id == "session"
    assert found["session"].parent_id is None


def test_causes_run_from_call_to_tool_to_next_call() -> None:
    found = spans(asked())
    after = {name: [link.span_id for link in span.links] for name, span in found.items()}
    assert after["use.confirmation"] == ["first"]
    assert after["use"] == ["use.confirmation"]
    assert after["second"] == ["first", "use"]


def test_session_between_turns_waits_for_the_user() -> None:
    events = [
        *call(1, 2, "first"),
        idle(3, "end"),
        event("session.status_running", 13, "again"),
        event("user.message", 13.5, "more"),
        *call(14, 15, "second"),
    ]
    assert length(spans(events)["end.wait"]) == 10


def test_outcome_evaluation_is_verification() -> None:
    events = [
        *call(1, 2, "first"),
        event("span.outcome_evaluation_start", 3, "grade"),
        event("span.outcome_evaluation_ongoing", 4, "beat"),
        event("span.outcome_evaluation_end", 7, "done", outcome_evaluation_start_id="grade"),
    ]
    assert profile_task(trace(events)).critical_path_ns["verification"] == 4 * SECOND


def test_recorded_calls_of_a_client_name_session_agent_and_model() -> None:
    session = {
        "type": "session",
        "id": "sesn-1",
        "agent": {"name": "Helper", "model": {"id": "small"}},
    }
    lines = [
        ["client.create", session],
        ["client.send", ["sesn-1", {"events": [{"type": "user.message"}]}]],
        *(["client.stream", one] for one in asked()),
    ]
    found = trace(lines)
    assert found.trace_id == "sesn-1"
    named = {span.span_id: span.attributes for span in found.spans}
    assert named["session"]["gen_ai.agent.name"] == "Helper"
    assert named["first"]["gen_ai.request.model"] == "small"


@pytest.mark.parametrize("wrap", [list, lambda e: {"data": e}, lambda e: {"events": e}])
def test_list_of_events_and_pages_of_it_read_alike(wrap: Any) -> None:
    (one,) = read_traces(json.dumps(wrap(asked())).encode(), [FORMAT])
    assert one.spans == trace(asked()).spans


def test_order_and_repeats_change_nothing() -> None:
    assert trace([*reversed(asked()), *asked()[:4]]).spans == trace(asked()).spans


def test_sessions_are_told_apart_where_events_name_them() -> None:
    events = [{**one, "session_id": name} for name in ("a", "b") for one in asked()]
    found = read_traces("\n".join(map(json.dumps, events)).encode(), [FORMAT])
    assert sorted(one.trace_id for one in found) == ["a", "b"]


def test_sessions_that_cannot_be_told_apart_are_refused() -> None:
    lines = [
        *(["create", {"type": "session", "id": name}] for name in ("a", "b")),
        *(["stream", one] for one in asked()),
    ]
    with pytest.raises(TraceError, match="which of several sessions") as caught:
        trace(lines)
    assert caught.value.remedy


def test_what_has_no_counterpart_is_noted_or_kept_unfinished() -> None:
    events = [
        event("span.model_request_end", 0, "late", model_request_start_id="gone"),
        event("agent.tool_result", 0.1, "orphan", tool_use_id="gone"),
        event("span.model_request_start", 1, "running"),
        event("agent.mcp_tool_use", 2, "use", name="search"),
        {**event("user.message", 3, "queued"), "processed_at": None},
    ]
    found = trace(events)
    unfinished = {span.span_id for span in found.spans if span.end_ns is None}
    assert unfinished == {"running", "use"}
    assert len(found.repairs) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [({"processed_at": "noon"}, "events[0].processed_at"), ({"id": ""}, "events[0].id")],
)
def test_broken_fields_are_named(change: Any, named: Any) -> None:
    with pytest.raises(TraceError) as caught:
        trace([{**call(1, 2, "first")[0], **change}])
    assert caught.value.field == named


def test_other_documents_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"type": "user.message"}'))
    assert not FORMAT.accepts(decode(b'{"type": "message", "processed_at": null}'))
    assert not FORMAT.accepts(decode(b"\x00"))
