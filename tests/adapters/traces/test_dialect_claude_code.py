"""Claude Code's own telemetry."""

from __future__ import annotations

from typing import Any

import otlp_documents as otlp
import pytest
from dialect_tasks import MS, only_call, path, profiled
from otlp_documents import span


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
