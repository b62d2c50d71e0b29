"""OpenFeature Remote Evaluation Protocol 0.3, one flag at a time: the key is the route's name.

The value says whether to decode speculatively. A bypass is an answer like any other: 200 with
the value false, never an error, since an error would leave the choice to the client's default.
"""

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from gatekeeper.actions import decide
from gatekeeper.api import problems
from gatekeeper.api.services import Reader, Using
from gatekeeper.core.bypass import ENABLE, RequestContext
from gatekeeper.errors import InputError, NotFound

router = APIRouter(prefix="/ofrep/v1", tags=["OFREP"])

_KEY, _TARGETING_KEY = "targeting_key", "targetingKey"
_FACTS = tuple(name for name in RequestContext.__dataclass_fields__ if name != _KEY)


def _failure(status: int, key: str, code: str, details: str) -> JSONResponse:
    body = {"key": key, "errorCode": code, "errorDetails": details}
    return JSONResponse(body, status_code=status)


_ERROR_SCHEMA = {
    "type": "object",
    "required": ["key", "errorCode", "errorDetails"],
    "properties": {
        "key": {"type": "string"},
        "errorCode": {"type": "string"},
        "errorDetails": {"type": "string"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **problems.RESPONSES,
    400: {
        "description": "PARSE_ERROR or INVALID_CONTEXT",
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    },
    404: {
        "description": "FLAG_NOT_FOUND",
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    },
}


@router.post(
    "/evaluate/flags/{key}",
    responses=_RESPONSES,
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"context": {"type": "object"}}}
                }
            }
        }
    },
)
async def evaluate(key: str, request: Request, services: Using, _actor: Reader) -> JSONResponse:
    """Evaluate one flag. Context keys that no rule reads are the application's own, and ignored."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        return _failure(400, key, "PARSE_ERROR", f"the body is not JSON: {error}")
    context = body.get("context", {}) if isinstance(body, dict) else None
    if not isinstance(context, dict):
        return _failure(400, key, "INVALID_CONTEXT", "context is not an object")
    facts = {name: context[name] for name in _FACTS if context.get(name) is not None}
    aimed = {} if context.get(_TARGETING_KEY) is None else {_KEY: context[_TARGETING_KEY]}
    try:
        lease, answer = await run_in_threadpool(decide.answer, services.db, key, facts | aimed)
    except NotFound as error:
        return _failure(404, key, "FLAG_NOT_FOUND", str(error))
    except InputError as error:
        return _failure(400, key, "INVALID_CONTEXT", str(error))
    services.metrics.decisions.labels(lease.route, answer.action, answer.reason).inc()
    metadata: dict[str, Any] = {
        "gamma": answer.gamma,
        "reason": answer.reason,
        "explanation": answer.explanation,
        "artifact": lease.artifact or "",
        "epoch": lease.version[0],
        "counter": lease.version[1],
        "ttl_s": float(lease.ttl_s),
        "max_stale_s": float(lease.max_stale_s),
    }
    if lease.evidence_expires_at is not None:
        metadata["evidence_expires_at"] = lease.evidence_expires_at.isoformat()
    if answer.arm is not None:
        metadata["arm"] = answer.arm
    enabled = answer.action == ENABLE
    why = "TARGETING_MATCH" if facts else "STATIC"
    return JSONResponse(
        {
            "key": key,
            "value": enabled,
            "reason": "SPLIT" if lease.partial and answer.arm is not None else why,
            "variant": f"gamma-{answer.gamma}" if enabled else "ordinary",
            "metadata": metadata,
        }
    )
