"""Idempotency keys of runs in sessions that may start again on another host."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create the table of keys."""
    op.create_table(
        "run_keys",
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name="fk_run_keys_session_id_sessions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "key_hash", name="pk_run_keys"),
    )
