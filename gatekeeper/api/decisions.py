"""Decisions and overrides."""

import hashlib
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse

from gatekeeper.actions import decide, overrides
from gatekeeper.api.models import ContextBody, OverrideBody
from gatekeeper.api.runs import IdempotencyKey
from gatekeeper.api.services import After, Limit, Operator, Reader, Using, page
from gatekeeper.api.views import plain_view
from gatekeeper.errors import InputError

router = APIRouter(prefix="/v1", tags=["decisions"])


@router.get("/routes/{route}/decision")
def decision(route: str, services: Using, _actor: Reader) -> dict[str, Any]:
    """Return the route's lease: what holds for every request until it lapses.

    Where an enable is for some targeting keys only, its top says what holds without one, a bypass, and
    ``rollout.enable`` what holds for the keys that are in.
    """
    lease = decide.current_lease(services.db, route)
    services.metrics.decisions.labels(route, lease.action, lease.reason).inc()
    return lease.to_wire()


@router.post("/routes/{route}/decision")
def decide_request(
    route: str, body: ContextBody, services: Using, _actor: Reader
) -> dict[str, Any]:
    """Return the lease, with ``request``: the answer for one request with this context."""
    lease, answer = decide.answer(services.db, route, body.model_dump(exclude_none=True))
    services.metrics.decisions.labels(route, answer.action, answer.reason).inc()
    return {**lease.to_wire(), "request": {**asdict(answer), "unchecked": list(answer.unchecked)}}


@router.get("/decisions")
def history(
    services: Using,
    _actor: Reader,
    limit: Limit = 100,
    after: After = None,
    route: str | None = None,
) -> dict[str, Any]:
    """List past decisions, newest first."""
    if after is not None and not after.isdecimal():
        raise InputError("is not a cursor", field="after", value=after, remedy="use `next`")
    start = None if after is None else min(int(after), 2**62)
    records = decide.history(services.db, route=route, after=start, limit=limit)
    return page([plain_view(r) for r in records], limit, "id")


@router.get(
    "/decisions/snapshot", responses={304: {"description": "Nothing has changed since that ETag"}}
)
def snapshot(
    services: Using, _actor: Reader, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Return every route's lease at once; the ETag changes with the version.

    It also changes with the lifetimes: a lease cut short, because time is about to change its
    decision, must reach clients as such and never be taken for the longer one they hold.
    """
    version, leases = decide.snapshot(services.db)
    lasting = [(lease.route, lease.ttl_s, lease.max_stale_s) for lease in leases]
    content = f"{version.epoch}.{version.counter}:{lasting}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    etag = f'"{digest[:32]}"'
    if if_none_match == etag:
        return Response(status_code=304, headers={"ETag": etag})
    body = {
        "version": [version.epoch, version.counter],
        "items": [lease.to_wire() for lease in leases],
    }
    return JSONResponse(body, headers={"ETag": etag})


@router.post("/overrides", status_code=201)
def override(
    body: OverrideBody, services: Using, actor: Operator, idempotency_key: IdempotencyKey = None
) -> dict[str, Any]:
    """Override a route for a while; enabling against the gates takes an admin."""
    record = overrides.set_override(
        services.db,
        actor,
        route=body.route,
        action=body.action,
        reason=body.reason,
        ttl_s=body.ttl_s,
        gamma=body.gamma,
        idempotency_key=idempotency_key,
    )
    return plain_view(record)


@router.get("/overrides")
def list_overrides(
    services: Using, _actor: Reader, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List overrides, newest first, ended ones included."""
    records = overrides.list_overrides(services.db, after=after, limit=limit)
    return page([plain_view(r) for r in records], limit, "id")


@router.delete("/overrides/{route}")
def clear(route: str, services: Using, actor: Operator) -> dict[str, Any]:
    """End a route's overrides; the gates decide again."""
    records = overrides.clear_override(services.db, actor, route)
    return {"items": [plain_view(r) for r in records], "next": None}
