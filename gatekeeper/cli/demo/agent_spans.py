"""The agent's spans: made by the OpenTelemetry SDK, exported over OTLP/HTTP, acknowledged.

Spans leave between tasks, never during one, so that exporting costs the measured tasks nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanKind, set_span_in_context

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import Span

__all__ = ["Spans", "http_exporter"]

_NEVER_MS = 3_600_000
_QUEUE = 4096


def http_exporter(url: str, token: str) -> SpanExporter:
    """OTLP/HTTP exporter to a gatekeeper server; ``OTEL_EXPORTER_OTLP_*`` tune what is not given."""
    return OTLPSpanExporter(
        endpoint=f"{url}/v1/traces", headers={"authorization": f"Bearer {token}"}
    )


class Spans:
    """Starts and ends spans at given times, and keeps those that the collector acknowledged."""

    def __init__(self, exporter: SpanExporter, *, service: str) -> None:
        self._exporter = _Acknowledged(exporter)
        # In batches, but sent only by flush().
        processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_QUEUE,
            max_export_batch_size=_QUEUE,
            schedule_delay_millis=_NEVER_MS,
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("gatekeeper.demo.agent")

    def start(
        self,
        name: str,
        at_ns: int,
        attributes: Mapping[str, Any],
        *,
        parent: Span | None = None,
        causes: Sequence[Span] = (),
    ) -> Span:
        """Start a span; ``causes`` become its links."""
        return self._tracer.start_span(
            name,
            context=None if parent is None else set_span_in_context(parent),
            kind=SpanKind.CLIENT if attributes.get("gen_ai.request.model") else SpanKind.INTERNAL,
            attributes=dict(attributes),
            links=[Link(cause.get_span_context()) for cause in causes],
            start_time=at_ns,
        )

    def flush(self) -> None:
        """Send every ended span.

        Raises:
            Unavailable: the collector did not take them.
        """
        self._provider.force_flush()
        if self._exporter.refused:
            raise Unavailable(
                f"did not take {self._exporter.refused} spans",
                field="OTLP",
                remedy="run gatekeeper doctor: it posts an empty export and says what is wrong",
            )

    @property
    def acknowledged(self) -> int:
        """Spans that the collector has confirmed."""
        return len(self._exporter.taken)

    def document(self) -> bytes:
        """All acknowledged spans as one OTLP protobuf document, as the collector received them."""
        data: bytes = encode_spans(self._exporter.taken).SerializeToString()
        return data

    def close(self) -> None:
        """Stop the exporter. What was not flushed is dropped: half a task would mislead."""
        self._exporter.closed = True
        self._provider.shutdown()


class _Acknowledged(SpanExporter):
    """Counts what an exporter delivers: the SDK itself only logs a failure."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.taken: list[ReadableSpan] = []
        self.refused = 0
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.closed:
            return SpanExportResult.FAILURE
        self.refused += len(spans)  # until it says otherwise: what it raises, the SDK only logs
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.refused -= len(spans)
            self.taken.extend(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
