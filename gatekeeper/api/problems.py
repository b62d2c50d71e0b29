"""Every error as RFC 9457 problem+json with field, value and remedy."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

import structlog
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gatekeeper.core.documents import check_json
from gatekeeper.errors import (
    GatekeeperError,
    RateLimited,
    TraceError,
    Unauthorized,
    Unavailable,
)

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from gatekeeper.api.services import Services

__all__ = ["RESPONSES", "install", "problem"]

MEDIA_TYPE = "application/problem+json"
_MAX_VALUE = 500

_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": ["string", "null"]},
        "value": {},
        "remedy": {"type": ["string", "null"]},
    },
}

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA}}}
    for status, text in (
        (400, "The request cannot be read"),
        (401, "No token, or one that is unknown, expired or revoked"),
        (403, "The token's role does not allow this"),
        (404, "No such object"),
        (409, "It contradicts what is stored"),
        (422, "The data are wrong"),
        (429, "The token makes too many requests: try again after Retry-After"),
        (503, "Something needed is missing or busy"),
    )
}
"""What every endpoint may answer besides its own success, for the OpenAPI document."""

_log = structlog.get_logger()


def problem(
    status: int,
    title: str,
    detail: str,
    *,
    field: str | None = None,
    value: object = None,
    remedy: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Make a problem response."""
    body = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": _utf8(detail),
        "field": _utf8(field) if field is not None else None,
        "value": _shown(value),
        "remedy": remedy,
    }
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _shown(value: object) -> object:
    """Return the value if it is short JSON, else a cut of its text."""
    try:
        text = json.dumps(value, allow_nan=False)
        check_json(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
        return text[:_MAX_VALUE]
    return value if len(text) <= _MAX_VALUE else text[:_MAX_VALUE]


async def _on_gatekeeper_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, GatekeeperError):
        raise error
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else None
    if isinstance(error, Unavailable):
        services: Services = request.app.state.services
        wait_s = error.retry_after_s if isinstance(error, RateLimited) else None
        headers = {"Retry-After": str(wait_s or services.ingest.limits.retry_after_s)}
    return problem(
        error.status,
        error.title,
        error.message,
        field=error.field,
        value=None if isinstance(error, TraceError) else error.value,  # may be a prompt
        remedy=error.remedy,
        headers=headers,
    )


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    place, *path = [str(part) for part in first["loc"]]
    unreadable = first["type"] == "json_invalid"
    unknown = first["type"] == "extra_forbidden"
    return problem(
        400 if unreadable else 422,
        "Unknown key" if unknown else "Invalid input",
        "is not known here" if unknown else first["msg"],
        field=".".join(path) if path and not unreadable else place,
        value=None if unreadable or first["type"] == "missing" else first.get("input"),
        remedy=f"correct the {place}; see /openapi.json",
    )


async def _on_http_error(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    return problem(
        error.status_code,
        str(error.detail),
        str(error.detail),
        remedy="see /openapi.json",
        headers=dict(error.headers or {}),
    )


async def _on_defect(request: Request, error: Exception) -> JSONResponse:
    # As text: a renderer of its own would print local variables, and with them secrets.
    trace = "".join(traceback.format_exception(error))
    _log.error("defect", path=request.url.path, error=repr(error), exception=trace)
    return problem(
        500,
        "Internal error",
        "gatekeeper has a defect; nothing of this request was stored",
        remedy="report it with the server's log",
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem."""
    app.add_exception_handler(GatekeeperError, _on_gatekeeper_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_defect)
