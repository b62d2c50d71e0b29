"""Tables of the live watch: who looks, what was counted, and which alarms were raised."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from gatekeeper.store.columns import NAME, SHA256, Json, Serial, metadata

__all__ = ["alarm", "live_rounds", "watch"]

watch = Table(
    "watches",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    Column("artifact", SHA256, nullable=False),
    Column("source", NAME, nullable=False),
    Column("kind", String(20), nullable=False),
    # Seconds in which the next look is promised; null where nobody promises one.
    Column("interval_s", Double),
    Column("outcome", String(20), nullable=False),
    Column("findings", Json, nullable=False),
    # What the judgement remembers between two looks.
    Column("state", Json, nullable=False),
    Column("looks", BigInteger, nullable=False),
    Column("last_key", NAME),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    CheckConstraint("kind IN ('engine','rounds')", name="known_kind"),
    UniqueConstraint("route", "artifact", "source", "kind"),
)

live_rounds = Table(
    "live_rounds",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("idempotency_key", NAME, nullable=False, unique=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    Column("artifact", SHA256, nullable=False),
    Column("source", NAME, nullable=False),
    Column("counts", Json, nullable=False),
    Column("received_at", Double, nullable=False),
    Index(None, "received_at"),
)

alarm = Table(
    "watch_alarms",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    Column("artifact", SHA256, nullable=False),
    Column("reason", String(40), nullable=False),
    Column("explanation", Text, nullable=False),
    Column("source", NAME, nullable=False),
    Column("actor", NAME, nullable=False),
    Column("raised_at", Double, nullable=False),
    Index(None, "route", "artifact"),
)
