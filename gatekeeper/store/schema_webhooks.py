"""Tables of the webhooks: who is told, and the outbox of what is still to be told."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from gatekeeper.store.columns import NAME, Json, Serial, metadata

__all__ = ["webhook", "webhook_delivery"]

webhook = Table(
    "webhooks",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("url", Text, nullable=False),
    # Null is every route.
    Column("routes", Json),
    # Which server key its secret is derived from; the secret itself is stored nowhere.
    Column("key_mark", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", NAME, nullable=False),
)

webhook_delivery = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("webhook", String(40), ForeignKey("webhooks.id"), nullable=False),
    Column("event", String(100), nullable=False),
    Column("route", NAME, nullable=False),
    # As it is sent, byte for byte, on every try.
    Column("body", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("claimed_until", Double),
    Column("status", Integer),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    CheckConstraint("state IN ('pending','delivered','dead')", name="known_state"),
    UniqueConstraint("webhook", "event"),
    Index(None, "state", "next_at"),
)
