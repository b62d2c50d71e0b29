"""OTLP traces: JSON (one document, an array, or lines) and protobuf (one message, or a file of them).

What the spans mean is nothing of the container's: `gatekeeper.core.dialects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.traces import Span, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces import otlp_json, otlp_protobuf
from gatekeeper_adapters.traces.fields import an_object
from gatekeeper_adapters.traces.otlp_spans import Reader

if TYPE_CHECKING:
    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "OtlpFormat"]


class OtlpFormat:
    """OTLP ``ExportTraceServiceRequest`` or ``TracesData``."""

    name = "otlp"

    def accepts(self, document: Document) -> bool:
        """Whether it has ``resourceSpans``, or parses as OTLP protobuf."""
        if document.values is None:
            first = next(otlp_protobuf.messages_of(document.data), None)
            return first is not None and bool(first.resource_spans)
        return otlp_json.holds_requests(document.values)

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document."""
        reader = Reader()
        if document.values is None:
            messages = otlp_protobuf.messages_of(document.data)
            spans = [
                span for message in messages for span in otlp_protobuf.spans_of(message, reader)
            ]
        else:
            spans = list(otlp_json.spans_of(document.values, reader))
        return assemble(spans, source_format=self.name, repairs=reader.repairs)

    def read_spans(self, document: Document) -> tuple[list[Span], list[str]]:
        """Spans of one export request, and why others in it were refused.

        Raises:
            TraceError: the request is not OTLP.
        """
        reader = Reader(refused=[])
        if document.values is None:
            message = otlp_protobuf.message_of(document.data)
            if message is None:
                raise TraceError(
                    "is not an ExportTraceServiceRequest",
                    field="body",
                    remedy="send OTLP protobuf, or JSON as application/json",
                )
            spans = list(otlp_protobuf.spans_of(message, reader))
        else:
            an_object(document.values[0], "body")
            spans = list(otlp_json.spans_of(document.values, reader))
        return spans, list(reader.refused or ())


FORMAT = OtlpFormat()
"""Entry point of group ``gatekeeper.traces``."""
