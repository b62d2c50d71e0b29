from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.claude_transcripts import FORMAT

from gatekeeper.core.model_calls import timing
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

SECOND = 10**9


def line(kind: str, at: float, name: str, parent: str | None, content: Any, **fields: Any) -> Any:
    message = {"role": kind, "content": content, **fields.pop("message", {})}
    return {
        "type": kind,
        "timestamp": f"2026-03-01T09:00:{at:06.3f}Z",
        "uuid": name,
        "parentUuid": parent,
        "sessionId": "session-1",
        "isSidechain": False,
        "message": message,
        **fields,
    }


def prompt(at: float, name: str, parent: str | None, text: str = "go on", **fields: Any) -> Any:
    return line("user", at, name, parent, text, **fields)


def answer(
    at: float, name: str, parent: str | None, block: Any, stop: str | None, **fields: Any
) -> Any:
    message = {
        "id": fields.pop("id", "msg-1"),
        "model": "small",
        "stop_reason": stop,
        "usage": {"input_tokens": 5, "output_tokens": fields.pop("tokens", 80)},
    }
    return line("assistant", at, name, parent, [block], message=message, **fields)


def result(at: float, name: str, parent: str | None, use: str, **fields: Any) -> Any:
    return line("user", at, name, parent, [{"type": "tool_result", "tool_use_id": use}], **fields)


def text(words: str = "done") -> Any:
    return {"type": "text", "text": words}


def use(name: str, tool: str = "Bash") -> Any:
    return {"type": "tool_use", "id": name, "name": tool, "input": {}}


TURN = (
    {"type": "summary", "summary": "earlier", "leafUuid": "a"},
    prompt(0, "a", None),
    answer(3, "b", "a", text("thinking"), None, tokens=1),
    answer(5, "c", "b", use("tool-1"), "tool_use", tokens=80),
    result(9, "d", "c", "tool-1"),
    answer(12, "e", "d", text(), "end_turn", id="msg-2", tokens=60),
    prompt(42, "f", "e"),
    answer(44, "g", "f", text(), "end_turn", id="msg-3", tokens=20),
)


def traces(lines: Any) -> Any:
    return read_traces("\n".join(map(json.dumps, lines)).encode(), [FORMAT])


def trace(lines: Any) -> Any:
    (one,) = traces(lines)
    return one


def spans(lines: Any) -> dict[str, Any]:
    return {span.span_id: span for span in trace(lines).spans}


def seconds(span: Any) -> Any:
    start = 1772355600 * SECOND
    end = None if span.end_ns is None else (span.end_ns - start) / SECOND
    return (span.start_ns - start) / SECOND, end


def test_one_answer_over_several_lines_is_one_call_with_its_final_tokens() -> None:
    found = spans(TURN)
    assert trace(TURN).trace_id == "session-1"
    assert seconds(found["msg-1"]) == (0, 5)
    timed = timing(found["msg-1"])
    assert (timed.grade, timed.output_tokens) == ("C", 80)
    assert profile_task(trace(TURN)).model_calls == 3


def test_tool_runs_from_its_use_to_its_result_and_may_hide_a_person() -> None:
    found = spans(TURN)
    assert seconds(found["tool-1"]) == (5, 9)
    assert found["tool-1"].attributes["gatekeeper.human_wait"] == "possible"
    assert seconds(found["msg-2"]) == (9, 12)
    assert [link.span_id for link in found["tool-1"].links] == ["msg-1"]
    assert [link.span_id for link in found["msg-2"].links] == ["msg-1", "tool-1"]


def test_agent_at_rest_waits_for_the_next_prompt() -> None:
    profiled = profile_task(trace(TURN))
    assert profiled.reconciled
    assert profiled.critical_path_ns["human_wait"] == 30 * SECOND
    assert profiled.critical_path_ns["tool"] == 4 * SECOND
    assert profiled.evidence_grade == "C"


@pytest.mark.parametrize("mark", ["isMeta", "isCompactSummary"])
def test_lines_that_no_person_wrote_are_no_prompt(mark: Any) -> None:
    lines = [*TURN[:6], prompt(42, "f", "e", **{mark: True}), TURN[7]]
    assert profile_task(trace(lines)).critical_path_ns["human_wait"] == 0


def test_tool_that_asks_the_user_is_human_wait() -> None:
    lines = [TURN[1], answer(5, "c", "a", use("tool-1", "AskUserQuestion"), "tool_use"), TURN[4]]
    assert profile_task(trace(lines)).critical_path_ns["human_wait"] == 4 * SECOND


def test_count_that_is_not_final_is_not_used() -> None:
    partial = [TURN[1], TURN[2]]
    assert timing(spans(partial)["msg-1"]).grade == "D"
    assert "token count of an unfinished answer: not used" in trace(partial).repairs


def test_parallel_tools_and_results_out_of_order() -> None:
    lines = [
        prompt(0, "a", None),
        answer(4, "b", "a", use("one"), "tool_use"),
        answer(5, "c", "b", use("two"), "tool_use"),
        result(7, "d", "c", "two"),
        result(9, "e", "b", "one"),
        answer(12, "f", "d", text(), "end_turn", id="msg-2"),
    ]
    found = spans(lines)
    assert (seconds(found["one"]), seconds(found["two"])) == ((4, 9), (5, 7))
    # Its parent is the earlier result, but the model was asked when both were there.
    assert seconds(found["msg-2"]) == (9, 12)


def test_tool_without_result_is_unfinished_and_no_wait_is_made_of_it() -> None:
    lines = [*TURN[1:4], prompt(20, "f", "c", "[stop]")]
    found = spans(lines)
    assert found["tool-1"].end_ns is None
    assert set(found) == {"session", "msg-1", "tool-1"}


def test_export_without_ids_orders_itself_by_line() -> None:
    gone = {"uuid", "parentUuid", "sessionId", "isSidechain"}
    bare = [{k: v for k, v in one.items() if k not in gone} for one in TURN[1:]]
    for one in bare:
        for key in ("id", "usage"):
            one["message"] = {k: v for k, v in one["message"].items() if k != key}
    data = json.dumps({"loglines": bare}).encode()
    (found,) = read_traces(data, [FORMAT])
    (again,) = read_traces(data, [FORMAT])
    assert found.trace_id == again.trace_id
    assert found.trace_id.startswith("transcript-")
    profiled = profile_task(found)
    assert profiled.reconciled
    assert profiled.evidence_grade == "D"
    assert profiled.model_calls == 4  # without message.id every line is an answer
    assert profiled.critical_path_ns["human_wait"] == 30 * SECOND


def side(one: Any, **fields: Any) -> Any:
    return {**one, "isSidechain": True, **fields}


def inner(**fields: Any) -> Any:
    return [
        side(prompt(5.5, "s1", None, "look"), **fields),
        side(answer(7, "s2", "s1", text(), "end_turn", id="msg-s", tokens=30), **fields),
    ]


def test_side_chain_of_old_files_runs_inside_the_tool_around_it() -> None:
    found = spans([*TURN[:4], *inner(), *TURN[4:]])
    assert found["agent-s1"].parent_id == "tool-1"
    assert found["msg-s"].parent_id == "agent-s1"
    assert seconds(found["agent-s1"]) == (5.5, 7)


def test_prompts_of_a_subagent_come_from_its_agent() -> None:
    again = side(prompt(8, "s3", "s2", "and then?"))
    lines = [*TURN[:4], *inner(), again, *TURN[4:6]]
    assert profile_task(trace(lines)).critical_path_ns["human_wait"] == 0
    assert "s3.wait" not in spans(lines)


def test_subagents_file_of_its_own_hangs_below_the_tool_that_names_it() -> None:
    named = {**TURN[4], "toolUseResult": {"agentId": "x1"}}
    main = spans([*TURN[:4], named, *TURN[5:]])
    own = spans(inner(agentId="x1"))
    assert own["agent-x1"].parent_id == "spawn-x1"
    assert main["spawn-x1"].name == "Bash"
    assert [link.span_id for link in main["msg-2"].links] == ["msg-1", "spawn-x1"]
    both = spans([*TURN[:4], *inner(agentId="x1"), named, *TURN[5:]])
    assert both["agent-x1"].parent_id == "spawn-x1"


def test_lines_in_the_models_place_are_no_calls() -> None:
    lines = [*TURN, answer(50, "h", "g", text("API Error"), None, id="msg-4")]
    lines[-1]["message"]["model"] = "<synthetic>"
    assert profile_task(trace(lines)).model_calls == 3


def test_repeated_lines_count_once_and_sessions_are_apart() -> None:
    assert trace([*TURN, *TURN]).spans == trace(TURN).spans
    other = [{**one, "sessionId": "session-2"} for one in TURN[1:]]
    assert {one.trace_id for one in traces([*TURN, *other])} == {"session-1", "session-2"}


def test_parents_in_a_circle_end() -> None:
    lines = [side(prompt(0, "a", "b")), side(answer(1, "b", "a", text(), "end_turn"))]
    assert trace(lines).spans


def test_broken_time_is_named() -> None:
    with pytest.raises(TraceError) as caught:
        trace([{**TURN[1], "timestamp": "noon"}])
    assert caught.value.field == "line[0].timestamp"


def test_other_documents_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"loglines": 3}'))
    assert not FORMAT.accepts(decode(b'{"type": "user", "timestamp": "x"}'))
    assert not FORMAT.accepts(decode(b'[["user", {"message": {"role": "user"}}]]'))
