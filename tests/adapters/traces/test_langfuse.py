from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.langfuse import FORMAT

from gatekeeper.core.model_calls import timing
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError


def document(**changes: Any) -> Any:
    observation = {
        "id": "obs-1",
        "traceId": "trace-1",
        "type": "GENERATION",
        "name": "answer",
        "parentObservationId": None,
        "startTime": "2026-01-31T12:00:00.000Z",
        "endTime": "2026-01-31T12:00:02.000Z",
        "completionStartTime": "2026-01-31T12:00:00.500Z",
        "usageDetails": {"input": 3, "output": 40},
        "latency": 2000,
        "metadata": json.dumps(
            {
                "attributes": {"gen_ai.request.model": "small"},
                "resourceAttributes": {"service.name": "shop"},
                "team": "x",
            }
        ),
        **changes,
    }
    return {"trace": {"id": "trace-1", "name": "t"}, "observations": [observation]}


def only(value: Any) -> Any:
    ((one,),) = [t.spans for t in read_traces(json.dumps(value).encode(), [FORMAT])]
    return one


def test_times_type_usage_and_metadata_are_read_and_the_rest_is_kept() -> None:
    one = only(document())
    assert one.end_ns - one.start_ns == 2 * 10**9
    assert one.start_ns == 1769860800 * 10**9
    assert one.service == "shop"
    assert one.attributes["gen_ai.request.model"] == "small"
    assert one.attributes["langfuse.metadata.team"] == "x"
    assert one.attributes["langfuse.latency"] == 2000
    timed = timing(one)
    assert (timed.grade, timed.output_tokens) == ("B", 40)
    assert timed.phases[0].end_ns - timed.phases[0].start_ns == 500_000_000


def test_metadata_that_is_an_object_or_plain_text() -> None:
    assert only(document(metadata={"attributes": {"a": 1}})).attributes["a"] == 1
    assert only(document(metadata="{broken")).attributes["langfuse.metadata"] == "{broken"


def test_metadata_nested_too_deeply_stays_text() -> None:
    deep = "[" * 100_000
    assert only(document(metadata=deep)).attributes["langfuse.metadata"] == deep


def test_event_is_a_moment_and_other_missing_ends_are_unfinished() -> None:
    assert only(document(type="EVENT", endTime=None)).end_ns == only(document()).start_ns
    assert only(document(endTime=None)).end_ns is None


def test_flat_export_takes_the_trace_id_of_the_envelope() -> None:
    flat = {"id": "trace-9", "observations": document(traceId=None)["observations"]}
    assert only(flat).trace_id == "trace-9"


def test_naive_times_are_read_as_utc_and_noted() -> None:
    naive = document(startTime="2026-01-31T12:00:00.000")
    (one,) = read_traces(json.dumps(naive).encode(), [FORMAT])
    assert one.spans[0].start_ns == only(document()).start_ns
    assert "UTC" in one.repairs[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("traceId", ""), ("traceId", 5), ("id", None), ("startTime", "noon"), ("startTime", None)],
)
def test_broken_fields_are_named(field: Any, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        only(document(**{field: value}))
    assert caught.value.field == f"observations[0].{field}"
    assert caught.value.remedy


def test_other_documents_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"observations": 3}'))
    assert not FORMAT.accepts(decode(b'{"trace": {}}'))
