"""Inspect AI logs that are incomplete, broken or hostile, and documents that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.inspect_ai import FORMAT
from hypothesis import given, settings
from hypothesis import strategies as st
from inspect_logs import NOON, SECOND, at, begin, end, log, model, read, sample, solve, spans, tool

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode
from gatekeeper.errors import TraceError


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
