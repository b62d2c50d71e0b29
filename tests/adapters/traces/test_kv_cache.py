from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.kv_cache import FORMAT

from gatekeeper.core.model_calls import timing
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

SECOND = 10**9


def request(t: float, took: float | None, stop: str, *given: str, **fields: Any) -> Any:
    return {
        "t": t,
        "type": "n",
        "model": "small",
        "in": 1000,
        "out": 50,
        "hash_ids": [1, 2, 3],
        "input_types": list(given or ["text"]),
        "stop": stop,
        "api_time": took,
        "think_time": 0.0,
        **fields,
    }


def session(*requests: Any, **fields: Any) -> Any:
    return {"id": "session-1", "block_size": 64, "requests": list(requests), **fields}


TURNS = (
    request(0, 4.25, "tool_use"),
    request(10, 2.5, "end_turn", "tool_result"),
    request(40, 5.0, "end_turn", "text"),
)


def trace(value: Any) -> Any:
    (one,) = read_traces(json.dumps(value).encode(), [FORMAT])
    return one


def spans(value: Any) -> dict[str, Any]:
    return {span.span_id: span for span in trace(value).spans}


def test_what_lies_between_turns_is_known_by_what_ended_the_first() -> None:
    found = spans(session(*TURNS))
    tools, wait = found["requests[1].before"], found["requests[2].before"]
    assert (tools.start_ns, tools.end_ns) == (4.25 * SECOND, 10 * SECOND)
    assert tools.attributes["gatekeeper.human_wait"] == "possible"
    assert (wait.start_ns, wait.end_ns) == (12.5 * SECOND, 40 * SECOND)
    profiled = profile_task(trace(session(*TURNS)))
    assert profiled.reconciled
    assert profiled.task.wall_ns == 45 * SECOND
    assert profiled.critical_path_ns["tool"] == 5.75 * SECOND
    assert profiled.critical_path_ns["human_wait"] == 27.5 * SECOND
    assert profiled.evidence_grade == "C"


def test_time_after_a_tool_call_without_its_result_is_neither() -> None:
    found = spans(session(request(0, 1, "tool_use"), request(9, 1, "end_turn", "text")))
    pause = found["requests[1].before"]
    assert pause.name == "pause"
    assert pause.attributes["gatekeeper.human_wait"] == "possible"
    profiled = profile_task(trace(session(request(0, 1, "tool_use"), request(9, 1, "end_turn"))))
    assert profiled.critical_path_ns["tool"] == 0


def test_first_token_where_it_was_streamed() -> None:
    found = spans(session(request(0, 10, "end_turn", type="s", ttft=4.07)))
    timed = timing(found["requests[0]"])
    assert timed.grade == "B"
    assert [p.end_ns - p.start_ns for p in timed.phases] == [4_070_000_000, 5_930_000_000]
    assert timing(spans(session(*TURNS))["requests[0]"]).grade == "C"


def subagent(t: float, duration_ms: int, *requests: Any) -> Any:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": "agent_001",
        "subagent_type": "Explore",
        "duration_ms": duration_ms,
        "requests": list(requests),
    }


def with_subagent() -> Any:
    inner = (request(0, 2, "tool_use"), request(5, 3, "end_turn", "tool_result"))
    return session(
        request(0, 4, "tool_use"),
        subagent(14.5, 10_000, *inner),
        request(20, 1, "end_turn", "tool_result"),
    )


def test_subagent_reports_back_at_its_time_and_runs_inside_the_tools() -> None:
    found = spans(with_subagent())
    agent = found["requests[1]"]
    assert (agent.start_ns, agent.end_ns) == (4.5 * SECOND, 14.5 * SECOND)
    assert agent.parent_id == "requests[2].before"
    assert found["requests[1].requests[1]"].start_ns == 9.5 * SECOND
    assert found["requests[1].requests[1]"].parent_id == "requests[1]"
    profiled = profile_task(trace(with_subagent()))
    assert profiled.reconciled
    assert profiled.model_calls == 4
    works, graph = profiled.task.works, profiled.graph
    on_path = {works[i].span.span_id for s in profiled.path if (i := graph.work[s.node])}
    assert {"requests[1].requests[0]", "requests[1].requests[1]"} <= on_path


def test_subagent_that_would_precede_its_launch_starts_at_its_time() -> None:
    broken = session(
        request(10, 4, "tool_use"),
        subagent(15, 10_000, request(0, 1, "end_turn")),
        request(40, 1, "end_turn", "tool_result"),
    )
    found = spans(broken)["requests[1]"]
    assert (found.start_ns, found.end_ns) == (15 * SECOND, 25 * SECOND)
    assert "its t is taken as its start" in trace(broken).repairs[0]


def test_subagents_may_nest_deeply() -> None:
    inner = request(0, 1, "end_turn")
    for _ in range(200):
        inner = subagent(2, 1_000, inner)
    assert len(trace(session(request(0, 1, "tool_use"), inner)).spans) == 203


def test_overlap_within_the_clock_touches_and_beyond_it_is_parallel() -> None:
    near = spans(session(request(0, 4.6, "tool_use"), request(4, 2, "end_turn")))
    assert near["requests[1]"].start_ns == 4.6 * SECOND
    assert near["requests[1]"].end_ns == 6.6 * SECOND
    apart = session(request(0, 9, "tool_use"), request(4, 2, "end_turn"))
    assert spans(apart)["requests[1]"].start_ns == 4 * SECOND
    assert trace(apart).repairs == ("request overlaps the one before it: kept as parallel",)


def test_total_that_differs_from_the_calls_is_not_priced() -> None:
    good = session(*TURNS, totals={"combined_tokens": {"output": 150}})
    wrong = session(*TURNS, totals={"combined_tokens": {"output": 151}})
    assert profile_task(trace(good)).reconciled
    assert not profile_task(trace(wrong)).reconciled


def test_fields_are_kept_but_cache_blocks_are_counted() -> None:
    found = spans(session(*TURNS))
    assert found["requests[0]"].attributes["kv_cache.blocks"] == 3
    assert "kv_cache.hash_ids" not in found["requests[0]"].attributes
    assert found["session"].attributes["kv_cache.block_size"] == 64


def test_requests_without_durations_cannot_give_timings() -> None:
    bare = [{k: v for k, v in one.items() if k != "api_time"} for one in TURNS]
    with pytest.raises(TraceError, match="no request's duration") as caught:
        trace(session(*bare))
    assert "api_time" in caught.value.remedy
    one_known = spans(session(*bare[:2], TURNS[2]))
    assert one_known["requests[0]"].end_ns is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"t": "noon"}, "requests[0].t"),
        ({"t": -1}, "requests[0].t"),
        ({"api_time": float("inf")}, "requests[0].api_time"),
        ({"out": "many"}, "requests[0].out"),
    ],
)
def test_broken_fields_are_named(change: Any, named: Any) -> None:
    with pytest.raises(TraceError) as caught:
        trace(session({**TURNS[0], **change}))
    assert caught.value.field == named


def test_sessions_of_several_lines_are_traces_of_their_own() -> None:
    text = "\n".join(json.dumps({**session(*TURNS), "id": name}) for name in ("a", "b"))
    assert {one.trace_id for one in read_traces(text.encode(), [FORMAT])} == {"a", "b"}


def test_other_documents_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"requests": 3}'))
    assert not FORMAT.accepts(decode(b'{"requests": [{"in": 1}]}'))
    assert not FORMAT.accepts(decode(b'{"timestamp": 0, "input_length": 4}'))
