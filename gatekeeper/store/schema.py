"""Tables. Times are seconds since 1970 by the database's clock; documents are JSON."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
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
    UniqueConstraint,
)

from gatekeeper.store import (  # noqa: F401 - one metadata holds all
    schema_rollouts,
    schema_rounds,
    schema_schedules,
    schema_traces,
    schema_value,
    schema_webhooks,
)
from gatekeeper.store.columns import NAME as _NAME
from gatekeeper.store.columns import SHA256 as _SHA256
from gatekeeper.store.columns import Json as _Json
from gatekeeper.store.columns import Serial as _Serial
from gatekeeper.store.columns import metadata

__all__ = [
    "alias",
    "artifact",
    "audit",
    "claim",
    "counter",
    "decision",
    "evidence",
    "gate_result",
    "metadata",
    "override",
    "policy",
    "policy_name",
    "round_counts",
    "route",
    "run",
    "token",
]

artifact = Table(
    "artifacts",
    metadata,
    Column("digest", _SHA256, primary_key=True),
    Column("document", _Json, nullable=False),
    Column("contract", String(20), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
)

alias = Table(
    "aliases",
    metadata,
    Column("alias", _NAME, primary_key=True),
    Column("digest", _SHA256, ForeignKey("artifacts.digest"), nullable=False),
    Column("moved_at", Double, nullable=False),
)

policy = Table(
    "policies",
    metadata,
    Column("digest", _SHA256, primary_key=True),
    Column("name", _NAME, nullable=False),
    Column("document", _Json, nullable=False),
    Column("applied_at", Double, nullable=False),
    Column("applied_by", _NAME, nullable=False),
)

policy_name = Table(
    "policy_names",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("digest", _SHA256, ForeignKey("policies.digest"), nullable=False),
)

route = Table(
    "routes",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("slice", _NAME, nullable=False),
    Column("artifact", _NAME, nullable=False),
    Column("policy", _NAME, nullable=False),
    Column("rules", _Json, nullable=False),
    Column("slo", _Json),
    Column("sampling", _Json, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("task_rules", _Json),
    Column("economics", _NAME),
    Column("rollout", _Json),
)

run = Table(
    "runs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("idempotency_key", _NAME, nullable=False, unique=True),
    Column("route", _NAME, ForeignKey("routes.name"), nullable=False),
    Column("slice", _NAME, nullable=False),
    Column("gate", String(20), nullable=False),
    Column("artifact", _SHA256, ForeignKey("artifacts.digest"), nullable=False),
    Column("policy", _SHA256, ForeignKey("policies.digest"), nullable=False),
    Column("sampling", _Json, nullable=False),
    Column("slo", _Json),
    Column("parameters", _Json, nullable=False),
    Column("requirements", _Json, nullable=False),
    Column("engine", String(100), nullable=False),
    Column("device", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("owner", _NAME),
    Column("lease_s", Double),
    Column("lease_until", Double),
    Column("executor", String(50)),
    Column("executor_job_id", _NAME),
    Column("executor_attempt", Integer),
    Column("cancel_requested", Boolean, nullable=False),
    Column("progress", _Json),
    Column("info", _Json),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    CheckConstraint(
        "state IN ('pending','running','finished','failed','cancelled')", name="known_state"
    ),
    Index(None, "state", "priority", "created_at"),
    Index(None, "route"),
)

evidence = Table(
    "evidence",
    metadata,
    Column("run", String(40), ForeignKey("runs.id"), primary_key=True),
    Column("table", String(100), primary_key=True),
    Column("fence", Integer, primary_key=True),
    Column("sha256", _SHA256, nullable=False),
    Column("path", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("received_at", Double, nullable=False),
    Index(None, "sha256"),
)

gate_result = Table(
    "gate_results",
    metadata,
    Column("run", String(40), ForeignKey("runs.id"), primary_key=True),
    Column("route", _NAME, ForeignKey("routes.name"), nullable=False),
    Column("gate", String(20), nullable=False),
    Column("artifact", _SHA256, ForeignKey("artifacts.digest"), nullable=False),
    Column("policy", _SHA256, ForeignKey("policies.digest"), nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("document", _Json, nullable=False),
    Column("finished_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "route", "artifact", "policy", "gate"),
)

round_counts = Table(
    "rounds",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("run", String(40), ForeignKey("runs.id"), nullable=False),
    Column("route", _NAME, ForeignKey("routes.name"), nullable=False),
    Column("slice", _NAME, nullable=False),
    Column("artifact", _SHA256, ForeignKey("artifacts.digest"), nullable=False),
    Column("counts", _Json, nullable=False),
    Index(None, "run"),
    Index(None, "route", "artifact"),
)

decision = Table(
    "decisions",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("route", _NAME, ForeignKey("routes.name"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("action", String(20), nullable=False),
    Column("reason", _NAME, nullable=False),
    Column("artifact", _SHA256, nullable=False),
    Column("policy", _SHA256, nullable=False),
    Column("document", _Json, nullable=False),
    Column("state", _Json, nullable=False),
    Column("decided_at", Double, nullable=False),
    Column("evidence_expires_at", Double),
    UniqueConstraint("epoch", "counter"),
    Index(None, "route", "id"),
)

override = Table(
    "overrides",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("idempotency_key", _NAME, nullable=False, unique=True),
    Column("route", _NAME, ForeignKey("routes.name"), nullable=False),
    Column("action", String(20), nullable=False),
    Column("gamma", Integer),
    Column("reason", Text, nullable=False),
    Column("actor", _NAME, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("cleared_at", Double),
    Column("cleared_by", _NAME),
    CheckConstraint("action IN ('enable','bypass')", name="known_action"),
    Index(None, "route"),
)

claim = Table(
    "claims",
    metadata,
    Column("id", String(300), primary_key=True),
    Column("run", String(40), ForeignKey("runs.id")),
    Column("equation", _NAME, nullable=False),
    Column("inputs", _Json, nullable=False),
    Column("value", Double, nullable=False),
    Column("unit", String(50), nullable=False),
    Column("status", String(20), nullable=False),
    Column("source", Text, nullable=False),
    Column("printed", String(50)),
    Index(None, "run"),
)

token = Table(
    "tokens",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", _NAME, nullable=False),
    Column("role", String(20), nullable=False),
    Column("sha256", _SHA256, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    # Null: every route.
    Column("routes", _Json),
    # Requests a second; null: as many as the server allows every token.
    Column("rate_per_s", Double),
    # Token whose place it took; no foreign key, since that one may be removed.
    Column("replaces", String(40), unique=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", _NAME, nullable=False),
    Column("action", _NAME, nullable=False),
    Column("object", String(300), nullable=False),
    Column("detail", _Json, nullable=False),
    # Who the actor was at that time: a copy, which outlives its token. Null before 0008.
    Column("actor_record", _Json),
    Index(None, "object"),
)

counter = Table(
    "counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("counter", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
