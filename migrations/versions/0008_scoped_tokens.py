"""Tokens with a scope, a rate and a successor; the audit trail keeps who the actor was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("tokens") as tokens:
        tokens.add_column(sa.Column("routes", JSON, nullable=True))
        tokens.add_column(sa.Column("rate_per_s", sa.Double(), nullable=True))
        tokens.add_column(sa.Column("replaces", sa.String(length=40), nullable=True))
        tokens.create_unique_constraint(op.f("uq_tokens_replaces"), ["replaces"])
    op.add_column("audit", sa.Column("actor_record", JSON, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.drop_column("actor_record")
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_constraint(op.f("uq_tokens_replaces"), type_="unique")
        tokens.drop_column("replaces")
        tokens.drop_column("rate_per_s")
        tokens.drop_column("routes")
