"""Subscriptions to decisions: made, listed, removed, and told of each change in its transaction."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gatekeeper.actions.identity import Actor, new_id
from gatekeeper.core.lease import Lease
from gatekeeper.core.webhooks import Network, check_target, key_mark, secret_of
from gatekeeper.errors import Conflict, InputError, NotFound, Unavailable
from gatekeeper.store import access, catalog
from gatekeeper.store import webhooks as store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import DecisionRecord
    from gatekeeper.store.webhooks import DeliveryRecord, WebhookRecord

__all__ = [
    "Listed",
    "WebhookSettings",
    "add_webhook",
    "count_by_state",
    "list_deliveries",
    "list_webhooks",
    "load_key",
    "redeliver",
    "remove_webhook",
    "tell",
]

MOST = 100
"""Subscriptions of one server: each makes every decision one row longer."""

_MIN_KEY = 32
_KEY_FILE = "webhook.key"


@dataclass(frozen=True)
class WebhookSettings:
    """This server's key, which all secrets are derived from, and networks beside the public ones.

    Without a key nothing can be subscribed, and nothing is delivered.
    """

    key: bytes | None = None
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True)
class Listed:
    """A subscription and how many of its events are in each state."""

    record: WebhookRecord
    events: dict[str, int]


def load_key(given: str | None, home: Path, *, shared: bool) -> bytes | None:
    """Return the server's key: the one given, else that of the home, made at the first start.

    A database that several servers share needs a key that they share, too: None where it has none.

    Raises:
        InputError: the given key is too short to be one.
        Unavailable: the home's key cannot be read or made.
    """
    if given is not None:
        if len(given.encode()) < _MIN_KEY:
            raise InputError(
                f"has fewer than {_MIN_KEY} bytes",
                field="GATEKEEPER_WEBHOOK_KEY",
                remedy="use what openssl rand -hex 32 prints, the same on every server",
            )
        return given.encode()
    if shared:
        return None
    path = home / _KEY_FILE
    try:
        if not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_hex(32) + "\n")
        text = path.read_text().strip()
    except OSError as error:
        raise Unavailable(
            f"cannot be read ({error.strerror})",
            field="webhook key",
            value=str(path),
            remedy="make it readable, or set GATEKEEPER_WEBHOOK_KEY",
        ) from error
    if len(text) < _MIN_KEY:
        raise Unavailable(
            "holds no key",
            field="webhook key",
            value=str(path),
            remedy="remove it: the next start makes a new one, and webhooks have to be added again",
        )
    return text.encode()


def add_webhook(
    db: Database,
    actor: Actor,
    settings: WebhookSettings,
    *,
    url: str,
    routes: Sequence[str] | None,
) -> tuple[WebhookRecord, str]:
    """Subscribe a URL to decisions; the second part is the secret, which is shown this once.

    Raises:
        Unavailable: this server has no key to sign with.
        InputError: the URL may not be a target, or a route is none.
        Conflict: there are as many subscriptions as there may be.
    """
    if settings.key is None:
        raise Unavailable(
            "is not set, and servers that share a database need the same",
            field="GATEKEEPER_WEBHOOK_KEY",
            remedy="set it on every server to what openssl rand -hex 32 prints once",
        )
    check_target(url, settings.networks)
    with db.write() as session:
        if store.count(session) >= MOST:
            raise Conflict(
                f"are {MOST} already", field="webhooks", remedy="remove one that is not needed"
            )
        for route in routes or ():
            if catalog.route(session, route) is None:
                raise NotFound(
                    "is not a route", field="route", value=route, remedy="see gatekeeper route list"
                )
        chosen = sorted(set(routes)) if routes else None
        identity = new_id(session)
        record = store.add(
            session,
            store.WebhookRecord(identity, url, chosen, key_mark(settings.key), 0.0, actor.name),
        )
        access.audit(
            session,
            actor=actor,
            action="webhook.add",
            target=record.id,
            detail={"routes": chosen},
        )
    return record, secret_of(settings.key, record.id)


def list_webhooks(db: Database, *, after: str | None, limit: int) -> list[Listed]:
    """Page of subscriptions with the states of their events."""
    with db.read() as session:
        records = store.listing(session, after=after, limit=limit)
        counted = store.counts(session, [record.id for record in records])
    return [Listed(record, counted.get(record.id, {})) for record in records]


def count_by_state(db: Database) -> dict[str, int]:
    """Number of notices in each state, zero where there is none."""
    with db.read() as session:
        counted = store.counts(session).values()
    states = (store.PENDING, store.DELIVERED, store.DEAD)
    return {state: sum(one.get(state, 0) for one in counted) for state in states}


def remove_webhook(db: Database, actor: Actor, webhook_id: str) -> WebhookRecord:
    """End a subscription; events that were not delivered are dropped.

    Raises:
        NotFound: no subscription has this id.
    """
    with db.write() as session:
        record = _known(session, webhook_id)
        dropped = store.remove(session, webhook_id)
        access.audit(
            session,
            actor=actor,
            action="webhook.remove",
            target=webhook_id,
            detail={"events": dropped},
        )
    return record


def list_deliveries(
    db: Database, webhook_id: str, *, state: str | None, after: int | None, limit: int
) -> list[DeliveryRecord]:
    """Page of a subscription's events, newest first.

    Raises:
        NotFound: no subscription has this id.
    """
    with db.read() as session:
        _known(session, webhook_id)
        return store.deliveries(session, webhook_id, state=state, after=after, limit=limit)


def redeliver(
    db: Database, actor: Actor, webhook_id: str, *, event: str | None
) -> list[DeliveryRecord]:
    """Deliver again: every dead event, or the one named.

    Raises:
        NotFound: no such subscription, or no such event that has ended.
    """
    with db.write() as session:
        _known(session, webhook_id)
        queued = store.queue_again(session, webhook_id, event=event)
        if event is not None and not queued:
            raise NotFound(
                "is not an event of this webhook that has ended",
                field="event",
                value=event,
                remedy="see gatekeeper webhook list --events",
            )
        access.audit(
            session,
            actor=actor,
            action="webhook.redeliver",
            target=webhook_id,
            detail={"events": [record.event for record in queued][:MOST]},
        )
    return queued


def tell(session: Session, record: DecisionRecord, before: DecisionRecord | None) -> None:
    """Put a decision into the outbox, in the transaction that makes it.

    The event's id is the decision's version: the same on every try, to every subscriber.
    """
    previous: dict[str, object] | None = None
    if before is not None:
        version = [before.epoch, before.counter]
        previous = {"action": before.action, "reason": before.reason, "version": version}
    notice = {
        "type": "decision.changed",
        "timestamp": datetime.fromtimestamp(record.decided_at, UTC).isoformat(),
        "data": {"decision": Lease.from_dict(record.document).to_wire(), "previous": previous},
    }
    body = json.dumps(notice, allow_nan=False, separators=(",", ":"))
    event = f"decision_{record.epoch}_{record.counter}"
    store.enqueue(session, route=record.route, event=event, body=body)


def _known(session: Session, webhook_id: str) -> WebhookRecord:
    record = store.get(session, webhook_id)
    if record is None:
        raise NotFound(
            "is not a webhook's id", field="id", value=webhook_id, remedy="see webhook list"
        )
    return record
