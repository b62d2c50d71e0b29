"""Spans and traces as received: nothing here is repaired in place, repairs are only logged."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Span", "SpanEvent", "SpanLink", "Trace", "assemble"]


@dataclass(frozen=True)
class SpanEvent:
    """Something that happened at one moment inside a span; ``time_ns`` since the Unix epoch."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SpanLink:
    """A cause that is not the parent: an OTLP link, or a further Jaeger reference."""

    trace_id: str
    span_id: str


@dataclass(frozen=True)
class Span:
    """One span as its exporter wrote it. Times are integer nanoseconds since the Unix epoch.

    ``end_ns`` is None while the span is unfinished: that is neither zero nor now.
    ``attributes`` keeps every attribute, known or not, the resource's under ``resource.``.
    """

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int | None
    parent_id: str | None = None
    service: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


@dataclass(frozen=True)
class Trace:
    """All spans of one trace id, each span id once, in canonical order (start, end, id).

    ``repairs`` says in words what had to be decided to get there.
    """

    trace_id: str
    source_format: str
    spans: tuple[Span, ...]
    repairs: tuple[str, ...] = ()


def canonical_key(span: Span) -> tuple[int, int, str]:
    """Sort key that makes every later result independent of the order of delivery."""
    end = span.start_ns if span.end_ns is None else max(span.end_ns, span.start_ns)
    return (span.start_ns, end, span.span_id)


def assemble(
    spans: Iterable[Span], *, source_format: str, repairs: Mapping[str, Iterable[str]] | None = None
) -> tuple[Trace, ...]:
    """Group spans into traces, earliest trace first, and settle duplicate deliveries.

    An equal copy of a span counts once and leaves no mark. Two different spans of one id are a
    conflict: the finished one stays, then the one that ends later, then the larger by content,
    so that the choice does not depend on which came first; the conflict is logged.

    Args:
        spans: spans of any number of traces, in any order.
        source_format: name of the format they came in.
        repairs: what the reader of the format already had to repair, by trace id.
    """
    log: dict[str, list[str]] = defaultdict(list)
    for trace_id, notes in (repairs or {}).items():
        log[trace_id].extend(dict.fromkeys(notes))
    copies: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        known = copies[span.trace_id][span.span_id]
        if span not in known:
            known.append(span)
    traces = []
    for trace_id, by_id in copies.items():
        kept = []
        for span_id in sorted(by_id):
            versions = by_id[span_id]
            if len(versions) == 1:
                kept += versions
            else:
                kept.append(max(versions, key=_preference))
                log[trace_id].append(_describe_conflict(span_id, versions))
        kept.sort(key=canonical_key)
        traces.append(Trace(trace_id, source_format, tuple(kept), tuple(log[trace_id])))
    return tuple(sorted(traces, key=lambda t: (t.spans[0].start_ns, t.trace_id)))


def _preference(span: Span) -> tuple[bool, int, str]:
    content = repr(
        (span.start_ns, span.name, span.parent_id, sorted(span.attributes.items(), key=repr))
    )
    return (span.end_ns is not None, span.end_ns or 0, content)


def _describe_conflict(span_id: str, versions: list[Span]) -> str:
    if len({v.end_ns is None for v in versions}) > 1:
        return f"span {span_id} arrived unfinished and finished: the finished one counts"
    return f"conflict: {len(versions)} different spans share the id {span_id}: the later end counts"
