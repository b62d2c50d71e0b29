"""Spans, tasks and each route's part of a task; a route's rules for tasks and its economics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("routes", sa.Column("task_rules", JSON, nullable=True))
    op.add_column("routes", sa.Column("economics", sa.String(length=200), nullable=True))

    op.create_table(
        "spans",
        sa.Column("trace_id", sa.String(length=200), nullable=False),
        sa.Column("span_id", sa.String(length=200), nullable=False),
        sa.Column("task", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("trace_id", "span_id", name=op.f("pk_spans")),
    )
    op.create_index(op.f("ix_spans_task"), "spans", ["task"], unique=False)

    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("part_of", sa.String(length=200), nullable=True),
        sa.Column("source_format", sa.String(length=50), nullable=False),
        sa.Column("notes", JSON, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("computed", sa.Integer(), nullable=False),
        sa.Column("routing", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("calls", sa.Integer(), nullable=True),
        sa.Column("unmatched_calls", sa.Integer(), nullable=True),
        sa.Column("grade", sa.String(length=1), nullable=True),
        sa.Column("reconciled", sa.Boolean(), nullable=True),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("document", JSON, nullable=True),
        sa.CheckConstraint("state IN ('open','complete')", name=op.f("ck_tasks_known_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_state_due_at"), "tasks", ["state", "due_at"], unique=False)
    op.create_index(op.f("ix_tasks_state_routing"), "tasks", ["state", "routing"], unique=False)
    op.create_index(op.f("ix_tasks_part_of"), "tasks", ["part_of"], unique=False)
    op.create_index(op.f("ix_tasks_created_at_id"), "tasks", ["created_at", "id"], unique=False)

    op.create_table(
        "task_routes",
        sa.Column("task", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("grade", sa.String(length=1), nullable=False),
        sa.Column("reconciled", sa.Boolean(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("decode_on_path_s", sa.Double(), nullable=True),
        sa.Column("curve", JSON, nullable=True),
        sa.Column("curve_low", JSON, nullable=True),
        sa.Column("curve_high", JSON, nullable=True),
        sa.Column("ceiling_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["route"], ["routes.name"], name=op.f("fk_task_routes_route_routes")
        ),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_task_routes_task_tasks")),
        sa.PrimaryKeyConstraint("task", "route", name=op.f("pk_task_routes")),
    )
    op.create_index(op.f("ix_task_routes_route"), "task_routes", ["route"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_task_routes_route"), table_name="task_routes")

    op.drop_table("task_routes")
    op.drop_index(op.f("ix_tasks_created_at_id"), table_name="tasks")
    op.drop_index(op.f("ix_tasks_part_of"), table_name="tasks")
    op.drop_index(op.f("ix_tasks_state_routing"), table_name="tasks")
    op.drop_index(op.f("ix_tasks_state_due_at"), table_name="tasks")

    op.drop_table("tasks")
    op.drop_index(op.f("ix_spans_task"), table_name="spans")

    op.drop_table("spans")
    op.drop_column("routes", "economics")
    op.drop_column("routes", "task_rules")
