"""first schema.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("contract", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "audit",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("object", sa.String(length=300), nullable=False),
        sa.Column("detail", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_object"), "audit", ["object"], unique=False)

    op.create_table(
        "counter",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_counter_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_counter")),
    )
    op.create_table(
        "policies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("applied_by", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_policies")),
    )
    op.create_table(
        "routes",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("slice", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=200), nullable=False),
        sa.Column("policy", sa.String(length=200), nullable=False),
        sa.Column("rules", JSON, nullable=False),
        sa.Column("slo", JSON, nullable=True),
        sa.Column("sampling", JSON, nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_routes")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_table(
        "aliases",
        sa.Column("alias", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["artifacts.digest"], name=op.f("fk_aliases_digest_artifacts")
        ),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_aliases")),
    )
    op.create_table(
        "decisions",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("state", JSON, nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("evidence_expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_decisions_route_routes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("epoch", "counter", name=op.f("uq_decisions_epoch_counter")),
    )
    op.create_index(op.f("ix_decisions_route_id"), "decisions", ["route", "id"], unique=False)

    op.create_table(
        "overrides",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=20), nullable=False),
        sa.Column("gamma", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("cleared_at", sa.Double(), nullable=True),
        sa.Column("cleared_by", sa.String(length=200), nullable=True),
        sa.CheckConstraint("action IN ('enable','bypass')", name=op.f("ck_overrides_known_action")),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_overrides_route_routes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_overrides")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_overrides_idempotency_key")),
    )
    op.create_index(op.f("ix_overrides_route"), "overrides", ["route"], unique=False)

    op.create_table(
        "policy_names",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["policies.digest"], name=op.f("fk_policy_names_digest_policies")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policy_names")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("slice", sa.String(length=200), nullable=False),
        sa.Column("gate", sa.String(length=20), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("sampling", JSON, nullable=False),
        sa.Column("slo", JSON, nullable=True),
        sa.Column("parameters", JSON, nullable=False),
        sa.Column("requirements", JSON, nullable=False),
        sa.Column("engine", sa.String(length=100), nullable=False),
        sa.Column("device", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("lease_s", sa.Double(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("executor", sa.String(length=50), nullable=True),
        sa.Column("executor_job_id", sa.String(length=200), nullable=True),
        sa.Column("executor_attempt", sa.Integer(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("progress", JSON, nullable=True),
        sa.Column("info", JSON, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending','running','finished','failed','cancelled')",
            name=op.f("ck_runs_known_state"),
        ),
        sa.ForeignKeyConstraint(
            ["artifact"], ["artifacts.digest"], name=op.f("fk_runs_artifact_artifacts")
        ),
        sa.ForeignKeyConstraint(
            ["policy"], ["policies.digest"], name=op.f("fk_runs_policy_policies")
        ),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_runs_route_routes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_runs_idempotency_key")),
    )
    op.create_index(op.f("ix_runs_route"), "runs", ["route"], unique=False)
    op.create_index(
        op.f("ix_runs_state_priority_created_at"),
        "runs",
        ["state", "priority", "created_at"],
        unique=False,
    )

    op.create_table(
        "claims",
        sa.Column("id", sa.String(length=300), nullable=False),
        sa.Column("run", sa.String(length=40), nullable=True),
        sa.Column("equation", sa.String(length=200), nullable=False),
        sa.Column("inputs", JSON, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("unit", sa.String(length=50), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("printed", sa.String(length=50), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_claims_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_run"), "claims", ["run"], unique=False)

    op.create_table(
        "evidence",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("table", sa.String(length=100), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evidence_run_runs")),
        sa.PrimaryKeyConstraint("run", "table", "fence", name=op.f("pk_evidence")),
    )
    op.create_index(op.f("ix_evidence_sha256"), "evidence", ["sha256"], unique=False)

    op.create_table(
        "gate_results",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("gate", sa.String(length=20), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact"], ["artifacts.digest"], name=op.f("fk_gate_results_artifact_artifacts")
        ),
        sa.ForeignKeyConstraint(
            ["policy"], ["policies.digest"], name=op.f("fk_gate_results_policy_policies")
        ),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_gate_results_route_routes")
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_gate_results_run_runs")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_gate_results")),
    )
    op.create_index(
        op.f("ix_gate_results_route_artifact_policy_gate"),
        "gate_results",
        ["route", "artifact", "policy", "gate"],
        unique=False,
    )

    op.create_table(
        "rounds",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("slice", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("counts", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact"], ["artifacts.digest"], name=op.f("fk_rounds_artifact_artifacts")
        ),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_rounds_route_routes")),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_rounds_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
    )
    op.create_index(op.f("ix_rounds_route_artifact"), "rounds", ["route", "artifact"], unique=False)
    op.create_index(op.f("ix_rounds_run"), "rounds", ["run"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_rounds_run"), table_name="rounds")
    op.drop_index(op.f("ix_rounds_route_artifact"), table_name="rounds")

    op.drop_table("rounds")
    op.drop_index(op.f("ix_gate_results_route_artifact_policy_gate"), table_name="gate_results")

    op.drop_table("gate_results")
    op.drop_index(op.f("ix_evidence_sha256"), table_name="evidence")

    op.drop_table("evidence")
    op.drop_index(op.f("ix_claims_run"), table_name="claims")

    op.drop_table("claims")
    op.drop_index(op.f("ix_runs_state_priority_created_at"), table_name="runs")
    op.drop_index(op.f("ix_runs_route"), table_name="runs")

    op.drop_table("runs")
    op.drop_table("policy_names")
    op.drop_index(op.f("ix_overrides_route"), table_name="overrides")

    op.drop_table("overrides")
    op.drop_index(op.f("ix_decisions_route_id"), table_name="decisions")

    op.drop_table("decisions")
    op.drop_table("aliases")
    op.drop_table("tokens")
    op.drop_table("routes")
    op.drop_table("policies")
    op.drop_table("counter")
    op.drop_index(op.f("ix_audit_object"), table_name="audit")

    op.drop_table("audit")
    op.drop_table("artifacts")
