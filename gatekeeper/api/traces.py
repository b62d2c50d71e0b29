"""Traces in: OTLP/HTTP from exporters, and whole files in any format that is known."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from gatekeeper.actions.ingest import (
    MAX_BYTES,
    Received,
    import_file,
    ingest_otlp,
    unpacked,
)
from gatekeeper.api import otlp, problems
from gatekeeper.api.services import Ingester, Services, Using
from gatekeeper.errors import TooLarge, TraceError, Unavailable

PATHS = frozenset({"/v1/traces", "/v1/traces/import"})
"""Endpoints that count the bytes of their bodies themselves."""

T = TypeVar("T")

_AT_ONCE = threading.BoundedSemaphore(8)
"""Bodies that are decoded at a time: each may need many times its size in memory."""

_PATIENCE_S = 10.0

router = APIRouter(prefix="/v1", tags=["traces"])
exports = APIRouter(route_class=otlp.OtlpRoute)

_STATUS = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}
_ANSWER = {
    "type": "object",
    "properties": {
        "partialSuccess": {
            "type": "object",
            "properties": {
                "rejectedSpans": {"type": "string"},
                "errorMessage": {"type": "string"},
            },
        }
    },
}
_BINARY = {"type": "string", "format": "binary"}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {otlp.JSON: {"schema": schema}, otlp.PROTOBUF: {"schema": _BINARY}}


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Stored, all or all but those counted", "content": _content(_ANSWER)},
    **{
        status: {"description": text, "content": _content(_STATUS)}
        for status, text in (
            (400, "No OTLP request, or none of its spans can be read"),
            (401, "No token, or one that is unknown, expired or revoked"),
            (403, "The token's role may not send spans"),
            (413, "Too large, packed or unpacked"),
            (415, "A media type or encoding that OTLP/HTTP does not have"),
            (503, "Busy, or the database does not answer: try again after Retry-After"),
        )
    },
}


@exports.post(
    "/traces",
    response_class=Response,
    responses=_RESPONSES,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                otlp.JSON: {
                    "schema": {
                        "type": "object",
                        "properties": {"resourceSpans": {"type": "array"}},
                    }
                },
                otlp.PROTOBUF: {"schema": _BINARY},
            },
        }
    },
)
async def export(request: Request, services: Using, _actor: Ingester) -> Response:
    """Store spans (OTLP/HTTP). They are committed before the answer; a retry changes nothing."""
    media_type = otlp.encoding_of(request)
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() not in (otlp.JSON, otlp.PROTOBUF):
        return otlp.failure(
            415, f"Content-Type={given}: use {otlp.PROTOBUF} or {otlp.JSON}", media_type
        )
    body = await _body(request)
    encoding = request.headers.get("content-encoding", "")

    def work() -> Received:
        data = unpacked(body, encoding)
        return ingest_otlp(services.db, data, as_json=media_type == otlp.JSON)

    received = await run_in_threadpool(_in_turn, work)
    _count(services, received)
    return otlp.accepted(received.rejected, received.message, media_type)


@router.post(
    "/traces/import",
    responses={
        **problems.RESPONSES,
        413: {**problems.RESPONSES[422], "description": "Too large, packed or unpacked"},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": _BINARY}},
        }
    },
)
async def import_(request: Request, services: Using, _actor: Ingester) -> dict[str, Any]:
    """Store the spans of one trace file in any known format; again changes nothing."""
    body = await _body(request)
    encoding = request.headers.get("content-encoding", "")

    def work() -> tuple[str, Received]:
        return import_file(services.db, unpacked(body, encoding))

    source_format, received = await run_in_threadpool(_in_turn, work)
    _count(services, received)
    return {
        "source_format": source_format,
        "tasks": list(received.tasks),
        "new_spans": received.new,
        "known_spans": received.known,
        "rejected_spans": received.rejected,
        "message": received.message or None,
    }


router.include_router(exports)


def _in_turn(work: Callable[[], T]) -> T:
    if not _AT_ONCE.acquire(timeout=_PATIENCE_S):
        raise Unavailable(
            "is busy with other traces", field="server", remedy="send the request again"
        )
    try:
        return work()
    finally:
        _AT_ONCE.release()


async def _body(request: Request) -> bytes:
    """Read the body, and stop where it grows beyond the limit.

    Raises:
        TooLarge: it does.
        TraceError: the client has gone.
    """
    parts = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BYTES:
                raise TooLarge(
                    f"is larger than {MAX_BYTES} bytes",
                    field="body",
                    remedy="send fewer spans at a time",
                )
            parts.append(part)
    except ClientDisconnect as error:
        raise TraceError("ended early", field="body", remedy="send it again") from error
    return b"".join(parts)


def _count(services: Services, received: Received) -> None:
    for fate, count in (
        ("new", received.new),
        ("known", received.known),
        ("rejected", received.rejected),
    ):
        services.metrics.spans.labels(fate).inc(count)
