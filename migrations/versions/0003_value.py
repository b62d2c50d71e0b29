"""Economics and pricings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "economics",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("applied_by", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_economics")),
    )
    op.create_table(
        "economics_names",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["economics.digest"], name=op.f("fk_economics_names_digest_economics")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_economics_names")),
    )
    op.create_table(
        "pricings",
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("economics_name", sa.String(length=200), nullable=False),
        sa.Column("economics", sa.String(length=64), nullable=True),
        sa.Column("serving_run", sa.String(length=40), nullable=True),
        sa.Column("outcome_run", sa.String(length=40), nullable=True),
        sa.Column("tasks", sa.String(length=64), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("evidence", sa.String(length=64), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("priced_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name=op.f("fk_pricings_route_routes")),
        sa.PrimaryKeyConstraint("route", name=op.f("pk_pricings")),
    )
    op.create_index(op.f("ix_pricings_evidence"), "pricings", ["evidence"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_pricings_evidence"), table_name="pricings")
    op.drop_table("pricings")
    op.drop_table("economics_names")
    op.drop_table("economics")
