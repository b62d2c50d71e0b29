"""A span as text and back: one canonical form, so that equal spans have equal text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gatekeeper.core.traces import Span, SpanEvent, SpanLink
from gatekeeper.errors import TraceError

__all__ = ["LATEST_NS", "MAX_ID", "clean", "digest", "from_text", "to_text"]

LATEST_NS = 2**63
"""Times from here on (the year 2262) are no times but broken clocks or wrong units."""

# One encoder for all spans: json.dumps would make another for each. Nothing parsed is circular.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode

MAX_ID = 200
"""Longest trace or span id, in characters; OTLP's have 32 and 16."""


def to_text(span: Span) -> str:
    """ASCII JSON of a span with sorted keys: what NUL, lone surrogates and NaN survive.

    Raises:
        TraceError: an id that is too long or not printable, or a time that no clock shows.
    """
    for field, name in (("traceId", span.trace_id), ("spanId", span.span_id)):
        if len(name) > MAX_ID or not name.isprintable():
            raise TraceError(
                f"is longer than {MAX_ID} characters or not printable",
                field=field,
                value=name,
                remedy="use the ids that the tracing library makes",
            )
    for field, time in (("start", span.start_ns), ("end", span.end_ns)):
        if time is not None and not 0 <= time < LATEST_NS:
            raise TraceError(
                "is not a time",
                field=f"span {span.span_id} {field}",
                value=time,
                remedy="write nanoseconds since 1970",
            )
    document: dict[str, Any] = {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "name": span.name,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "parent_id": span.parent_id,
        "service": span.service,
        "attributes": dict(span.attributes),
        "events": [[e.name, e.time_ns, dict(e.attributes)] for e in span.events],
        "links": [[k.trace_id, k.span_id] for k in span.links],
    }
    return _encode(document)


def from_text(text: str) -> Span:
    """Span of a text that ``to_text`` made."""
    document = json.loads(text)
    events = tuple(SpanEvent(*event) for event in document.pop("events"))
    links = tuple(SpanLink(*link) for link in document.pop("links"))
    return Span(**document, events=events, links=links)


def digest(text: str) -> str:
    """SHA-256 of a span's text: equal exactly for equal spans."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def clean(text: str) -> str:
    """Text that every database and terminal holds: what is not printable becomes U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
