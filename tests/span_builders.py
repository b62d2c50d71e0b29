"""Short ways to make spans and traces for tests; times in any integer unit."""

from __future__ import annotations

from typing import Any

from gatekeeper.core.traces import Span, SpanLink, Trace, assemble

TRACE_ID = "f" * 32


def span(
    span_id: str,
    start: int,
    end: int | None,
    *,
    parent: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    links: tuple[str, ...] = (),
    **attributes: Any,
) -> Span:
    found = {key.replace("__", "."): value for key, value in attributes.items()}
    if kind is not None:
        found["gatekeeper.kind"] = kind
    return Span(
        trace_id=TRACE_ID,
        span_id=span_id,
        name=name or span_id,
        start_ns=start,
        end_ns=end,
        parent_id=parent,
        attributes=found,
        links=tuple(SpanLink(TRACE_ID, other) for other in links),
    )


def trace(*spans: Span) -> Trace:
    (only,) = assemble(spans, source_format="test")
    return only
