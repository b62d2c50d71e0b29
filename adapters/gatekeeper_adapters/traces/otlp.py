"""OTLP traces: JSON (one document, an array, or lines) and protobuf.

The JSON encoding is OTLP's own, not protobuf's: ids are hex and 64-bit integers may be text or
numbers, so protobuf's ``json_format`` cannot read it. Source: opentelemetry-proto, "OTLP/HTTP
JSON encoding".
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gatekeeper.core.traces import Span, SpanEvent, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import an_object, integer, name_of, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "OtlpFormat"]

_R = TypeVar("_R")

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_ROOT_KEYS = ("resourceSpans", "resource_spans")
_FIRST_FIELD = b"\n"  # tag of field 1, length-delimited: resource_spans in protobuf


class OtlpFormat:
    """OTLP ``ExportTraceServiceRequest`` or ``TracesData``."""

    name = "otlp"

    def accepts(self, document: Document) -> bool:
        """Whether it has ``resourceSpans``, or parses as OTLP protobuf."""
        if document.values is None:
            return document.data.startswith(_FIRST_FIELD) and _parse(document.data) is not None
        return any(key in one for one in _requests(document.values) for key in _ROOT_KEYS)

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document."""
        reader = _Reader()
        if document.values is None:
            spans = list(_from_protobuf(_parse(document.data), reader))
        else:
            spans = list(_from_json(document.values, reader))
        return assemble(spans, source_format=self.name, repairs=reader.repairs)

    def read_spans(self, document: Document) -> tuple[list[Span], list[str]]:
        """Spans of one export request, and why others in it were refused.

        Raises:
            TraceError: the request is not OTLP.
        """
        reader = _Reader(refused=[])
        if document.values is None:
            message = _message(document.data)
            if message is None:
                raise TraceError(
                    "is not an ExportTraceServiceRequest",
                    field="body",
                    remedy="send OTLP protobuf, or JSON as application/json",
                )
            spans = list(_from_protobuf(message, reader))
        else:
            an_object(document.values[0], "body")
            spans = list(_from_json(document.values, reader))
        return spans, list(reader.refused or ())


FORMAT = OtlpFormat()
"""Entry point of group ``gatekeeper.traces``."""


class _Reader:
    """Ids as lower-case hex, and what had to be repaired to get them, by trace.

    With a list ``refused``, a broken span is noted there and its siblings are read.
    """

    def __init__(self, refused: list[str] | None = None) -> None:
        self.repairs: dict[str, list[str]] = defaultdict(list)
        self.base64 = False
        self.refused = refused

    def each(self, spans: Iterable[_R], at: str, read: Callable[[_R, str], Span]) -> Iterator[Span]:
        """Read the spans at a place in the request, one by one.

        Raises:
            TraceError: one is broken, and nobody asked for the others alone.
        """
        for n, raw in enumerate(spans):
            try:
                yield read(raw, f"{at}[{n}]")
            except TraceError as error:
                if self.refused is None:
                    raise
                self.refused.append(str(error))

    def identifier(self, value: object, size: int, field: str) -> str:
        """Return an id as hex.

        Raises:
            TraceError: it is not ``size`` bytes in hex or base64, or all zero.
        """
        found = _hex(value, size)
        if found is None and isinstance(value, str):
            found = _base64(value, size)
            self.base64 = self.base64 or found is not None
        if found is None or not found.strip("0"):
            raise TraceError(
                "is all zero" if found else "is not an id",
                field=field,
                value="absent" if value is None else value,
                remedy=f"use {size} bytes as {2 * size} hex digits, not all zero",
            )
        return found

    def parent(self, value: object, field: str) -> str | None:
        """Return a parent id, None where it is absent, empty or all zero."""
        if value is None or value == "" or _hex(value, _SPAN_BYTES) == "0" * 2 * _SPAN_BYTES:
            return None
        return self.identifier(value, _SPAN_BYTES, field)


def _hex(value: object, size: int) -> str | None:
    if not isinstance(value, str) or len(value) != 2 * size:
        return None
    try:
        return bytes.fromhex(value).hex()
    except ValueError:
        return None


def _base64(value: str, size: int) -> str | None:
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw.hex() if len(raw) == size else None


def _requests(values: Iterable[Any]) -> list[dict[str, Any]]:
    flat: list[dict[str, Any]] = []
    for value in values:
        flat.extend(
            v for v in (value if isinstance(value, list) else [value]) if isinstance(v, dict)
        )
    return flat


def _either(document: Mapping[str, Any], camel: str, snake: str) -> Any:  # noqa: ANN401 - any JSON value
    return document.get(camel, document.get(snake))


def _from_json(values: Iterable[Any], reader: _Reader) -> Iterable[Span]:
    for request in _requests(values):
        groups = objects(_either(request, *_ROOT_KEYS), "resourceSpans")
        for r, group in enumerate(groups):
            found = an_object(group.get("resource"), f"resourceSpans[{r}].resource")
            resource = _attributes(found.get("attributes"), "resource")
            scopes = _either(group, "scopeSpans", "scope_spans")
            scopes = group.get("instrumentationLibrarySpans") if scopes is None else scopes
            where = f"resourceSpans[{r}]"
            for s, scope in enumerate(objects(scopes, f"{where}.scopeSpans")):
                at = f"{where}.scopeSpans[{s}].spans"
                read = partial(_json_span, resource=resource, reader=reader)
                yield from reader.each(objects(scope.get("spans"), at), at, read)


def _json_span(
    raw: Mapping[str, Any], at: str, *, resource: Mapping[str, Any], reader: _Reader
) -> Span:
    reader.base64 = False
    trace_id = reader.identifier(_either(raw, "traceId", "trace_id"), _TRACE_BYTES, f"{at}.traceId")
    span_id = reader.identifier(_either(raw, "spanId", "span_id"), _SPAN_BYTES, f"{at}.spanId")
    parent = reader.parent(_either(raw, "parentSpanId", "parent_span_id"), f"{at}.parentSpanId")
    if reader.base64:
        reader.repairs[trace_id].append("ids were base64 (protobuf's JSON): read as bytes")
    start = integer(
        _either(raw, "startTimeUnixNano", "start_time_unix_nano"), f"{at}.startTimeUnixNano"
    )
    end = _either(raw, "endTimeUnixNano", "end_time_unix_nano")
    finished = integer(end, f"{at}.endTimeUnixNano") if end not in (None, "") else 0
    return _span(
        trace_id,
        span_id,
        parent,
        name=name_of(raw.get("name")),
        times=(_started(start, at), finished),
        attributes=_attributes(raw.get("attributes"), f"{at}.attributes"),
        resource=resource,
        events=tuple(
            SpanEvent(
                name_of(event.get("name")),
                integer(
                    _either(event, "timeUnixNano", "time_unix_nano") or 0,
                    f"{at}.events[{i}].timeUnixNano",
                ),
                _attributes(event.get("attributes"), f"{at}.events[{i}]"),
            )
            for i, event in enumerate(objects(raw.get("events"), f"{at}.events"))
        ),
        links=tuple(
            SpanLink(
                reader.identifier(
                    _either(link, "traceId", "trace_id"),
                    _TRACE_BYTES,
                    f"{at}.links[{i}].traceId",
                ),
                reader.identifier(
                    _either(link, "spanId", "span_id"), _SPAN_BYTES, f"{at}.links[{i}].spanId"
                ),
            )
            for i, link in enumerate(objects(raw.get("links"), f"{at}.links"))
        ),
    )


def _started(start: int, at: str) -> int:
    if start <= 0:
        raise TraceError(
            "is not a time",
            field=f"{at}.startTimeUnixNano",
            value=start,
            remedy="write nanoseconds since 1970; a span without a start cannot be placed",
        )
    return start


def _span(
    trace_id: str,
    span_id: str,
    parent: str | None,
    *,
    name: str,
    times: tuple[int, int],
    attributes: Mapping[str, Any],
    resource: Mapping[str, Any],
    events: tuple[SpanEvent, ...],
    links: tuple[SpanLink, ...],
) -> Span:
    start, end = times
    service = resource.get("service.name")
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        name=name,
        start_ns=start,
        end_ns=end or None,
        parent_id=parent,
        service=service if isinstance(service, str) else None,
        attributes={**{f"resource.{key}": v for key, v in resource.items()}, **attributes},
        events=events,
        links=links,
    )


def _attributes(pairs: object, field: str) -> dict[str, Any]:
    return {
        str(pair.get("key", "")): _value(pair.get("value"), f"{field}[{i}]")
        for i, pair in enumerate(objects(pairs, field))
    }


def _value(value: Any, field: str) -> Any:  # noqa: ANN401 - an attribute holds any value
    """Python value of an OTLP AnyValue; one of an unknown shape is kept as it came."""
    if not isinstance(value, dict):
        return value
    for camel, snake in (
        ("stringValue", "string_value"),
        ("boolValue", "bool_value"),
        ("doubleValue", "double_value"),
        ("bytesValue", "bytes_value"),
    ):
        if camel in value or snake in value:
            return _either(value, camel, snake)
    number = _either(value, "intValue", "int_value")
    if number is not None:
        return integer(number, f"{field}.intValue")
    array = _either(value, "arrayValue", "array_value")
    if isinstance(array, dict):
        return [_value(item, field) for item in array.get("values") or ()]
    pairs = _either(value, "kvlistValue", "kvlist_value")
    if isinstance(pairs, dict):
        return _attributes(pairs.get("values"), field)
    return value or None


def _parse(data: bytes) -> Any:  # noqa: ANN401 - protobuf message, imported only when needed
    """Return the OTLP message of these bytes, None when they are none or it is empty."""
    message = _message(data)
    return message if message is not None and message.resource_spans else None


def _message(data: bytes) -> Any:  # noqa: ANN401 - protobuf message, imported only when needed
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


def _from_protobuf(message: Any, reader: _Reader) -> Iterable[Span]:  # noqa: ANN401 - as _parse
    for r, group in enumerate(message.resource_spans if message is not None else ()):
        resource = _proto_attributes(group.resource.attributes)
        for s, scope in enumerate(group.scope_spans):
            at = f"resource_spans[{r}].scope_spans[{s}].spans"
            read = partial(_proto_span, resource=resource, reader=reader)
            yield from reader.each(scope.spans, at, read)


def _proto_span(
    raw: Any,  # noqa: ANN401 - as _parse
    at: str,
    *,
    resource: Mapping[str, Any],
    reader: _Reader,
) -> Span:
    return _span(
        reader.identifier(raw.trace_id.hex(), _TRACE_BYTES, f"{at}.trace_id"),
        reader.identifier(raw.span_id.hex(), _SPAN_BYTES, f"{at}.span_id"),
        reader.parent(raw.parent_span_id.hex(), f"{at}.parent_span_id"),
        name=name_of(raw.name),
        times=(_started(raw.start_time_unix_nano, at), raw.end_time_unix_nano),
        attributes=_proto_attributes(raw.attributes),
        resource=resource,
        events=tuple(
            SpanEvent(name_of(e.name), e.time_unix_nano, _proto_attributes(e.attributes))
            for e in raw.events
        ),
        links=tuple(SpanLink(k.trace_id.hex(), k.span_id.hex()) for k in raw.links),
    )


def _proto_attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _proto_value(pair.value) for pair in pairs}


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
