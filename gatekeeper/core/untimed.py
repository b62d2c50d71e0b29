"""Files that belong to model serving but cannot give a task's timings: why, and what would help.

Looked at only after no trace format has accepted a file, so that the refusal says more than
"not a trace".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["Refusal", "why_untimed"]

_GZIP = b"\x1f\x8b"
_LOOKED_AT = 1 << 16
"""Bytes of a file's (unpacked) beginning that are looked at."""

_ARRIVAL = frozenset({"timestamp", "arrival_time", "arrived_at", "arrival"})
_TOKENS = frozenset(
    {
        "contexttokens",
        "generatedtokens",
        "input_length",
        "output_length",
        "input_tokens",
        "output_tokens",
        "prompt_tokens",
        "completion_tokens",
    }
)
_LENGTH = ("duration", "latency", "elapsed", "e2e", "api_time", "end_", "endtime", "finish")
"""Beginnings of field names that would tell how long a request took, or when it ended."""

_START = frozenset({"starttime", "start_time", "starttimeunixnano", "start_time_unix_nano"})
_SPAN_NAME = frozenset({"spanname", "span_name", "scopename", "scope_name"})


@dataclass(frozen=True)
class Refusal:
    """What a file is, why it cannot be profiled, and what would help."""

    reason: str
    remedy: str


_REQUEST_LOG = Refusal(
    "a log of requests with arrival times and token counts only: neither when a request ended nor "
    "which task it belonged to is in it, so there is no time to attribute",
    "record each request's duration and the task it belongs to, best as spans (OTLP)",
)
_ATTRIBUTES = Refusal(
    "attributes of one span without its start, end and ids: what the call was is known, when it "
    "ran and inside what is not",
    "export whole spans, with startTimeUnixNano, endTimeUnixNano, traceId, spanId and parentSpanId",
)
_GPU = Refusal(
    "a profiler's trace of one process and its GPU (kernels and runtime calls): no model calls, "
    "tools or tasks are in it",
    "export the spans of the agent that made the requests, and the serving engine's request spans",
)


def why_untimed(document: Document) -> Refusal | None:
    """Say why a file of a known but untimed kind is refused; None for any other file."""
    if _is_profile(document):
        return _GPU
    if document.values is None:
        return _REQUEST_LOG if _is_request_table(document.data) else None
    records = list(_records(document.values))
    if not records:
        return None
    if all(map(_arrivals_only, records)):
        return _REQUEST_LOG
    if all(map(_is_attribute_bag, records)):
        return _ATTRIBUTES
    return None


def _records(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield one


def _arrivals_only(names: Iterable[str]) -> bool:
    known = {name.strip().lower() for name in names}
    return (
        bool(known & _ARRIVAL)
        and bool(known & _TOKENS)
        and not any(name.startswith(_LENGTH) for name in known - _TOKENS)
    )


def _is_request_table(data: bytes) -> bool:
    header, _, _ = data[:_LOOKED_AT].partition(b"\n")
    text = header.decode("utf-8-sig", errors="replace").replace(";", ",").replace("\t", ",")
    return _arrivals_only(text.replace('"', "").split(","))


def _is_attribute_bag(record: Mapping[str, Any]) -> bool:
    names = {name.lower() for name in record}
    whole = not names & _SPAN_NAME or names & _START
    return isinstance(record.get("attributes"), dict) and not whole


def _is_profile(document: Document) -> bool:
    """Whether it is a Chrome-format profile, packed or not: told by its beginning."""
    if document.values is not None:
        return any("traceEvents" in record for record in _records(document.values))
    head = document.data[:_LOOKED_AT]
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _LOOKED_AT)
        except zlib.error:
            return False
    return b'"traceEvents"' in head
