"""OpenFeature Remote Evaluation Protocol 0.3: a flag's key is a route's name.

The value says whether to decode speculatively. A bypass is an answer like any other: 200 with
the value false, never an error, since an error would leave the choice to the client's default.
"""

import hashlib
import json
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from gatekeeper.actions.identity import within
from gatekeeper.actions.snapshots import Handed
from gatekeeper.api import problems
from gatekeeper.api.polling import (
    PRIVATE,
    UNSTORED,
    Poller,
    current,
    matches,
    scope_of,
    visible,
)
from gatekeeper.api.services import Using
from gatekeeper.core.bypass import ENABLE, RequestContext, RequestDecision, decide_request
from gatekeeper.errors import InputError, NotFound, Unavailable

router = APIRouter(prefix="/ofrep/v1", tags=["OFREP"])

_KEY, _TARGETING_KEY = "targeting_key", "targetingKey"
_FACTS = tuple(name for name in RequestContext.__dataclass_fields__ if name != _KEY)


class _Refused(Exception):
    """What the protocol calls an evaluation failure."""

    def __init__(self, code: str, details: str, status: int = 400) -> None:
        super().__init__(code, details)
        self.code, self.details, self.status = code, details, status

    def response(self, key: str | None) -> JSONResponse:
        """Return it in the protocol's form; a bulk failure has no key."""
        body = {"errorCode": self.code, "errorDetails": self.details}
        headers = {"Retry-After": "1"} if self.status == Unavailable.status else None
        named = body if key is None else {"key": key, **body}
        return JSONResponse(named, status_code=self.status, headers=headers)


def _schema(*required: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in required}
    return {"type": "object", "required": list(required), "properties": properties}


def _responses(*required: str) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": _schema(*required)}}
    return {
        **problems.RESPONSES,
        400: {
            "description": "PARSE_ERROR or INVALID_CONTEXT",
            "content": content,
        },
        404: {"description": "FLAG_NOT_FOUND", "content": content},
        503: {
            "description": "GENERAL",
            "content": {**content, **problems.RESPONSES[503]["content"]},
        },
    }


_BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"context": {"type": "object"}}}
            }
        }
    }
}


@router.post(
    "/evaluate/flags/{key}",
    responses=_responses("key", "errorCode", "errorDetails"),
    openapi_extra=_BODY,
)
async def evaluate(key: str, request: Request, services: Using, actor: Poller) -> JSONResponse:
    """Evaluate one flag. Context keys that no rule reads are the application's own, and ignored."""
    within(actor, key)
    try:
        _, facts = await _context(request)
        handed = (await current(services)).of(key)
    except _Refused as refused:
        return refused.response(key)
    except NotFound as error:
        return _Refused("FLAG_NOT_FOUND", str(error), 404).response(key)
    except Unavailable as error:
        return _Refused("GENERAL", str(error), error.status).response(key)
    answer = decide_request(handed.lease, facts)
    services.metrics.decisions.labels(key, answer.action, answer.reason).inc()
    return JSONResponse(_evaluation(handed, answer, facts), headers=UNSTORED)


@router.post(
    "/evaluate/flags",
    responses={
        **_responses("errorCode", "errorDetails"),
        304: {"description": "Nothing has changed for this context since that ETag"},
    },
    openapi_extra=_BODY,
)
async def evaluate_all(
    request: Request,
    services: Using,
    actor: Poller,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Evaluate every flag for one context.

    The ETag is one of the version, the lifetimes, the whole context and the token's routes.
    """
    try:
        context, facts = await _context(request)
        found = (await current(services)).within(visible(actor))
    except _Refused as refused:
        return refused.response(None)
    except Unavailable as error:
        return _Refused("GENERAL", str(error), error.status).response(None)
    digest = hashlib.sha256(json.dumps(context, sort_keys=True).encode()).hexdigest()
    etag = found.etag(facts, f"ofrep {digest} {scope_of(actor)}")
    headers = {"ETag": etag, **PRIVATE}
    if matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    flags = [
        _evaluation(handed, decide_request(handed.lease, facts), facts)
        for handed in found.handed.values()
    ]
    metadata = {"epoch": found.version.epoch, "counter": found.version.counter}
    return JSONResponse({"flags": flags, "metadata": metadata}, headers=headers)


async def _context(request: Request) -> tuple[dict[str, Any], RequestContext]:
    """Return the whole context, and what rules read of it."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise _Refused("PARSE_ERROR", f"the body is not JSON: {error}") from error
    context = body.get("context", {}) if isinstance(body, dict) else None
    if not isinstance(context, dict):
        raise _Refused("INVALID_CONTEXT", "context is not an object")
    facts = {name: context[name] for name in _FACTS if context.get(name) is not None}
    # Without a key there is no arm: a bypass where not every key is in, and never an error.
    aimed = {} if context.get(_TARGETING_KEY) is None else {_KEY: context[_TARGETING_KEY]}
    try:
        return context, RequestContext.from_dict(facts | aimed)
    except InputError as error:
        raise _Refused("INVALID_CONTEXT", str(error)) from error


def _evaluation(handed: Handed, answer: RequestDecision, facts: RequestContext) -> dict[str, Any]:
    lease = handed.lease
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
    why = "STATIC" if replace(facts, targeting_key=None) == RequestContext() else "TARGETING_MATCH"
    return {
        "key": lease.route,
        "value": enabled,
        "reason": "SPLIT" if lease.partial and answer.arm is not None else why,
        "variant": f"gamma-{answer.gamma}" if enabled else "ordinary",
        "metadata": metadata,
    }
