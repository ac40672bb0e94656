"""Pairings of channel senders with users, and handled messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables of inbound messages."""
    op.create_table(
        "pairing_codes",
        sa.Column("code_hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_pairing_codes_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("code_hash", name="pk_pairing_codes"),
    )
    op.create_index("ix_pairing_codes_user_id", "pairing_codes", ["user_id"])
    op.create_table(
        "pairings",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("channel", sa.String(length=16), nullable=False),
        sa.Column("sender_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_pairings_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_pairings"),
        sa.UniqueConstraint("channel", "sender_hash", name="uq_pairings_channel"),
    )
    op.create_index("ix_pairings_user_id", "pairings", ["user_id"])
    op.create_table(
        "messages",
        sa.Column("message_hash", sa.LargeBinary(), nullable=False),
        sa.Column("pairing_id", sa.String(length=40), nullable=False),
        sa.Column("received_s", sa.Double(), nullable=False),
        sa.Column("answered_s", sa.Double(), nullable=True),
        sa.Column("forget_after_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pairing_id"], ["pairings.id"], name="fk_messages_pairing_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("message_hash", name="pk_messages"),
    )
    op.create_index("ix_messages_forget_after_s", "messages", ["forget_after_s"])
    op.create_index("ix_messages_pairing_id_received_s", "messages", ["pairing_id", "received_s"])
