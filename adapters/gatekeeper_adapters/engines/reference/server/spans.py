"""One span for each request, with its queue, prefill and decode, exported over OTLP/HTTP.

Names are those of the OpenTelemetry GenAI conventions and of vLLM, which ``core/model_calls.py``
reads as evidence of grade A.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import httpx
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gatekeeper_adapters.engines.reference.server.answer import Answer

__all__ = ["Caller", "SpanSender", "caller_of", "endpoint_of", "request_span"]

SERVICE = "gatekeeper.engine"
PATH = "/v1/traces"

_TRACEPARENT = re.compile(
    r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}"
)
_PERIOD_S, _LIMIT_S = 1.0, 5.0
_MOST = 4096

_log = structlog.get_logger()


@dataclass(frozen=True)
class Caller:
    """The span that a request belongs under, from its ``traceparent`` header."""

    trace_id: bytes
    span_id: bytes = b""


def caller_of(header: str | None) -> Caller:
    """Read W3C trace context; without it, or where it is none, a trace of its own."""
    found = _TRACEPARENT.fullmatch(header or "")
    if found is None:
        return Caller(secrets.token_bytes(16))
    return Caller(bytes.fromhex(found[1]), bytes.fromhex(found[2]))


def endpoint_of(url: str) -> str:
    """Where spans are posted: a collector's own address gets the path that OTLP says."""
    return url if url.endswith(PATH) else url.rstrip("/") + PATH


def request_span(
    answer: Answer,
    caller: Caller,
    *,
    operation: str,
    model: str,
    began_ns: int,
    ended_ns: int,
    error: str | None = None,
) -> Span:
    """The span of one answered request; ``operation`` is ``chat`` or ``text_completion``.

    Phases that it never reached are left out.
    """
    times = answer.times
    found: dict[str, str | int | float | tuple[str, ...] | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.tokens or None,
        "gen_ai.response.finish_reasons": tuple(c.finish for c in answer.choices if c.finish)
        or None,
        "gen_ai.response.time_to_first_chunk": times.ttft_s,
        "gen_ai.latency.time_in_queue": times.queue_s,
        "gen_ai.latency.time_in_model_prefill": times.prefill_s,
        "gen_ai.latency.time_in_model_decode": times.decode_s,
        "gatekeeper.gamma": answer.requests[0].gamma,
        "gatekeeper.draft_tokens": answer.drafted,
        "gatekeeper.accepted_tokens": answer.accepted,
        "error.type": error,
    }
    span = Span(
        trace_id=caller.trace_id,
        span_id=secrets.token_bytes(8),
        parent_span_id=caller.span_id,
        name=f"{operation} {model}",
        kind=Span.SpanKind.SPAN_KIND_SERVER,
        start_time_unix_nano=began_ns,
        end_time_unix_nano=ended_ns,
        attributes=[
            KeyValue(key=key, value=_value(value))
            for key, value in found.items()
            if value is not None
        ],
    )
    if error is not None:
        span.status.code = Status.StatusCode.STATUS_CODE_ERROR
    return span


class SpanSender:
    """Collects spans and posts them every second from the event loop; what is refused is dropped.

    ``dropped`` hears how many.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], dropped: Callable[[int], None]
    ) -> None:
        self._url = endpoint_of(url)
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._dropped = dropped
        self._spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Keep a span for the next post; beyond all use it is dropped."""
        if len(self._spans) < _MOST:
            self._spans.append(span)
        else:
            self._dropped(1)

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._client() as client:
            while True:
                await asyncio.sleep(_PERIOD_S)
                await self._post(client)

    async def flush(self) -> None:
        """Post what is left."""
        async with self._client() as client:
            await self._post(client)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, timeout=_LIMIT_S, trust_env=False)

    async def _post(self, client: httpx.AsyncClient) -> None:
        spans, self._spans = self._spans, []
        if not spans:
            return
        problem = ""
        try:
            response = await client.post(self._url, content=_request(spans))
            if not response.is_success:
                problem = f"answers {response.status_code}"
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
        if problem:
            self._dropped(len(spans))
            _log.warning("spans dropped", spans=len(spans), collector=self._url, problem=problem)


def _request(spans: list[Span]) -> bytes:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name", value=_value(SERVICE))
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = SERVICE, version("gatekeeper")
    scope.spans.extend(spans)
    return request.SerializeToString()


def _value(value: str | float | tuple[str, ...]) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[_value(one) for one in value]))
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(double_value=value)
