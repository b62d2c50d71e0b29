"""Webhooks: who is told of decisions, and what became of each notice."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from gatekeeper.actions import webhooks
from gatekeeper.api.models import Body, Name
from gatekeeper.api.services import Admin, After, Limit, Operator, Using, page
from gatekeeper.api.views import plain_view
from gatekeeper.core.addresses import without_secrets
from gatekeeper.errors import InputError
from gatekeeper.store.webhooks import DeliveryRecord, WebhookRecord

router = APIRouter(prefix="/v1", tags=["webhooks"])


class WebhookBody(Body):
    """A subscription; no ``routes`` means every route."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=2_000, pattern=r"^[^\x00]+$")]
    routes: Annotated[list[Name], Field(min_length=1, max_length=1_000)] | None = None


class RedeliverBody(Body):
    """What to deliver again; no ``event`` means all that are dead."""

    event: Name | None = None


@router.post("/webhooks", status_code=201)
def add(body: WebhookBody, services: Using, actor: Admin) -> dict[str, Any]:
    """Subscribe a URL to decisions; the signing secret is in this answer and nowhere else."""
    record, secret = webhooks.add_webhook(
        services.db, actor, services.webhooks, url=body.url, routes=body.routes
    )
    return {**_view(record), "secret": secret}


@router.get("/webhooks")
def listing(
    services: Using, _actor: Operator, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List subscriptions with how many of their notices are pending, delivered and dead."""
    found = webhooks.list_webhooks(services.db, after=after, limit=limit)
    items = [{**_view(one.record), "events": one.events} for one in found]
    return page(items, limit, "id")


@router.delete("/webhooks/{webhook_id}")
def remove(webhook_id: str, services: Using, actor: Admin) -> dict[str, Any]:
    """End a subscription; what is not delivered yet is dropped."""
    return _view(webhooks.remove_webhook(services.db, actor, webhook_id))


@router.get("/webhooks/{webhook_id}/events")
def events(
    webhook_id: str,
    services: Using,
    _actor: Operator,
    *,
    limit: Limit = 100,
    after: After = None,
    state: Annotated[Literal["pending", "delivered", "dead"] | None, Query()] = None,
) -> dict[str, Any]:
    """List what became of a subscription's notices, newest first."""
    if after is not None and not after.isdecimal():
        raise InputError("is not a cursor", field="after", value=after, remedy="use `next`")
    start = None if after is None else min(int(after), 2**62)
    records = webhooks.list_deliveries(
        services.db, webhook_id, state=state, after=start, limit=limit
    )
    return page([_event(record) for record in records], limit, "id")


@router.post("/webhooks/{webhook_id}/redeliver")
def redeliver(
    webhook_id: str, body: RedeliverBody, services: Using, actor: Operator
) -> dict[str, Any]:
    """Deliver again: every dead notice, or the one named, from its first try."""
    records = webhooks.redeliver(services.db, actor, webhook_id, event=body.event)
    return {"items": [_event(record) for record in records], "next": None}


def _view(record: WebhookRecord) -> dict[str, Any]:
    view = plain_view(record)
    del view["key_mark"]
    view["url"] = without_secrets(record.url)
    return view


def _event(record: DeliveryRecord) -> dict[str, Any]:
    view = plain_view(record)
    for inner in ("body", "claimed_until", "webhook"):
        del view[inner]
    return view
