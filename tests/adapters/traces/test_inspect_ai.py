from __future__ import annotations

import json
from typing import Any

import pytest
import trace_corpus
from gatekeeper_adapters.traces.inspect_ai import FORMAT
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

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


def test_sample_is_the_root_of_its_spans_and_events_and_keeps_what_the_log_says() -> None:
    found = spans(
        *solve(model(1, 3)),
        {"event": "score", "timestamp": at(9.5), "score": {"value": 1}},
        scores={"match": 1},
        model_usage={"me/small": {"output_tokens": 40}},
    )
    root, solver, call = (found[key] for key in ("(sample)", "solve", "model-1"))
    assert (root.trace_id, root.name, root.service) == ("s1", "sample 4", "quiz")
    assert (root.start_ns, root.end_ns) == (NOON, NOON + 9_500_000_000)
    assert (root.parent_id, solver.parent_id, call.parent_id) == (None, "(sample)", "solve")
    assert root.attributes["inspect.sample.scores"] == {"match": 1}
    assert root.attributes["inspect.eval.run_id"] == "r1"
    assert [(e.name, e.attributes["inspect.score"]) for e in root.events] == [
        ("score", {"value": 1})
    ]
    assert call.attributes["inspect.retries"] == 2
    assert {k: v for k, v in call.attributes.items() if k.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "me/small",
        "gen_ai.response.model": "small-1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 5,
    }


def test_wait_for_a_rate_limit_is_queue_and_never_decode() -> None:
    (trace,) = read(log(sample(*solve(model(1, 8, working_time=2.5)))))
    found = {span.span_id: span for span in trace.spans}
    wait, call = found["model-1 (wait)"], found["model-1"]
    assert (wait.start_ns, wait.end_ns) == (NOON + SECOND, NOON + 5_500_000_000)
    assert (call.start_ns, call.end_ns) == (NOON + 5_500_000_000, NOON + 8 * SECOND)
    assert [link.span_id for link in call.links] == ["model-1 (wait)"]
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert profiled.evidence_grade == "C"
    assert profiled.critical_path_ns["queue"] == 4_500_000_000
    # 40 tokens at the assumed 21 ms each.
    assert profiled.critical_path_ns["decode"] == 840_000_000
    assert profiled.saving.value == 420_000_000


def test_working_time_longer_than_its_event_shows_no_wait_and_is_noted() -> None:
    (trace,) = read(log(sample(*solve(model(1, 3, working_time=2.5)))))
    assert len(trace.spans) == 3
    assert trace.repairs == ("working_time exceeds its model event: no wait is shown",)
    (trace,) = read(log(sample(*solve(model(1, 3, working_time=2.0005)))))
    assert trace.repairs == ()


def test_answer_from_the_cache_is_no_model_call() -> None:
    cached = model(1, 1.01, cache="read", working_time=0.001)
    usage = {"me/small": {"output_tokens": 40}}
    (trace,) = read(log(sample(*solve(cached, model(2, 4)), model_usage=usage)))
    profiled = profile_task(trace)
    assert profiled.model_calls == 1
    assert profiled.task.tokens_agree is True


def test_token_total_that_differs_from_the_calls_is_not_reconciled() -> None:
    usage = {"me/small": {"output_tokens": 41}}
    (trace,) = read(log(sample(*solve(model(1, 3)), model_usage=usage)))
    assert not profile_task(trace).reconciled


def test_span_around_a_tool_event_is_the_tool_and_holds_what_runs_inside() -> None:
    (trace,) = read(
        log(
            sample(
                *solve(
                    begin("t", 2, type="tool", name="search", parent_id="solve"),
                    tool(2, 8, span_id="t"),
                    {
                        "event": "sandbox",
                        "uuid": "box",
                        "span_id": "t",
                        "action": "exec",
                        "timestamp": at(2.5),
                        "completed": at(3),
                    },
                    begin("agent", 3, type="agent", parent_id="t"),
                    model(4, 7, span_id="agent"),
                    end("agent", 7),
                    end("t", 8),
                )
            )
        )
    )
    found = {span.span_id: span for span in trace.spans}
    assert sorted(found) == ["(sample)", "agent", "box", "model-4", "solve", "t"]
    assert found["t"].attributes["gen_ai.tool.call.id"] == "call_123"
    assert found["t"].attributes["inspect.arguments"] == {"q": "x"}
    assert found["agent"].attributes["gen_ai.agent.name"] == "agent"
    # Detail of the tool, so that what makes the tool faster makes it faster as well.
    assert "gen_ai.tool.name" not in found["box"].attributes
    profiled = profile_task(trace)
    # The model call runs inside the tool, not beside it: its decode is on the path.
    assert profiled.critical_path_ns["decode"] == 840_000_000
    # The tool's own time, the sandbox included: 2 to 3 and 7 to 8.
    assert profiled.critical_path_ns["tool"] == 2 * SECOND
    assert profiled.saving.value == 420_000_000


def test_span_beside_a_tool_event_ran_inside_the_call() -> None:
    def call(name: str, start: float, *inside: Any) -> list[Any]:
        """As newer releases write it: the span begins, the event follows outside of it."""
        own = f"span of {name} at {start}"
        return [
            begin(own, start + 0.1, type="tool", name=name, parent_id="solve"),
            tool(start, start + 2, id=f"call_{name}_{start}", function=name),
            *({**one, "span_id": own} for one in inside),
            end(own, start + 1.9),
        ]

    events = [*call("agent", 1, model(1.5, 2.5)), *call("search", 4), *call("search", 4.05)]
    (trace,) = read(log(sample(*solve(*events))))
    found = {span.span_id: span for span in trace.spans}
    called = {k: one.attributes["gen_ai.tool.call.id"] for k, one in found.items() if "of" in k}
    assert called == {
        "span of agent at 1": "call_agent_1",
        "span of search at 4": "call_search_4",
        "span of search at 4.05": "call_search_4.05",
    }
    assert sorted(found) == ["(sample)", "model-1.5", "solve", *called]
    assert found["span of agent at 1"].end_ns == NOON + 3 * SECOND
    profiled = profile_task(trace)
    # The agent's call runs inside the tool, not beside it, so halving its decode saves time.
    assert profiled.saving.value == 420_000_000
    # The agent's own time, and the later of the two searches that ran side by side.
    assert profiled.critical_path_ns["tool"] == 3 * SECOND


def test_sandbox_outside_a_tool_counts_as_tool_and_other_timed_events_are_spans() -> None:
    box = {"event": "sandbox", "action": "exec", "timestamp": at(1), "completed": at(2)}
    side = {"event": "subtask", "name": "plan", "timestamp": at(3), "completed": at(4)}
    (trace,) = read(log(sample(*solve(box, side))))
    profiled = profile_task(trace)
    assert profiled.segments_ns["tool"] == SECOND
    assert {s.name for s in trace.spans} == {"sample 4", "solve", "exec", "plan"}


@pytest.mark.parametrize(("approver", "human"), [("human", 4), ("pkg/human", 4), ("auto", 0)])
def test_time_until_a_human_approves_is_human_wait_and_no_tool(approver: str, human: int) -> None:
    approval = {
        "event": "approval",
        "span_id": "solve",
        "timestamp": at(6),
        "approver": approver,
        "decision": "approve",
        "call": {"id": "call_123", "function": "search"},
    }
    own = [begin("t", 6, type="tool", parent_id="solve"), tool(2, 8, span_id="t"), end("t", 8)]
    for tools in ([tool(2, 8)], own):
        (trace,) = read(log(sample(*solve(approval, *tools))))
        profiled = profile_task(trace)
        assert profiled.reconciled
        assert profiled.critical_path_ns["human_wait"] == human * SECOND
        assert profiled.critical_path_ns["tool"] == (6 - human) * SECOND
        (called,) = [s for s in trace.spans if "gen_ai.tool.name" in s.attributes]
        assert len(called.links) == bool(human)


def test_scorer_is_verification() -> None:
    (trace,) = read(log(sample(*solve(), begin("match", 9, type="scorer"), end("match", 9.25))))
    assert profile_task(trace).segments_ns["verification"] == SECOND // 4


def test_steps_of_old_logs_nest_and_tools_hold_their_own_events() -> None:
    def step(action: str, name: str, when: float) -> dict[str, Any]:
        return {"event": "step", "action": action, "name": name, "timestamp": at(when)}

    inner = model(3, 4, span_id=None)
    found = spans(
        step("begin", "outer", 0),
        step("begin", "inner", 1),
        tool(2, 5, span_id=None, events=[inner]),
        step("end", "inner", 6),
        model(7, 8, span_id=None),
        step("end", "outer", 9),
    )
    names = {one.span_id: one.name for one in found.values()}
    above = {one.name: names.get(one.parent_id) for one in found.values() if one.name != "me/small"}
    assert above == {"sample 4": None, "outer": "sample 4", "inner": "outer", "search": "inner"}
    assert names[found["model-3"].parent_id] == "search"
    assert names[found["model-7"].parent_id] == "outer"


def test_event_recorded_again_is_one_event_and_the_completed_one_counts() -> None:
    pending = {**model(1, None), "pending": True}
    del pending["completed"]
    for order in ([pending, model(1, 3)], [model(1, 3), pending], [model(1, 3), model(1, 3)]):
        assert spans(*solve(*order))["model-1"].end_ns == NOON + 3 * SECOND


def test_span_that_never_ended_and_end_without_a_begin() -> None:
    (trace,) = read(log(sample(begin("a", 0), end("b", 1), model(1, 2, span_id="a"))))
    assert {s.span_id: s.end_ns for s in trace.spans}["a"] is None
    assert trace.repairs == ("span ends that never began: not used",)
    (trace,) = read(log(sample(begin("a", 0), begin("a", 1), end("a", 2), begin("a", 0))))
    assert trace.repairs == ("conflict: span a begins twice: the first counts",)


def test_call_without_an_end_leaves_the_task_at_grade_d() -> None:
    (trace,) = read(log(sample(*solve(model(1, None)))))
    profiled = profile_task(trace)
    assert profiled.evidence_grade == "D"
    assert profiled.saving.value is None
    assert profiled.task.wall_ns == 9 * SECOND


def test_every_sample_is_a_task_and_one_file_of_an_archive_or_bare_events_do() -> None:
    many = log(*(sample(*solve(), uuid=f"s{i}") for i in range(3)))
    assert [t.trace_id for t in read(many)] == ["s0", "s1", "s2"]
    assert [t.trace_id for t in read(sample(*solve()))] == ["s1"]
    old = log(sample(*solve(), uuid=None, epoch=2))
    assert [t.trace_id for t in read(old)] == ["r1/4/2"]
    (bare,) = read({"events": solve()})
    assert (len(bare.trace_id), len(bare.spans)) == (32, 2)
    assert bare.repairs == ("sample without an id of its own: named by a digest of its events",)
    (other,) = read({"events": solve(until=8)})
    assert bare.trace_id != other.trace_id


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (log(), "holds no events.*header"),
        (log({"id": 1, "epoch": 1}), "holds no events"),
        ({"eval": {}, "plan": {}}, "holds no events"),
        (log(sample({"event": "info", "timestamp": at(1)})), "no event tells when it ended"),
        (log(sample(begin("a", 0), model(1, None))), "no event tells when it ended"),
    ],
)
def test_logs_that_give_no_timings_are_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(value)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"event": "info", "timestamp": "noon"}, "events[1].timestamp"),
        ({"event": "info"}, "events[1].timestamp"),
        ({**model(1, 3), "completed": "soon"}, "events[1].completed"),
        (model(1, 3, working_time=-1), "events[1].working_time"),
        (model(1, 3, working_time=float("nan")), "events[1].working_time"),
        (begin("", 1), "events[1].id"),
    ],
)
def test_broken_fields_are_named(event: Any, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(log(sample(*solve(event))))
    assert caught.value.field == f"samples[0].{field}"
    assert caught.value.remedy


def test_times_without_a_zone_are_read_as_utc_and_noted() -> None:
    (trace,) = read(log(sample(begin("a", 0), {**end("a", 1), "timestamp": "2026-01-31T12:00:01"})))
    assert trace.repairs == ("times without a time zone: read as UTC",)
    assert trace.spans[0].end_ns == NOON + SECOND


def test_other_documents_are_not_accepted() -> None:
    others: tuple[Any, ...] = (
        {"events": [{"type": "model"}]},
        {"eval": 3},
        {"eval": {}},
        [{"event": "x"}],
        1,
    )
    for other in others:
        assert not FORMAT.accepts(decode(json.dumps(other).encode()))


SCALARS = [None, True, 0, -1, 1.5, 10**400, float("nan"), float("-inf"), "", "x", "9", "\ud800"]
HOSTILE = st.sampled_from([*SCALARS, [], [1], [[]], [{}], [None], {}, {"": 1}, {"id": [], "x": {}}])


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted({*model(1, 3), *tool(1, 2), "call", "approver"})), HOSTILE
    ),
    st.dictionaries(st.sampled_from(["id", "uuid", "epoch", "model_usage"]), HOSTILE),
)
def test_hostile_events_raise_nothing_but_the_declared_error(event: Any, about: Any) -> None:
    whole = [model(1, 3), tool(3, 4), {**tool(4, 5), "event": "approval", "approver": "human"}]
    events = solve(*({**one, **event} for one in whole))
    try:
        for trace in read(log(sample(*events, **about))):
            profile_task(trace)
    except TraceError:
        pass


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        # Wall, wait (completed - timestamp - working_time) and tokens of each sample, in order.
        (
            "2025-05-12T20-28-13-04-00_popularity.json",
            [
                (663_021_000, 118_631_625, 2),
                (1_775_690_000, 116_296_666, 2),
                (651_111_000, 129_231_334, 2),
            ],
        ),
        (
            "2025-05-12T20-28-26-04-00_security-guide.json",
            [
                (6_280_752_000, 127_017_292, 309),
                (5_392_303_000, 135_691_875, 256),
                (9_951_311_000, 137_435_541, 468),
            ],
        ),
    ],
)
def test_recorded_logs(file: str, expected: Any) -> None:
    path = trace_corpus.ROOT / "inspect-ai" / file
    profiles = [profile_task(t) for t in read_traces(path.read_bytes(), [FORMAT])]
    assert [
        (
            p.task.wall_ns,
            p.critical_path_ns["queue"],
            sum(call.output_tokens or 0 for _, call in p.task.calls),
        )
        for p in profiles
    ] == expected
    assert all(p.reconciled and p.evidence_grade == "C" for p in profiles)
    assert all(p.task.tokens_agree for p in profiles)


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
def test_recorded_events_whose_calls_never_completed() -> None:
    path = trace_corpus.ROOT / "inspect-ai" / "parallel_spans.json"
    (trace,) = read_traces(path.read_bytes(), [FORMAT])
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert (profiled.task.wall_ns, profiled.evidence_grade) == (6 * SECOND, "D")
    assert profiled.model_calls == 2
