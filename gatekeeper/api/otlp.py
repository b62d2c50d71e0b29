"""OTLP/HTTP's own answers: protobuf or JSON like the request, errors as google.rpc.Status.

Sources: the OTLP specification 1.x, "OTLP/HTTP"; google/rpc/status.proto and code.proto.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.exceptions import HTTPException

from gatekeeper.core.span_documents import clean
from gatekeeper.errors import (
    Conflict,
    GatekeeperError,
    RateLimited,
    TraceError,
    Unauthorized,
    Unavailable,
)

__all__ = ["JSON", "PROTOBUF", "OtlpRoute", "accepted", "encoding_of", "failure"]

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

_UNAVAILABLE = 503

_CODES = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    413: 8,  # RESOURCE_EXHAUSTED
    415: 3,  # INVALID_ARGUMENT
    422: 3,  # INVALID_ARGUMENT
    429: 8,  # RESOURCE_EXHAUSTED
    503: 14,  # UNAVAILABLE
}
_UNKNOWN = 2


def encoding_of(request: Request) -> str:
    """Media type of the answer: the request's own, JSON where it is neither of OTLP's."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return PROTOBUF if given == PROTOBUF else JSON


def accepted(rejected: int, message: str, media_type: str) -> Response:
    """Answer 200: everything was stored, or all but ``rejected`` spans and why."""
    if media_type == JSON:
        # 64-bit integers are text in protobuf's JSON.
        partial = {"rejectedSpans": str(rejected), "errorMessage": clean(message)}
        body = json.dumps({"partialSuccess": partial} if rejected else {}).encode()
    else:
        answer = ExportTraceServiceResponse()
        if rejected:
            answer.partial_success.rejected_spans = rejected
            answer.partial_success.error_message = clean(message)
        body = answer.SerializeToString()
    return Response(body, media_type=media_type)


def failure(
    status: int, message: str, media_type: str, headers: dict[str, str] | None = None
) -> Response:
    """Answer an error as google.rpc.Status."""
    code = _CODES.get(status, _UNKNOWN)
    text = clean(message)
    body = json.dumps({"code": code, "message": text}).encode()
    if media_type == PROTOBUF:
        body = _status(code, text.encode())
    return Response(body, status_code=status, media_type=media_type, headers=headers)


def _status(code: int, message: bytes) -> bytes:
    """Encode ``Status {int32 code = 1; string message = 2;}``: two fields need no dependency."""
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(message)) + message


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class OtlpRoute(APIRoute):
    """A route whose errors, those of the token included, have OTLP's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            media_type = encoding_of(request)
            try:
                return await handler(request)
            except GatekeeperError as error:
                limits = request.app.state.services.ingest.limits
                return _failed(error, media_type, retry_after_s=limits.retry_after_s)
            except RequestValidationError as error:
                return failure(400, str(error.errors()[0]["msg"]), media_type)
            except HTTPException as error:
                return failure(error.status_code, str(error.detail), media_type)

        return answer


def _failed(error: GatekeeperError, media_type: str, *, retry_after_s: int) -> Response:
    headers = {}
    status = error.status
    if isinstance(error, Conflict):
        status = _UNAVAILABLE  # two requests at once: sent again, it will do
    if isinstance(error, (Conflict, Unavailable)):
        wait_s = error.retry_after_s if isinstance(error, RateLimited) else None
        headers["Retry-After"] = str(wait_s or retry_after_s)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if error.field == "Content-Encoding":
        status = 415
    # exporters log what they are answered, and a body may hold prompts
    said = error.unquoted() if isinstance(error, TraceError) else str(error)
    return failure(status, said, media_type, headers)
