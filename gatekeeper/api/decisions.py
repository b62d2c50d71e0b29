"""Decisions and overrides."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from gatekeeper.actions import decide, overrides
from gatekeeper.actions.identity import within
from gatekeeper.actions.snapshots import with_request
from gatekeeper.api import problems
from gatekeeper.api.models import ContextBody, OverrideBody
from gatekeeper.api.polling import (
    PRIVATE,
    UNSTORED,
    Poller,
    current,
    matches,
    scope_of,
    still_good,
    token_of,
    visible,
)
from gatekeeper.api.runs import IdempotencyKey
from gatekeeper.api.services import (
    After,
    Limit,
    Reader,
    RouteOperator,
    RouteReader,
    ScopedOperator,
    Using,
    page,
)
from gatekeeper.api.stream import EventStream, parse_event_id
from gatekeeper.api.views import plain_view
from gatekeeper.core import bypass
from gatekeeper.core.bypass import RequestContext
from gatekeeper.errors import InputError

JSON = "application/json"

router = APIRouter(prefix="/v1", tags=["decisions"])


Context = Annotated[ContextBody, Query()]


@router.get("/routes/{route}/decision")
async def decision(route: str, services: Using, actor: Poller) -> Response:
    """Return the route's lease: what holds for every request until it lapses.

    Where an enable is for some targeting keys only, its top says what holds without one, a bypass, and
    ``rollout.enable`` what holds for the keys that are in.
    """
    within(actor, route)
    handed = (await current(services)).of(route)
    services.metrics.decisions.labels(route, handed.lease.action, handed.lease.reason).inc()
    return Response(handed.document, media_type=JSON, headers=UNSTORED)


@router.post("/routes/{route}/decision")
async def decide_request(route: str, body: ContextBody, services: Using, actor: Poller) -> Response:
    """Return the lease, with ``request``: the answer for one request with this context."""
    within(actor, route)
    handed = (await current(services)).of(route)
    answer = bypass.decide_request(handed.lease, _context(body))
    services.metrics.decisions.labels(route, answer.action, answer.reason).inc()
    return Response(with_request(handed, answer), media_type=JSON, headers=UNSTORED)


def _context(body: ContextBody) -> RequestContext:
    return RequestContext(**body.model_dump())


@router.get("/decisions")
def history(
    services: Using,
    _actor: RouteReader,
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
async def snapshot(
    context: Context,
    services: Using,
    actor: Poller,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return every route's lease at once; given a context, each with its answer to it.

    The ETag is one of the version, the lifetimes, the context and the routes that the token is for.
    """
    found = (await current(services)).within(visible(actor))
    facts = _context(context)
    asked = None if facts == RequestContext() else facts
    etag = found.etag(asked, scope_of(actor))
    headers = {"ETag": etag, **PRIVATE}
    if matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    return Response(found.body(asked), media_type=JSON, headers=headers)


@router.get(
    "/decisions/stream",
    status_code=200,  # told, since a class of responses with a constructor of its own does not say it
    response_class=EventStream,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        429: problems.RESPONSES[429]
        | {"description": "As many streams as there may be, or too many requests of the token"},
    },
)
async def stream(
    request: Request,
    services: Using,
    actor: Poller,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Stream leases as they change, and every few seconds that nothing has.

    An event's id is its version. ``leases`` brings all of them (``complete``) or those that are new;
    ``confirm`` says that what was sent holds: its time begins again. ``Last-Event-ID`` resumes.
    """
    services.feed.enter()
    return EventStream(
        services.feed,
        allowed=partial(still_good, services, token_of(request)),
        routes=visible(actor),
        last=parse_event_id(last_event_id),
    )


@router.post("/overrides", status_code=201)
def override(
    body: OverrideBody,
    services: Using,
    actor: ScopedOperator,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Override a route for a while; enabling against the gates takes an admin."""
    within(actor, body.route)
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
def clear(route: str, services: Using, actor: RouteOperator) -> dict[str, Any]:
    """End a route's overrides; the gates decide again."""
    records = overrides.clear_override(services.db, actor, route)
    return {"items": [plain_view(r) for r in records], "next": None}
