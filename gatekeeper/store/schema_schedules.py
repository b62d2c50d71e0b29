"""Tables of schedules: when a route is gated again, and what became of each time."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from gatekeeper.store.columns import NAME, SHA256, Json, Serial, metadata

__all__ = ["schedule", "schedule_fire"]

schedule = Table(
    "schedules",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    # Null: all that the route's policy demands when it fires.
    Column("gates", Json),
    Column("cron", String(200)),
    Column("zone", String(100)),
    Column("jitter_s", Double, nullable=False),
    Column("before_expiry_s", Double),
    Column("on_new_version", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    # Raised by every change, so that a tick that began before it cannot undo it.
    Column("revision", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", NAME, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("paused_at", Double),
    # Only slots after this time count: that of its cron's setting, or of the last resumption.
    Column("since_at", Double, nullable=False),
    # When the cron has to be looked at next; what fires is derived from the slots recorded.
    Column("next_at", Double),
    # Artifact of the route when it was last looked at; null where new versions are not watched.
    Column("seen_artifact", SHA256),
    Index(None, "route"),
    Index(None, "next_at"),
)

schedule_fire = Table(
    "schedule_fires",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("schedule", String(40), ForeignKey("schedules.id"), nullable=False),
    Column("trigger", String(20), nullable=False),
    Column("fire_at", Double, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("runs", Json, nullable=False),
    Column("note", Text),
    Column("recorded_at", Double, nullable=False),
    CheckConstraint("trigger IN ('cron','before_expiry','new_version')", name="known_trigger"),
    CheckConstraint("outcome IN ('fired','caught_up','missed','skipped')", name="known_outcome"),
    # What makes a slot fire once, however many replicas tick.
    Index(None, "schedule", "trigger", "fire_at", unique=True),
)
