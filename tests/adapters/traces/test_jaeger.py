from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.jaeger import FORMAT

from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError


def raw(span_id: Any = "b", **changes: Any) -> Any:
    return {
        "traceID": "t",
        "spanID": span_id,
        "operationName": "chat",
        "startTime": 1_000_000,
        "duration": 250,
        "processID": "p1",
        "references": [{"refType": "CHILD_OF", "traceID": "t", "spanID": "a"}],
        "tags": [{"key": "gen_ai.usage.output_tokens", "type": "int64", "value": 9}],
        "logs": [{"timestamp": 1_000_100, "fields": [{"key": "event", "value": "retry"}]}],
        **changes,
    }


def trace(*spans: Any) -> Any:
    processes = {"p1": {"serviceName": "shop", "tags": [{"key": "host", "value": "h"}]}}
    return {"traceID": "t", "spans": list(spans), "processes": processes}


def only(value: Any) -> Any:
    ((one,),) = [t.spans for t in read_traces(json.dumps(value).encode(), [FORMAT])]
    return one


@pytest.mark.parametrize(
    "wrap",
    [lambda t: t, lambda t: [t], lambda t: {"data": [t]}, lambda t: {"data": t, "state": "DONE"}],
)
def test_every_envelope_reads_alike(wrap: Any) -> None:
    one = only(wrap(trace(raw())))
    assert (one.start_ns, one.end_ns) == (10**9, 10**9 + 250_000)
    assert (one.parent_id, one.service, one.name) == ("a", "shop", "chat")
    assert one.attributes == {"resource.host": "h", "gen_ai.usage.output_tokens": 9}
    assert (one.events[0].name, one.events[0].time_ns) == ("retry", 1_000_100_000)


def test_child_of_is_the_parent_and_other_references_are_links() -> None:
    both = [
        {"refType": "FOLLOWS_FROM", "traceID": "t", "spanID": "x"},
        {"refType": "CHILD_OF", "traceID": "t", "spanID": "a"},
        {"refType": "FOLLOWS_FROM", "traceID": "u", "spanID": "y"},
    ]
    one = only(trace(raw(references=both)))
    assert one.parent_id == "a"
    assert [(k.trace_id, k.span_id) for k in one.links] == [("t", "x"), ("u", "y")]
    assert only(trace(raw(references=both[:1]))).parent_id == "x"
    assert only(trace(raw(references=both[2:]))).parent_id is None


def test_storage_model_with_iso_times_and_durations_in_words() -> None:
    stored = {
        "traceId": "AAAA==",
        "spanId": "BB==",
        "operationName": "get",
        "startTime": "1970-01-01T02:00:01.639875-05:00",
        "duration": "1m2.5s",
        "tags": [{"key": "n", "vType": "INT64", "vInt64": 3}],
        "process": {"serviceName": "api"},
    }
    one = only({"spans": [stored]})
    assert one.start_ns == 7 * 3600 * 10**9 + 1_639_875_000
    assert one.end_ns - one.start_ns == 62_500_000_000
    assert (one.service, one.attributes["n"]) == ("api", 3)


def test_missing_duration_is_unfinished() -> None:
    assert only(trace(raw(duration=None))).end_ns is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("traceID", ""),
        ("traceID", 7),
        ("spanID", None),
        ("startTime", "noon"),
        ("startTime", None),
        ("startTime", "²"),
        ("startTime", "1" * 5000),
        ("duration", "long"),
        ("duration", True),
    ],
)
def test_broken_fields_are_named(field: Any, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        only(trace(raw(**{field: value})))
    assert caught.value.field == f"spans[0].{field}"
    assert caught.value.remedy


def test_other_documents_with_spans_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"spans": [{"id": 1}]}'))
    assert not FORMAT.accepts(decode(b'{"data": [1]}'))


@pytest.mark.parametrize("processes", [[1], {"p": "agent"}])
def test_processes_of_another_shape_are_named(processes: Any) -> None:
    with pytest.raises(TraceError, match="must be an object"):
        only({**trace(raw(processID="p")), "processes": processes})


def test_names_cannot_steer_a_terminal() -> None:
    assert only(trace(raw(operationName="\x1b[2Ja\nb\ud800"))).name == "\ufffd[2Ja\ufffdb\ufffd"
