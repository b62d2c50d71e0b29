"""Traces in: OTLP/HTTP from exporters, and whole files in any format that is known."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from gatekeeper.actions.ingest import Received, import_file, ingest_otlp, unpacked
from gatekeeper.api import otlp, problems
from gatekeeper.api.admission import Place
from gatekeeper.api.services import Ingester, Services, Using
from gatekeeper.errors import TraceError, Unavailable

PATHS = frozenset({"/v1/traces", "/v1/traces/import"})
"""Endpoints that count the bytes of their bodies themselves."""

T = TypeVar("T")

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
            (429, "Too many requests in flight: try again after Retry-After"),
            (503, "The server or its database is busy: try again after Retry-After"),
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

    def work(data: bytes) -> Received:
        return ingest_otlp(services.intake, data, as_json=media_type == otlp.JSON)

    received = await _admitted(request, services, work)
    _count(services, received)
    return otlp.accepted(received.rejected, received.message, media_type)


@router.post(
    "/traces/import",
    responses={
        **problems.RESPONSES,
        413: {**problems.RESPONSES[422], "description": "Too large, packed or unpacked"},
        429: {**problems.RESPONSES[422], "description": "Too many requests in flight"},
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

    def work(data: bytes) -> tuple[str, Received]:
        return import_file(services.intake, data)

    source_format, received = await _admitted(request, services, work)
    _count(services, received)
    return {
        "source_format": source_format,
        "tasks": list(received.tasks),
        "new_spans": received.new,
        "known_spans": received.known,
        "rejected_spans": received.rejected,
        "redacted_attributes": sum(received.redacted.values()),
        "message": received.message or None,
    }


router.include_router(exports)


async def _admitted(request: Request, services: Services, work: Callable[[bytes], T]) -> T:
    """Read and unpack the body and work on it, within the limits of the server.

    Raises:
        Busy, Unavailable: the server has too much to do.
        TooLarge: the body is larger than is taken, packed or unpacked.
        TraceError: it is cut off.
    """
    admission = services.admission
    with admission.place() as place:
        body = await _body(request, place, seconds=admission.limits.body_s)
        encoding = request.headers.get("content-encoding", "")

        def unpack_and_work() -> T:
            data = unpacked(body, encoding, most=admission.limits.unpacked_bytes)
            with admission.decoding(len(data)):
                return work(data)

        return await admission.turn(unpack_and_work)


async def _body(request: Request, place: Place, *, seconds: float) -> bytes:
    """Read the body; one that says its length is refused before it is read.

    Raises:
        TooLarge, Busy: it has more bytes than there is room for.
        Unavailable: it did not arrive in so many seconds.
        TraceError: the client has gone.
    """
    declared = request.headers.get("content-length", "")
    if re.fullmatch(r"[0-9]{1,18}", declared):
        place.grow(int(declared))
    parts = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                place.grow(size)
                parts.append(part)
    except TimeoutError as error:
        raise Unavailable(
            f"did not arrive within {seconds:g} s", field="body", remedy="send it again"
        ) from error
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
    for rule, count in received.redacted.items():
        services.metrics.redacted.labels(rule).inc(count)
