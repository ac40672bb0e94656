"""Join tokens, certificates, witnessed audit logs and signed releases of a fleet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the tables of trust between hosts."""
    op.create_table(
        "join_tokens",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("made_by", sa.String(length=64), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("used_s", sa.Double(), nullable=True),
        sa.Column("used_by", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("token_hash", name="pk_join_tokens"),
    )
    op.create_table(
        "host_certificates",
        sa.Column("host_id", sa.String(length=40), nullable=False),
        sa.Column("public_keys", sa.String(length=255), nullable=False),
        sa.Column("pem", sa.Text(), nullable=False),
        sa.Column("issued_s", sa.Double(), nullable=False),
        sa.Column("revoked_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("host_id", name="pk_host_certificates"),
    )
    op.create_table(
        "host_logs",
        sa.Column("origin", sa.String(length=80), nullable=False),
        sa.Column("host_id", sa.String(length=40), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("origin", name="pk_host_logs"),
    )
    op.create_table(
        "witnessed_checkpoints",
        sa.Column("origin", sa.String(length=80), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("witness_id", sa.String(length=40), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("origin", "size", "witness_id", name="pk_witnessed_checkpoints"),
    )
    op.create_table(
        "releases",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "version", name="pk_releases"),
    )
