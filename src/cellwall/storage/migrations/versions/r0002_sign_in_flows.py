"""Sign-in by OpenID and by passkey; a refresh that is repeated at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables and columns."""
    op.add_column("refresh_tokens", sa.Column("used_s", sa.Double(), nullable=True))
    op.add_column("refresh_tokens", sa.Column("successor", sa.LargeBinary(), nullable=True))
    op.create_table(
        "sign_in_flows",
        sa.Column("flow_hash", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("flow_hash", name="pk_sign_in_flows"),
    )
    op.create_index("ix_sign_in_flows_expires_s", "sign_in_flows", ["expires_s"])
    op.create_table(
        "external_identities",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("is_managed", sa.Boolean(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_external_identities_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_external_identities"),
    )
    op.create_index("ix_external_identities_user_id", "external_identities", ["user_id"])
    op.create_table(
        "passkeys",
        sa.Column("credential_id", sa.LargeBinary(), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("used_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_passkeys_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("credential_id", name="pk_passkeys"),
        sa.UniqueConstraint("id", name="uq_passkeys_id"),
    )
    op.create_index("ix_passkeys_user_id", "passkeys", ["user_id"])
