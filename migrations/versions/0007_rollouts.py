"""Rollouts: a route's ramp and holdout, the arm of a task, outcomes, and what was delivered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("routes", sa.Column("rollout", JSON, nullable=True))
    op.add_column("task_routes", sa.Column("arm", sa.String(length=20), nullable=True))
    op.create_table(
        "task_outcomes",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("task", sa.String(length=200), nullable=False),
        sa.Column("arm", sa.String(length=20), nullable=True),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_task_outcomes_route_routes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task_outcomes")),
        sa.UniqueConstraint("route", "task", name=op.f("uq_task_outcomes_route_task")),
    )
    op.create_index(
        op.f("ix_task_outcomes_route_received_at"),
        "task_outcomes",
        ["route", "received_at"],
        unique=False,
    )
    op.create_table(
        "delivered_windows",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("step_since", sa.Double(), nullable=False),
        sa.Column("since_at", sa.Double(), nullable=False),
        sa.Column("until_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.CheckConstraint(
            "outcome IN ('held','unknown','below','harm')",
            name=op.f("ck_delivered_windows_known_outcome"),
        ),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_delivered_windows_route_routes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_delivered_windows")),
    )
    op.create_index(
        op.f("ix_delivered_windows_route_id"), "delivered_windows", ["route", "id"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_delivered_windows_route_id"), table_name="delivered_windows")
    op.drop_table("delivered_windows")
    op.drop_index(op.f("ix_task_outcomes_route_received_at"), table_name="task_outcomes")
    op.drop_table("task_outcomes")
    op.drop_column("task_routes", "arm")
    op.drop_column("routes", "rollout")
