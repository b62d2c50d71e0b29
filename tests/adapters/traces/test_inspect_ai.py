"""What the events of an Inspect AI log become."""

from __future__ import annotations

from typing import Any

import pytest
from inspect_logs import NOON, SECOND, at, begin, end, log, model, read, sample, solve, spans, tool

from gatekeeper.core.task_profile import profile_task


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
