"""OTLP's protobuf encoding: one message, or a file of several."""

from __future__ import annotations

import base64
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import SpanEvent, SpanLink
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import name_of
from gatekeeper_adapters.traces.otlp_spans import (
    SPAN_BYTES,
    TRACE_BYTES,
    Reader,
    Resource,
    kind_of,
    make_span,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gatekeeper.core.traces import Span

__all__ = ["message_of", "messages_of", "spans_of"]

_FIRST_FIELD = b"\n"  # tag of field 1, length-delimited: resource_spans
_ZERO = b"\0"
_LENGTH = struct.Struct(">I")  # before each message in a file of the collector's file exporter


def messages_of(data: bytes) -> Iterator[Any]:
    """OTLP messages of these bytes: one, or several with the length of each before it.

    Nothing where already the first is none.

    Raises:
        TraceError: a later one is broken.
    """
    whole = message_of(data) if data.startswith(_FIRST_FIELD) else None
    if whole is not None:
        yield whole
        return
    at = count = 0
    while at < len(data):
        begin = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 0
        at = begin + length
        message = message_of(data[begin:at]) if length > 0 and at <= len(data) else None
        if message is None:
            if count == 0:
                return
            raise TraceError(
                "is cut off or broken",
                field=f"message {count + 1}",
                value=f"{length} bytes",
                remedy="copy the file again after its exporter has closed it",
            )
        count += 1
        yield message


def message_of(data: bytes) -> Any:  # noqa: ANN401 - protobuf message, imported only when needed
    """Return the OTLP message of these bytes, None when they are none."""
    # Late: importing protobuf takes longer than reading a JSON trace.
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def spans_of(message: Any, reader: Reader) -> Iterator[Span]:  # noqa: ANN401 - as message_of
    """Spans of one export request.

    Raises:
        TraceError: a span is broken, and nobody asked for the others alone.
    """
    for r, group in enumerate(message.resource_spans):
        resource = Resource(_proto_attributes(group.resource.attributes))
        for s, scope in enumerate(group.scope_spans):
            at = f"resource_spans[{r}].scope_spans[{s}].spans"
            read = partial(_proto_span, resource=resource)
            yield from reader.each(scope.spans, at, read)


def _proto_span(
    raw: Any,  # noqa: ANN401 - as message_of
    at: str,
    *,
    resource: Resource,
) -> Span:
    parent, events, links = raw.parent_span_id, raw.events, raw.links
    return make_span(
        _id(raw.trace_id, TRACE_BYTES, at, "trace_id"),
        _id(raw.span_id, SPAN_BYTES, at, "span_id"),
        _id(parent, SPAN_BYTES, at, "parent_span_id") if parent.strip(_ZERO) else None,
        name=name_of(raw.name),
        times=(started(raw.start_time_unix_nano, at), raw.end_time_unix_nano),
        kind=kind_of(raw.kind),
        attributes=_proto_attributes(raw.attributes),
        resource=resource,
        events=tuple(
            [
                SpanEvent(name_of(e.name), e.time_unix_nano, _proto_attributes(e.attributes))
                for e in events
            ]
        )
        if events
        else (),
        links=tuple([SpanLink(k.trace_id.hex(), k.span_id.hex()) for k in links]) if links else (),
    )


def _id(value: bytes, size: int, at: str, field: str) -> str:
    """Return an id as hex; what is wrong with one that is none is the reader's to say."""
    if len(value) == size and value.strip(_ZERO):
        return value.hex()
    return Reader().identifier(value.hex(), size, f"{at}.{field}")


def _proto_attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    # Most values are text, and to ask which kind a value is takes longer than to read it.
    return {pair.key: (value := pair.value).string_value or _proto_value(value) for pair in pairs}


def _proto_value(value: Any) -> Any:  # noqa: ANN401 - an attribute holds any value
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_proto_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _proto_attributes(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)
