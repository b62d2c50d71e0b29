"""Jaeger JSON: the query service's ``{data: [...]}``, one trace of it, or the storage model's spans.

The query service writes microseconds and free-form ids; the storage model ISO times, durations
such as ``22938000ns`` and base64 ids. Ids are only compared, so they are kept as written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanEvent, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import an_object, iso_ns, name_of, objects, text_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "JaegerFormat"]

_MICROSECOND = 1000
_UNITS = {
    "ns": Fraction(1),
    "us": Fraction(10**3),
    "µs": Fraction(10**3),
    "ms": Fraction(10**6),
    "s": Fraction(10**9),
    "m": Fraction(60 * 10**9),
    "h": Fraction(3600 * 10**9),
}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ns|us|µs|ms|s|m|h)")


class JaegerFormat:
    """Traces with ``spans`` whose operations are named ``operationName``."""

    name = "jaeger"

    def accepts(self, document: Document) -> bool:
        """Whether a trace in it has spans with Jaeger's names, or the query service's envelope."""
        if document.values is None:
            return False
        return any(
            "operationName" in span or "spanID" in span
            for trace in _traces(document.values)
            for span in (trace["spans"] if isinstance(trace["spans"], list) else [])
            if isinstance(span, dict)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document."""
        repairs: dict[str, list[str]] = defaultdict(list)
        spans = [
            _span(raw, trace, f"spans[{n}]", repairs)
            for trace in _traces(document.values or ())
            for n, raw in enumerate(objects(trace.get("spans"), "spans"))
        ]
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = JaegerFormat()
"""Entry point of group ``gatekeeper.traces``."""


def _traces(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Objects with ``spans``, whether bare, in an array, or in the envelope's ``data``."""
    found: list[dict[str, Any]] = []
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                continue
            data = one.get("data", one)
            found.extend(
                trace
                for trace in (data if isinstance(data, list) else [data])
                if isinstance(trace, dict) and "spans" in trace
            )
    return found


def _span(
    raw: Mapping[str, Any], trace: Mapping[str, Any], at: str, repairs: dict[str, list[str]]
) -> Span:
    trace_id = text_id(
        raw.get("traceID", raw.get("traceId", trace.get("traceID"))), f"{at}.traceID"
    )
    start, naive = _time(raw.get("startTime"), f"{at}.startTime")
    if naive:
        repairs[trace_id].append("times without a time zone: read as UTC")
    duration = raw.get("duration")
    parent, links = _references(raw, trace_id, at)
    process = raw.get("process")
    if not isinstance(process, dict):
        key = str(raw.get("processID"))
        known = an_object(trace.get("processes"), "processes")
        process = an_object(known.get(key), f"processes.{key}")
    service = process.get("serviceName")
    attributes = {
        f"resource.{key}": value
        for key, value in _tags(process.get("tags"), f"{at}.process.tags").items()
    }
    attributes.update(_tags(raw.get("tags"), f"{at}.tags"))
    return Span(
        trace_id=trace_id,
        span_id=text_id(raw.get("spanID", raw.get("spanId")), f"{at}.spanID"),
        name=name_of(raw.get("operationName")),
        start_ns=start,
        end_ns=None if duration is None else start + _length(duration, f"{at}.duration"),
        parent_id=parent,
        service=service if isinstance(service, str) else None,
        attributes=attributes,
        events=tuple(_events(raw.get("logs"), f"{at}.logs")),
        links=links,
    )


def _references(
    raw: Mapping[str, Any], trace_id: str, at: str
) -> tuple[str | None, tuple[SpanLink, ...]]:
    """Parent and links: the first CHILD_OF of the same trace, else the first FOLLOWS_FROM."""
    found: list[tuple[bool, SpanLink]] = []
    for i, reference in enumerate(objects(raw.get("references"), f"{at}.references")):
        where = f"{at}.references[{i}]"
        link = SpanLink(
            text_id(
                reference.get("traceID", reference.get("traceId", trace_id)), f"{where}.traceID"
            ),
            text_id(reference.get("spanID", reference.get("spanId")), f"{where}.spanID"),
        )
        found.append((reference.get("refType") == "FOLLOWS_FROM", link))
    legacy = raw.get("parentSpanID")
    if isinstance(legacy, str) and legacy.strip("0") and not found:
        found.append((False, SpanLink(trace_id, legacy)))
    local = [entry for entry in found if entry[1].trace_id == trace_id]
    parent = min(local, key=lambda entry: entry[0])[1] if local else None
    links = tuple(link for _, link in found if link is not parent)
    return (parent.span_id if parent else None), links


def _time(value: object, field: str) -> tuple[int, bool]:
    if isinstance(value, str) and not value.strip().isdigit():
        return iso_ns(value, field)
    return _microseconds(value, field), False


def _length(value: object, field: str) -> int:
    if isinstance(value, str) and not value.strip().isdigit():
        parts = list(_DURATION.finditer(value.strip()))
        if parts and "".join(p.group() for p in parts) == value.strip():
            return round(sum(Fraction(p["number"]) * _UNITS[p["unit"]] for p in parts))
    return _microseconds(value, field)


def _microseconds(value: object, field: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value.strip()):
        return int(value) * _MICROSECOND
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return round(Fraction(value) * _MICROSECOND)
        except (ValueError, OverflowError):
            pass  # NaN and the infinities, which JSON readers let through
    raise TraceError(
        "is not a time",
        field=field,
        value="absent" if value is None else value,
        remedy="write microseconds as a number, or an ISO time and a duration such as 15ms",
    )


def _tags(tags: object, field: str) -> dict[str, Any]:
    return {str(tag.get("key", "")): _tag_value(tag) for tag in objects(tags, field)}


def _tag_value(tag: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a tag holds any value
    if "value" in tag:
        return tag["value"]
    return next(
        (value for key, value in tag.items() if key.startswith("v") and key != "vType"), None
    )


def _events(logs: object, field: str) -> Iterable[SpanEvent]:
    for i, log in enumerate(objects(logs, field)):
        fields = _tags(log.get("fields"), f"{field}[{i}].fields")
        at, _ = _time(log.get("timestamp"), f"{field}[{i}].timestamp")
        yield SpanEvent(name_of(fields.get("event")), at, fields)
