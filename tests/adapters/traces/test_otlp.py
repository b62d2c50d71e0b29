from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.otlp import FORMAT
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

TRACE = "5B8EFFF798038103D269B633813FC60C"
SPAN = "EEE19B7EC3C1B174"


def document(**changes: Any) -> Any:
    raw = {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "chat",
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": [
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "12"}},
            {"key": "n", "value": {"intValue": 7}},
            {"key": "d", "value": {"doubleValue": 0.5}},
            {"key": "ok", "value": {"boolValue": False}},
            {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
            {
                "key": "map",
                "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}},
            },
            {"key": "new", "value": {"futureValue": 1}},
        ],
        "events": [{"name": "First Token Stream Event", "timeUnixNano": "1544712660250000000"}],
        "links": [{"traceId": TRACE, "spanId": "00000000000000aa"}],
        **changes,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [raw]}]}]}


def read(value: Any) -> Any:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_traces(data, [FORMAT])


def only(value: Any) -> Any:
    ((one,),) = [t.spans for t in read(value)]
    return one


def test_hex_ids_numbers_either_way_and_every_attribute_type() -> None:
    one = only(document())
    assert (one.trace_id, one.span_id) == (TRACE.lower(), SPAN.lower())
    assert one.end_ns - one.start_ns == 10**9
    assert one.service == "shop"
    assert one.attributes == {
        "resource.service.name": "shop",
        "gen_ai.usage.output_tokens": 12,
        "n": 7,
        "d": 0.5,
        "ok": False,
        "list": ["a"],
        "map": {"k": 1},
        "new": {"futureValue": 1},
    }
    assert one.events[0].time_ns - one.start_ns == 250_000_000
    assert one.links[0].span_id == "00000000000000aa"


@pytest.mark.parametrize(
    ("number", "name", "kept"),
    [
        (0, "UNSPECIFIED", None),
        (1, "INTERNAL", None),
        (2, "SERVER", "server"),
        (3, "CLIENT", "client"),
        (4, "PRODUCER", "producer"),
        (5, "CONSUMER", "consumer"),
    ],
)
def test_a_spans_kind_is_kept_whichever_way_it_is_written(
    number: int, name: str, kept: str | None
) -> None:
    request = ExportTraceServiceRequest()
    raw = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            trace_id=bytes.fromhex(TRACE),
            span_id=bytes.fromhex(SPAN),
            start_time_unix_nano=1,
            kind=number,
        )
    )
    assert raw.kind == number
    written = (document(kind=number), document(kind=f"SPAN_KIND_{name}"))
    for one in map(only, (*written, request.SerializeToString())):
        assert one.attributes.get("span.kind") == kept
    own = [{"key": "span.kind", "value": {"stringValue": "mine"}}]
    assert only(document(kind=number, attributes=own)).attributes["span.kind"] == "mine"
    assert "span.kind" not in only(document(kind={})).attributes


def test_single_document_array_and_lines_read_alike() -> None:
    other = document(spanId="00000000000000bb")
    lines = b"\n".join(json.dumps(d).encode() for d in (document(), other))
    assert read([document(), other]) == read(lines + b"\n\n")
    assert len(read(lines)[0].spans) == 2


def test_protobuf_reads_like_json() -> None:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    raw = group.scope_spans.add().spans.add(
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(SPAN),
        name="chat",
        start_time_unix_nano=1544712660000000000,
        end_time_unix_nano=1544712661000000000,
    )
    raw.attributes.add(key="gen_ai.usage.output_tokens").value.int_value = 12
    raw.attributes.add(key="list").value.array_value.values.add().string_value = "a"
    raw.attributes.add(key="map").value.kvlist_value.values.add(key="k").value.int_value = 1
    one = only(request.SerializeToString())
    expected = only(document())
    assert (one.trace_id, one.span_id, one.start_ns, one.end_ns, one.service) == (
        expected.trace_id,
        expected.span_id,
        expected.start_ns,
        expected.end_ns,
        expected.service,
    )
    assert one.attributes["gen_ai.usage.output_tokens"] == 12
    assert one.attributes["list"] == ["a"]
    assert one.attributes["map"] == {"k": 1}


def test_protobuf_with_a_short_trace_id_names_the_field() -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(
        trace_id=b"abc", span_id=b"12345678", start_time_unix_nano=1
    )
    with pytest.raises(TraceError, match=r"trace_id=616263: is not an id.*32 hex digits"):
        read(request.SerializeToString())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("traceId", "xyz"),
        ("traceId", ""),
        ("traceId", None),
        ("traceId", "0" * 32),
        ("traceId", TRACE[:-1]),
        ("traceId", 12),
        ("spanId", "g" * 16),
        ("parentSpanId", "12"),
    ],
)
def test_broken_ids_name_field_value_and_remedy(field: Any, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        read(document(**{field: value}))
    assert caught.value.field == f"resourceSpans[0].scopeSpans[0].spans[0].{field}"
    assert caught.value.value == ("absent" if value is None else value)
    assert "hex digits" in caught.value.remedy


def test_ids_in_protobufs_own_json_are_read_and_noted() -> None:
    encoded = base64.b64encode(bytes.fromhex(TRACE)).decode()
    (one,) = read(document(traceId=encoded))
    assert one.trace_id == TRACE.lower()
    assert "base64" in one.repairs[0]


@pytest.mark.parametrize("parent", [None, "", "0" * 16])
def test_absent_parents_make_a_root(parent: Any) -> None:
    assert only(document(parentSpanId=parent)).parent_id is None


@pytest.mark.parametrize("end", [None, 0, "0", ""])
def test_missing_end_is_unfinished(end: Any) -> None:
    assert only(document(endTimeUnixNano=end)).end_ns is None


@pytest.mark.parametrize("start", [None, 0, "soon", 1.5, True])
def test_missing_start_is_refused(start: Any) -> None:
    with pytest.raises(TraceError, match="startTimeUnixNano"):
        read(document(startTimeUnixNano=start))


def test_wrong_structure_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"spans=.*list of objects"):
        read({"resourceSpans": [{"scopeSpans": [{"spans": {"a": 1}}]}]})
    with pytest.raises(TraceError, match=r"resource=5: must be an object"):
        read({"resourceSpans": [{"resource": 5}]})


def test_document_without_spans_says_so() -> None:
    with pytest.raises(TraceError, match="without a single span"):
        read({"resourceSpans": []})


def test_other_json_and_random_bytes_are_not_accepted() -> None:
    assert not FORMAT.accepts(decode(b'{"resourceMetrics": []}'))
    assert not FORMAT.accepts(decode(bytes(range(256))))
    assert not FORMAT.accepts(decode(b"\nplain text"))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: {"batches": d["resourceSpans"]},
        lambda d: {"trace": d},
        lambda d: {"result": d},
        lambda d: {"trace": {"batches": d["resourceSpans"]}},
    ],
)
def test_answers_of_query_services_are_unwrapped(wrap: Any) -> None:
    assert read(wrap(document())) == read(document())


@pytest.mark.parametrize("other", [{"trace": 5}, {"result": {"data": []}}, {"batches": 1}])
def test_other_envelopes_are_no_otlp(other: Any) -> None:
    with pytest.raises(TraceError):
        read(other)


def framed(*messages: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one for one in messages)


def message(span_id: Any) -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(
        trace_id=bytes.fromhex(TRACE), span_id=span_id, name="x", start_time_unix_nano=5
    )
    return request.SerializeToString()


def test_file_of_length_prefixed_messages_is_read_whole() -> None:
    (one,) = read(framed(message(b"aaaaaaaa"), message(b"bbbbbbbb")))
    assert [s.span_id for s in one.spans] == [b"aaaaaaaa".hex(), b"bbbbbbbb".hex()]


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_file_that_is_cut_off_says_at_which_message(cut: Any) -> None:
    whole = framed(message(b"aaaaaaaa"), message(b"bbbbbbbb"))
    with pytest.raises(TraceError, match=r"message 2=.*cut off or broken"):
        read(whole[:-cut])


def test_zeros_are_no_file_of_messages() -> None:
    assert not FORMAT.accepts(decode(bytes([0xFF, 0]) + bytes(10_000)))
    assert not FORMAT.accepts(decode(bytes(8) + b"\xff"))


def test_protobuf_ids_of_wrong_size_name_the_field() -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(
        trace_id=bytes.fromhex(TRACE),
        span_id=b"12345678",
        parent_span_id=b"123",
        start_time_unix_nano=1,
    )
    with pytest.raises(TraceError, match=r"parent_span_id=313233: is not an id.*16 hex digits"):
        read(request.SerializeToString())


@pytest.mark.parametrize("parent", [b"", bytes(8)])
def test_protobuf_root_has_no_parent(parent: Any) -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(
        trace_id=bytes.fromhex(TRACE),
        span_id=b"12345678",
        parent_span_id=parent,
        start_time_unix_nano=1,
    )
    assert only(request.SerializeToString()).parent_id is None
