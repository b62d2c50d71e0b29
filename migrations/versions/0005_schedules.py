"""Schedules, and what became of each of their times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("gates", JSON, nullable=True),
        sa.Column("cron", sa.String(length=200), nullable=True),
        sa.Column("zone", sa.String(length=100), nullable=True),
        sa.Column("jitter_s", sa.Double(), nullable=False),
        sa.Column("before_expiry_s", sa.Double(), nullable=True),
        sa.Column("on_new_version", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("paused_at", sa.Double(), nullable=True),
        sa.Column("since_at", sa.Double(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("seen_artifact", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_schedules_route_routes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_index(op.f("ix_schedules_route"), "schedules", ["route"], unique=False)
    op.create_index(op.f("ix_schedules_next_at"), "schedules", ["next_at"], unique=False)
    op.create_table(
        "schedule_fires",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("schedule", sa.String(length=40), nullable=False),
        sa.Column("trigger", sa.String(length=20), nullable=False),
        sa.Column("fire_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("runs", JSON, nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "trigger IN ('cron','before_expiry','new_version')",
            name=op.f("ck_schedule_fires_known_trigger"),
        ),
        sa.CheckConstraint(
            "outcome IN ('fired','caught_up','missed','skipped')",
            name=op.f("ck_schedule_fires_known_outcome"),
        ),
        sa.ForeignKeyConstraint(
            ["schedule"], ["schedules.id"], name=op.f("fk_schedule_fires_schedule_schedules")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_fires")),
    )
    op.create_index(
        op.f("ix_schedule_fires_schedule_trigger_fire_at"),
        "schedule_fires",
        ["schedule", "trigger", "fire_at"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_schedule_fires_schedule_trigger_fire_at"), table_name="schedule_fires")
    op.drop_table("schedule_fires")
    op.drop_index(op.f("ix_schedules_next_at"), table_name="schedules")
    op.drop_index(op.f("ix_schedules_route"), table_name="schedules")
    op.drop_table("schedules")
