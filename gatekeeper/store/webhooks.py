"""Subscriptions and their outbox. A try belongs to whoever claimed it last: its number is the fence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, or_, select, update

from gatekeeper.store.database import Session, clock
from gatekeeper.store.rows import page
from gatekeeper.store.schema_webhooks import webhook as table
from gatekeeper.store.schema_webhooks import webhook_delivery as outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DEAD",
    "DELIVERED",
    "PENDING",
    "DeliveryRecord",
    "WebhookRecord",
    "add",
    "claim",
    "count",
    "counts",
    "deliveries",
    "enqueue",
    "get",
    "is_due",
    "listing",
    "prune",
    "queue_again",
    "remove",
    "settle",
]

PENDING, DELIVERED, DEAD = "pending", "delivered", "dead"

_EACH = 4
"""Claims of one subscription at a time: a receiver that hangs must not hold up the others."""


@dataclass(frozen=True)
class WebhookRecord:
    """A subscription: ``routes`` None is every route."""

    id: str
    url: str
    routes: list[str] | None
    key_mark: str
    created_at: float
    created_by: str


@dataclass(frozen=True)
class DeliveryRecord:
    """One event for one subscription: ``status`` and ``error`` are those of the last try."""

    id: int
    webhook: str
    event: str
    route: str
    body: str
    state: str
    attempt: int
    next_at: float
    claimed_until: float | None
    status: int | None
    error: str | None
    created_at: float
    ended_at: float | None


def add(session: Session, record: WebhookRecord) -> WebhookRecord:
    """Store a subscription."""
    statement = table.insert().values({**asdict(record), "created_at": clock()}).returning(table)
    return WebhookRecord(**session.execute(statement).mappings().one())


def get(session: Session, webhook_id: str) -> WebhookRecord | None:
    """Subscription by id."""
    row = session.execute(select(table).where(table.c.id == webhook_id)).mappings().one_or_none()
    return None if row is None else WebhookRecord(**row)


def listing(session: Session, *, after: str | None, limit: int) -> list[WebhookRecord]:
    """Page of subscriptions by id."""
    return [
        WebhookRecord(**row) for row in page(session, table, table.c.id, after=after, limit=limit)
    ]


def count(session: Session) -> int:
    """Number of subscriptions."""
    return int(session.execute(select(func.count()).select_from(table)).scalar_one())


def remove(session: Session, webhook_id: str) -> int:
    """Remove a subscription and its outbox; return how many events that held."""
    gone = session.execute(delete(outbox).where(outbox.c.webhook == webhook_id))
    session.execute(delete(table).where(table.c.id == webhook_id))
    return int(gone.rowcount)


def enqueue(session: Session, *, route: str, event: str, body: str) -> int:
    """Put an event into the outbox of every subscription to its route; return how many those are."""
    rows = session.execute(select(table.c.id, table.c.routes)).all()
    told = [row.id for row in rows if row.routes is None or route in row.routes]
    for webhook_id in told:
        session.execute(
            outbox.insert().values(
                webhook=webhook_id,
                event=event,
                route=route,
                body=body,
                state=PENDING,
                attempt=0,
                next_at=clock(),
                created_at=clock(),
            )
        )
    return len(told)


def is_due(session: Session) -> bool:
    """Whether some event waits for a try now."""
    query = select(outbox.c.id).where(outbox.c.state == PENDING, outbox.c.next_at <= clock())
    return session.execute(query.limit(1)).first() is not None


def claim(session: Session, key_mark: str, *, lease_s: float, most: int) -> list[DeliveryRecord]:
    """Begin a try of each event that is due and nobody else's; who does not settle it loses it."""
    due = (
        outbox.c.state == PENDING,
        outbox.c.next_at <= clock(),
        or_(outbox.c.claimed_until.is_(None), outbox.c.claimed_until < clock()),
    )
    place = func.row_number().over(partition_by=outbox.c.webhook, order_by=outbox.c.next_at)
    ranked = (
        select(outbox.c.id, place.label("place"))
        .join(table, table.c.id == outbox.c.webhook)
        .where(*due, table.c.key_mark == key_mark)
        .subquery()
    )
    picked = (
        select(outbox.c.id)
        .where(outbox.c.id.in_(select(ranked.c.id).where(ranked.c.place <= _EACH)), *due)
        .order_by(outbox.c.next_at)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(outbox)
        .where(outbox.c.id.in_(picked))
        .values(attempt=outbox.c.attempt + 1, claimed_until=clock() + lease_s)
        .returning(outbox)
    )
    return [DeliveryRecord(**row) for row in session.execute(statement).mappings()]


def settle(
    session: Session,
    record: DeliveryRecord,
    *,
    state: str,
    wait_s: float,
    status: int | None,
    error: str | None,
) -> bool:
    """Write down how a claimed try ended; False where somebody else has the event by now."""
    statement = (
        update(outbox)
        .where(
            outbox.c.id == record.id,
            outbox.c.attempt == record.attempt,
            outbox.c.state == PENDING,
        )
        .values(
            state=state,
            next_at=clock() + wait_s,
            claimed_until=None,
            status=status,
            error=error,
            ended_at=None if state == PENDING else clock(),
        )
    )
    return bool(session.execute(statement).rowcount)


def deliveries(
    session: Session,
    webhook_id: str,
    *,
    state: str | None,
    after: int | None,
    limit: int,
) -> list[DeliveryRecord]:
    """Page of a subscription's events, newest first."""
    where = [outbox.c.webhook == webhook_id]
    if state is not None:
        where.append(outbox.c.state == state)
    rows = page(
        session, outbox, outbox.c.id, after=after, limit=limit, where=where, newest_first=True
    )
    return [DeliveryRecord(**row) for row in rows]


def counts(session: Session, webhooks: Sequence[str] | None = None) -> dict[str, dict[str, int]]:
    """Number of events by subscription and state."""
    query = select(outbox.c.webhook, outbox.c.state, func.count().label("events")).group_by(
        outbox.c.webhook, outbox.c.state
    )
    if webhooks is not None:
        query = query.where(outbox.c.webhook.in_(webhooks))
    found: dict[str, dict[str, int]] = {}
    for row in session.execute(query):
        found.setdefault(row.webhook, {})[row.state] = int(row.events)
    return found


def queue_again(session: Session, webhook_id: str, *, event: str | None) -> list[DeliveryRecord]:
    """Make the dead events of a subscription, or one that has ended, due now, from the first try."""
    ended = (outbox.c.state == DEAD) if event is None else (outbox.c.event == event)
    statement = (
        update(outbox)
        .where(outbox.c.webhook == webhook_id, ended, outbox.c.state != PENDING)
        .values(state=PENDING, attempt=0, next_at=clock(), claimed_until=None, ended_at=None)
        .returning(outbox)
    )
    return [DeliveryRecord(**row) for row in session.execute(statement).mappings()]


def prune(session: Session, *, delivered_s: float, dead_s: float) -> int:
    """Remove events that ended longer ago than this; return how many."""
    statement = delete(outbox).where(
        or_(
            (outbox.c.state == DELIVERED) & (outbox.c.ended_at < clock() - delivered_s),
            (outbox.c.state == DEAD) & (outbox.c.ended_at < clock() - dead_s),
        )
    )
    return int(session.execute(statement).rowcount)
