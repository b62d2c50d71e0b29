"""Tables of rollouts: outcomes that callers tell, and what each judged window delivered."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
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

__all__ = ["outcome", "window"]

outcome = Table(
    "task_outcomes",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    Column("task", NAME, nullable=False),
    Column("arm", String(20)),
    Column("session", Text),
    Column("success", Boolean),
    Column("wall_s", Double),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("route", "task"),
    Index(None, "route", "received_at"),
)

window = Table(
    "delivered_windows",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("route", NAME, ForeignKey("routes.name"), nullable=False),
    Column("artifact", SHA256, nullable=False),
    # The step of the ramp that it belongs to: its share, and when that took effect.
    Column("share", Double, nullable=False),
    Column("step_since", Double, nullable=False),
    Column("since_at", Double, nullable=False),
    Column("until_at", Double, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("document", Json, nullable=False),
    CheckConstraint("outcome IN ('held','unknown','below','harm')", name="known_outcome"),
    Index(None, "route", "id"),
)
