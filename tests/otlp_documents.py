"""OTLP documents of own making, in every container that OTLP travels in. Times in milliseconds."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACE = "0af7651916cd43dd8448eb211c80319c"
ORIGIN = 1_790_000_000_000  # milliseconds since 1970
MS = 10**6


def span(
    n: int,
    name: str,
    start: float,
    end: float | None,
    *,
    parent: int | None = None,
    events: Sequence[tuple[str, float]] = (),
    **attributes: Any,
) -> dict[str, Any]:
    """One span as OTLP JSON; ``__`` in a keyword is a dot of the attribute's name."""
    raw: dict[str, Any] = {
        "traceId": TRACE,
        "spanId": f"{n:016x}",
        "name": name,
        "startTimeUnixNano": str(_ns(start)),
        "attributes": [
            {"key": key.replace("__", "."), "value": _value(value)}
            for key, value in attributes.items()
        ],
        "events": [{"name": event, "timeUnixNano": str(_ns(at))} for event, at in events],
    }
    if parent is not None:
        raw["parentSpanId"] = f"{parent:016x}"
    if end is not None:
        raw["endTimeUnixNano"] = _ns(end)  # a number here, text above: both occur
    return raw


def _ns(at: float) -> int:
    return ORIGIN * MS + round(at * MS)


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def document(spans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One export request with these spans."""
    service = {"key": "service.name", "value": {"stringValue": "desk"}}
    return {
        "resourceSpans": [
            {"resource": {"attributes": [service]}, "scopeSpans": [{"spans": list(spans)}]}
        ]
    }


def as_json(spans: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(document(spans), indent=1).encode()


def as_array(spans: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps([document([one]) for one in spans]).encode()


def as_lines(spans: Sequence[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(document([one])).encode() for one in spans)


def as_protobuf(spans: Sequence[dict[str, Any]]) -> bytes:
    return _message(spans).SerializeToString()


def as_protobuf_file(spans: Sequence[dict[str, Any]]) -> bytes:
    """Several messages, each after its length: what the collector's file exporter writes."""
    messages = [_message([one]).SerializeToString() for one in spans]
    return b"".join(struct.pack(">I", len(one)) + one for one in messages)


def _message(spans: Sequence[dict[str, Any]]) -> Any:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "desk"
    scope = group.scope_spans.add()
    for raw in spans:
        made = scope.spans.add(
            trace_id=bytes.fromhex(raw["traceId"]),
            span_id=bytes.fromhex(raw["spanId"]),
            parent_span_id=bytes.fromhex(raw.get("parentSpanId", "")),
            name=raw["name"],
            start_time_unix_nano=int(raw["startTimeUnixNano"]),
            end_time_unix_nano=int(raw.get("endTimeUnixNano", 0)),
        )
        for attribute in raw["attributes"]:
            ((kind, value),) = attribute["value"].items()
            target = made.attributes.add(key=attribute["key"]).value
            name = f"{kind.removesuffix('Value')}_value"
            setattr(target, name, int(value) if kind == "intValue" else value)
        for event in raw["events"]:
            made.events.add(name=event["name"], time_unix_nano=int(event["timeUnixNano"]))
    return request


CONTAINERS = (as_json, as_array, as_lines, as_protobuf, as_protobuf_file)
