"""The hosts of a fleet with their leases, and why a session has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table of hosts; sessions that exist ended for no special reason."""
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("incarnation", sa.String(length=40), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.Column("lost_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_hosts"),
    )
    column = sa.Column("end_reason", sa.String(length=32), nullable=False, server_default="")
    op.add_column("sessions", column)
