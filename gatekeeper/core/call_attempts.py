"""How many attempts one model span covers, and when the last of them began.

A client retries inside its own span: the time of the failed attempts is part of the span and none
of it is decode. The sign is a count on the span, an event per attempt, or the HTTP requests below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.dialects.vocabulary import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gatekeeper.core.traces import Span

__all__ = ["Attempts", "attempts_of"]

_METHOD = ("http.request.method", "http.method")
_STATUS = ("http.response.status_code", "http.status_code")
_FIRST_ERROR = 400
_MOST = 1000  # beyond it a number is no count of attempts


@dataclass(frozen=True)
class Attempts:
    """``last_ns``: start of the last attempt in nanoseconds since the epoch, None where unknown."""

    count: int
    last_ns: int | None


_ONCE = Attempts(1, None)


def attempts_of(span: Span, inside: Sequence[Span] = ()) -> Attempts:
    """Attempts of a model call: what it counts itself, its events, and the requests inside it."""
    count, last = 1, None
    for seen in (_counted(span), *_resent(span, inside), *_failed(inside)):
        if seen.count > count:
            count, last = seen.count, seen.last_ns
        elif seen.count == count > 1 and seen.last_ns is not None:
            last = seen.last_ns if last is None else max(last, seen.last_ns)
    end = span.end_ns
    if last is not None and end is not None and span.start_ns <= last <= end:
        return Attempts(count, last)
    return _ONCE if count == 1 else Attempts(count, None)


def _counted(span: Span) -> Attempts:
    """What the span itself says; events stand for all attempts, or for all but the first."""
    if not span.events and not any(key in span.attributes for _, key in VOCABULARY.attempt_counts):
        return _ONCE
    counts = [
        _count(span.attributes[key])
        for names, key in VOCABULARY.attempt_counts
        if key in span.attributes and names.match(span.name)
    ]
    starts = sorted(e.time_ns for e in span.events if e.name in VOCABULARY.attempt_events)
    count = max([len(starts), *counts])
    known = bool(starts) and len(starts) >= count - 1
    return Attempts(count, starts[-1] if known else None)


def _resent(span: Span, inside: Sequence[Span]) -> Iterator[Attempts]:
    """Requests that say how often they were sent before; the call itself does not say when."""
    for one in (span, *inside):
        for key in VOCABULARY.resend_counts:
            if key in one.attributes:
                count = 1 + _count(one.attributes[key])
                yield Attempts(count, None if one is span else one.start_ns)


def _failed(inside: Sequence[Span]) -> Iterator[Attempts]:
    """Requests that failed before another began."""
    if len(inside) <= 1:
        return
    requests = sorted(
        (one for one in inside if any(key in one.attributes for key in _METHOD)),
        key=lambda one: (one.start_ns, one.span_id),
    )
    failed = [
        one
        for one in requests
        if any(_count(one.attributes.get(key)) >= _FIRST_ERROR for key in _STATUS)
        if one.end_ns is not None and one.end_ns <= requests[-1].start_ns
    ]
    if failed:
        yield Attempts(1 + len(failed), requests[-1].start_ns)


def _count(value: object) -> int:
    """Return a small whole number however it was written; 0 for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < len(str(_MOST)) + 1:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 <= value < _MOST else 0
