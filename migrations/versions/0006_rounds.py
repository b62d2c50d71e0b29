"""The live watch: who looks, what was counted, and which alarms were raised."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "watches",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("findings", JSON, nullable=False),
        sa.Column("state", JSON, nullable=False),
        sa.Column("looks", sa.BigInteger(), nullable=False),
        sa.Column("last_key", sa.String(length=200), nullable=True),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('engine','rounds')", name=op.f("ck_watches_known_kind")),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_watches_route_routes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watches")),
        sa.UniqueConstraint(
            "route",
            "artifact",
            "source",
            "kind",
            name=op.f("uq_watches_route_artifact_source_kind"),
        ),
    )
    op.create_table(
        "live_rounds",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("counts", JSON, nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_live_rounds_route_routes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_live_rounds")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_live_rounds_idempotency_key")),
    )
    op.create_index(
        op.f("ix_live_rounds_received_at"), "live_rounds", ["received_at"], unique=False
    )
    op.create_table(
        "watch_alarms",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("raised_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_watch_alarms_route_routes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watch_alarms")),
    )
    op.create_index(
        op.f("ix_watch_alarms_route_artifact"), "watch_alarms", ["route", "artifact"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_watch_alarms_route_artifact"), table_name="watch_alarms")
    op.drop_table("watch_alarms")
    op.drop_index(op.f("ix_live_rounds_received_at"), table_name="live_rounds")
    op.drop_table("live_rounds")
    op.drop_table("watches")
