"""OTLP's own JSON encoding.

It is not protobuf's: ids are hex, and 64-bit integers may be text or numbers, so protobuf's
``json_format`` cannot read it. Source: opentelemetry-proto, "OTLP/HTTP JSON encoding".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import SpanEvent, SpanLink
from gatekeeper_adapters.traces.fields import an_object, integer, listed, name_of, objects
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
    from collections.abc import Iterable, Iterator, Mapping

    from gatekeeper.core.traces import Span

__all__ = ["holds_requests", "spans_of"]

_ROOT_KEYS = ("resourceSpans", "resource_spans", "batches")  # batches: Grafana Tempo
_ENVELOPES = ("trace", "result")  # of the answers of Tempo's and Jaeger's query services


def holds_requests(values: Iterable[Any]) -> bool:
    """Whether one of a document's values is an export request."""
    return any(key in one for one in _requests(values) for key in _ROOT_KEYS)


def _requests(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Export requests of a document, out of the envelopes that query services put around them."""
    found = []
    for one in listed(values):
        inner = next((one[key] for key in _ENVELOPES if isinstance(one.get(key), dict)), one)
        found.append(inner if any(key in inner for key in _ROOT_KEYS) else one)
    return found


def _either(document: Mapping[str, Any], camel: str, snake: str) -> Any:  # noqa: ANN401 - any JSON value
    return document.get(camel, document.get(snake))


def spans_of(values: Iterable[Any], reader: Reader) -> Iterator[Span]:
    """Spans of every export request in a document.

    Raises:
        TraceError: the structure is broken, or a span is and nobody asked for the others alone.
    """
    for request in _requests(values):
        key = next((key for key in _ROOT_KEYS if key in request), _ROOT_KEYS[0])
        groups = objects(request.get(key), key)
        for r, group in enumerate(groups):
            found = an_object(group.get("resource"), f"{key}[{r}].resource")
            at_resource = f"{key}[{r}].resource.attributes"
            resource = Resource(_attributes(found.get("attributes"), at_resource))
            scopes = _either(group, "scopeSpans", "scope_spans")
            scopes = group.get("instrumentationLibrarySpans") if scopes is None else scopes
            where = f"{key}[{r}]"
            for s, scope in enumerate(objects(scopes, f"{where}.scopeSpans")):
                at = f"{where}.scopeSpans[{s}].spans"
                read = partial(_json_span, resource=resource, reader=reader)
                yield from reader.each(objects(scope.get("spans"), at), at, read)


def _json_span(raw: Mapping[str, Any], at: str, *, resource: Resource, reader: Reader) -> Span:
    reader.base64 = False
    trace_id = reader.identifier(_either(raw, "traceId", "trace_id"), TRACE_BYTES, f"{at}.traceId")
    span_id = reader.identifier(_either(raw, "spanId", "span_id"), SPAN_BYTES, f"{at}.spanId")
    parent = reader.parent(_either(raw, "parentSpanId", "parent_span_id"), f"{at}.parentSpanId")
    if reader.base64:
        reader.repairs[trace_id].append("ids were base64 (protobuf's JSON): read as bytes")
    start = integer(
        _either(raw, "startTimeUnixNano", "start_time_unix_nano"), f"{at}.startTimeUnixNano"
    )
    end = _either(raw, "endTimeUnixNano", "end_time_unix_nano")
    finished = integer(end, f"{at}.endTimeUnixNano") if end not in (None, "") else 0
    return make_span(
        trace_id,
        span_id,
        parent,
        name=name_of(raw.get("name")),
        times=(started(start, at), finished),
        kind=kind_of(raw.get("kind")),
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
                    TRACE_BYTES,
                    f"{at}.links[{i}].traceId",
                ),
                reader.identifier(
                    _either(link, "spanId", "span_id"), SPAN_BYTES, f"{at}.links[{i}].spanId"
                ),
            )
            for i, link in enumerate(objects(raw.get("links"), f"{at}.links"))
        ),
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
