"""What the two encodings of OTLP share: ids, their repairs, and the span they make."""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from gatekeeper.core.span_clocks import SPAN_KIND
from gatekeeper.core.traces import Span
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gatekeeper.core.traces import SpanEvent, SpanLink

__all__ = ["SPAN_BYTES", "TRACE_BYTES", "Reader", "Resource", "kind_of", "make_span", "started"]

_R = TypeVar("_R")

TRACE_BYTES, SPAN_BYTES = 16, 8


class Reader:
    """Ids as lower-case hex, and what had to be repaired to get them, by trace.

    With a list ``refused``, a broken span is noted there without its content, and its siblings are
    read.
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
                self.refused.append(error.unquoted())

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
        if value is None or value == "" or _hex(value, SPAN_BYTES) == "0" * 2 * SPAN_BYTES:
            return None
        return self.identifier(value, SPAN_BYTES, field)


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


class Resource:
    """What all spans of one resource share: its attributes under ``resource.``, and its service."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = {f"resource.{key}": value for key, value in attributes.items()}
        service = attributes.get("service.name")
        self.service = service if isinstance(service, str) else None


_KINDS = {2: "server", 3: "client", 4: "producer", 5: "consumer"}
_KINDS_BY_NAME = {f"SPAN_KIND_{kind.upper()}": kind for kind in _KINDS.values()}


def kind_of(value: object) -> str | None:
    """Name of a span's kind, as OpenTelemetry's mapping to Jaeger has it; None for internal spans."""
    if isinstance(value, str):
        return _KINDS_BY_NAME.get(value)
    return _KINDS.get(value) if isinstance(value, int) else None


def started(start: int, at: str) -> int:
    """Return a span's start as it is.

    Raises:
        TraceError: it is not a time.
    """
    if start <= 0:
        raise TraceError(
            "is not a time",
            field=f"{at}.startTimeUnixNano",
            value=start,
            remedy="write nanoseconds since 1970; a span without a start cannot be placed",
        )
    return start


def make_span(
    trace_id: str,
    span_id: str,
    parent: str | None,
    *,
    name: str,
    times: tuple[int, int],
    kind: str | None,
    attributes: Mapping[str, Any],
    resource: Resource,
    events: tuple[SpanEvent, ...],
    links: tuple[SpanLink, ...],
) -> Span:
    """Make a span of what either encoding holds; an end of 0 is an unfinished span's."""
    start, end = times
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        name=name,
        start_ns=start,
        end_ns=end or None,
        parent_id=parent,
        service=resource.service,
        attributes={**resource.attributes, **({SPAN_KIND: kind} if kind else {}), **attributes},
        events=events,
        links=links,
    )
