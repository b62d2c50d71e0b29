"""Tables of value: the versions of the owner's prices, and each route's newest pricing."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, String, Table, Text

from gatekeeper.store.columns import NAME, SHA256, Json, metadata

__all__ = ["economics", "economics_name", "pricing"]

economics = Table(
    "economics",
    metadata,
    Column("digest", SHA256, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("document", Json, nullable=False),
    Column("applied_at", Double, nullable=False),
    Column("applied_by", NAME, nullable=False),
)

economics_name = Table(
    "economics_names",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("digest", SHA256, ForeignKey("economics.digest"), nullable=False),
)

pricing = Table(
    "pricings",
    metadata,
    Column("route", NAME, ForeignKey("routes.name"), primary_key=True),
    Column("artifact", SHA256, nullable=False),
    Column("policy", SHA256, nullable=False),
    Column("economics_name", NAME, nullable=False),
    Column("economics", SHA256),
    Column("serving_run", String(40)),
    Column("outcome_run", String(40)),
    # Digest of the tasks and their versions that it rests on.
    Column("tasks", SHA256, nullable=False),
    Column("document", Json, nullable=False),
    # The curves, by content; null where no task was there.
    Column("evidence", SHA256),
    Column("path", Text),
    Column("priced_at", Double, nullable=False),
    Index(None, "evidence"),
)
