"""From bytes to traces: decode once, ask each format by content, say why nothing fits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gatekeeper.core.untimed import why_untimed
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatekeeper.core.traces import Span, Trace

__all__ = ["Document", "SpanReader", "TraceFormat", "decode", "read_traces"]


@dataclass(frozen=True)
class Document:
    """A file's bytes and, where they are JSON or JSON lines, the decoded values.

    ``values`` holds one value per JSON document or line; None when the bytes are not JSON, and
    then ``not_json`` says where decoding stopped.
    """

    data: bytes
    values: tuple[Any, ...] | None
    not_json: str | None = None


class TraceFormat(Protocol):
    """An entry point of group ``gatekeeper.traces``."""

    name: str

    def accepts(self, document: Document) -> bool:
        """Whether this document's content is of this format; cheap, never raises."""
        ...

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document.

        Raises:
            TraceError: an id, time or structure is broken; names field, value and remedy.
        """
        ...


class SpanReader(Protocol):
    """What a trace format offers beside reading files, where exporters push it span by span."""

    def read_spans(self, document: Document) -> tuple[list[Span], list[str]]:
        """Read one export request: its spans, and why others in it were refused.

        A request may be empty. ``document.values`` decides between JSON and the binary encoding.

        Raises:
            TraceError: the request itself is broken, so that no span in it can be told.
        """
        ...


def decode(data: bytes) -> Document:
    """Decode bytes as one JSON value, else as JSON lines (blank lines ignored), else not at all."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Document(data, None, f"not UTF-8 at byte {error.start}")
    try:
        return Document(data, (json.loads(text),))
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        return Document(data, None, "JSON nested too deeply to read")
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            # The first line decides whether this was meant as JSON lines at all.
            reason = f"line {number}: {error}" if values else problem
            return Document(data, None, reason)
    return Document(data, tuple(values)) if values else Document(data, None, problem)


def read_traces(data: bytes, formats: Iterable[TraceFormat]) -> tuple[Trace, ...]:
    """Read the traces of one file in whichever of the formats it is.

    Raises:
        TraceError: the file is empty, of no known format, broken, or holds no span.
    """
    if not data.strip():
        raise TraceError("the file is empty", remedy="export the trace again")
    document = decode(data)
    known = list(formats)
    for candidate in known:
        if candidate.accepts(document):
            traces = candidate.read(document)
            if not traces:
                raise TraceError(
                    f"{candidate.name} document without a single span",
                    remedy="export the trace again after the task has run",
                )
            return traces
    refusal = why_untimed(document)
    if refusal is not None:
        raise TraceError(refusal.reason, remedy=refusal.remedy)
    names = ", ".join(f.name for f in known) or "none installed"
    raise TraceError(
        f"not a trace: {_describe(document)}",
        remedy=f"export it in one of the formats that are read ({names})",
    )


_MAGIC = {
    b"\x1f\x8b": "gzip-compressed; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet table",
}


def _describe(document: Document) -> str:
    for magic, meaning in _MAGIC.items():
        if document.data.startswith(magic):
            return meaning
    if document.values is None:
        return f"neither JSON ({document.not_json}) nor OTLP protobuf"
    first = document.values[0]
    lines = f"{len(document.values)} JSON lines, the first " if len(document.values) > 1 else ""
    if isinstance(first, dict):
        keys = ", ".join(sorted(map(str, first))[:8]) or "none"
        return f"{lines}a JSON object with the keys {keys}"
    if isinstance(first, list):
        inner = first[0] if first else None
        if isinstance(inner, dict):
            return f"{lines}a JSON array of objects with the keys {', '.join(sorted(inner)[:8])}"
        return f"{lines}a JSON array of {len(first)} items"
    return f"{lines}a JSON {type(first).__name__}"
