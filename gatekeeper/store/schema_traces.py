"""Tables of what came in: spans as received, tasks made of them, and each route's part of a task."""

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

from gatekeeper.store.columns import NAME, SHA256, Json, metadata

__all__ = ["span", "task", "task_route"]

span = Table(
    "spans",
    metadata,
    Column("trace_id", NAME, primary_key=True),
    Column("span_id", NAME, primary_key=True),
    # The task of its trace; a conversation's task is found through that one's part_of.
    Column("task", NAME, nullable=False),
    Column("sha256", SHA256, nullable=False),
    # ASCII text, not JSONB: spans hold what JSONB refuses (NUL, lone surrogates, NaN), and
    # nothing ever searches inside them.
    Column("document", Text, nullable=False),
    Column("received_at", Double, nullable=False),
    Index(None, "task"),
)

task = Table(
    "tasks",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("part_of", NAME),
    Column("source_format", String(50), nullable=False),
    Column("notes", Json, nullable=False),
    # Raised by every change of its spans; figures are those of generation ``computed``.
    Column("generation", Integer, nullable=False),
    Column("computed", Integer, nullable=False),
    # Digest of the routes' rules that the figures were made with.
    Column("routing", SHA256),
    Column("state", String(20), nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("touched_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("session", Text),
    Column("calls", Integer),
    Column("unmatched_calls", Integer),
    Column("grade", String(1)),
    Column("reconciled", Boolean),
    Column("wall_s", Double),
    Column("started_at", Double),
    Column("document", Json),
    # Set once retention has removed its spans: from then on its figures are never computed anew.
    Column("spans_removed_at", Double),
    CheckConstraint("state IN ('open','complete')", name="known_state"),
    Index(None, "state", "due_at"),
    Index(None, "state", "routing"),
    Index(None, "part_of"),
    Index(None, "created_at", "id"),
)

task_route = Table(
    "task_routes",
    metadata,
    Column("task", NAME, ForeignKey("tasks.id"), primary_key=True),
    Column("route", NAME, ForeignKey("routes.name"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("session", Text, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("grade", String(1), nullable=False),
    Column("reconciled", Boolean, nullable=False),
    Column("wall_s", Double, nullable=False),
    Column("decode_on_path_s", Double),
    Column("curve", Json),
    Column("curve_low", Json),
    Column("curve_high", Json),
    Column("ceiling_s", Double),
    # Arm of the rollout that all its calls carried; "mixed" where they did not, null without any.
    Column("arm", String(20)),
    Index(None, "route"),
)
