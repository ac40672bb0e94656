"""Indexes for the sessions of one host and for those that ended long ago."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Without them, the loss of a host and each housekeeping would read all sessions."""
    op.create_index("ix_sessions_service_id_ended_s", "sessions", ["service_id", "ended_s"])
    op.create_index("ix_sessions_ended_s", "sessions", ["ended_s"])
