"""Which service holds a session or a question, so that several can use one database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table of services; what exists belongs to none, so the next start ends it."""
    op.create_table(
        "services",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_services"),
    )
    for table in ("sessions", "approvals"):
        column = sa.Column("service_id", sa.String(length=40), nullable=False, server_default="")
        op.add_column(table, column)
