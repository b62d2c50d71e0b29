"""Tasks whose spans were removed keep their figures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("spans_removed_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "spans_removed_at")
