from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.otlp import FORMAT
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gatekeeper.core.trace_documents import Document
from gatekeeper.errors import TraceError


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def raw(number: int, **changes: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": "5", "endTimeUnixNano": "9"}
    return {"traceId": "ab" * 16, "spanId": f"{number:016x}", "name": "n", **times, **changes}


def of_json(value: Any) -> Any:
    return FORMAT.read_spans(Document(b"", (json.loads(json.dumps(value)),)))


def test_a_broken_span_is_named_by_its_place_and_its_siblings_are_read() -> None:
    spans, refused = of_json(request(raw(1), raw(0), raw(2), raw(3, startTimeUnixNano="x")))
    assert [s.span_id for s in spans] == [f"{n:016x}" for n in (1, 2)]
    assert "resourceSpans[0].scopeSpans[0].spans[1].spanId" in refused[0]
    assert "spans[3].startTimeUnixNano" in refused[1]


def test_protobuf_likewise() -> None:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number in (1, 0, 2):
        spans.add(trace_id=b"t" * 16, span_id=number.to_bytes(8), start_time_unix_nano=5)
    found, refused = FORMAT.read_spans(Document(message.SerializeToString(), None))
    assert [s.span_id for s in found] == [f"{n:016x}" for n in (1, 2)]
    assert "resource_spans[0].scope_spans[0].spans[1].span_id" in refused[0]
    assert FORMAT.read_spans(Document(b"", None)) == ([], [])


@pytest.mark.parametrize("broken", [[], 7, None, {"resourceSpans": 7}, {"resourceSpans": [[]]}])
def test_a_broken_request_is_refused_whole(broken: Any) -> None:
    if broken is None:
        with pytest.raises(TraceError, match="ExportTraceServiceRequest"):
            FORMAT.read_spans(Document(b"\xff\xff", None))
        return
    with pytest.raises(TraceError):
        of_json(broken)
