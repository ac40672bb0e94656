"""Accounts, tokens, sessions, approvals and usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "budgets",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("resource", sa.String(length=64), nullable=False),
        sa.Column("limit", sa.Double(), nullable=False),
        sa.Column("period_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", "resource", name="pk_budgets"),
    )
    op.create_table(
        "revoked_tokens",
        sa.Column("jti", sa.String(length=40), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("jti", name="pk_revoked_tokens"),
    )
    op.create_index("ix_revoked_tokens_until_s", "revoked_tokens", ["until_s"])
    op.create_table(
        "sign_in_attempts",
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("last_s", sa.Double(), nullable=False),
        sa.Column("blocked_until_s", sa.Double(), nullable=False),
        sa.Column("forget_after_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_sign_in_attempts"),
    )
    op.create_index("ix_sign_in_attempts_forget_after_s", "sign_in_attempts", ["forget_after_s"])
    op.create_table(
        "signing_keys",
        sa.Column("kid", sa.String(length=40), nullable=False),
        sa.Column("public", sa.LargeBinary(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("verify_until_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("kid", name="pk_signing_keys"),
    )
    op.create_table(
        "state",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_state_single_row"),
        sa.PrimaryKeyConstraint("id", name="pk_state"),
    )
    op.create_table(
        "teams",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_teams"),
        sa.UniqueConstraint("name", name="uq_teams_name"),
    )
    op.create_table(
        "usage",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("resource", sa.String(length=64), nullable=False),
        sa.Column("period_start_s", sa.Double(), nullable=False),
        sa.Column("amount", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", "resource", "period_start_s", name="pk_usage"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("password_hash", sa.String(length=255), nullable=True),
        sa.Column("is_disabled", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("asked_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("answer", sa.String(length=32), nullable=True),
        sa.Column("answered_by", sa.String(length=40), nullable=True),
        sa.Column("answered_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_approvals_owner_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_owner_id_answered_s", "approvals", ["owner_id", "answered_s"])
    op.create_index("ix_approvals_session_id", "approvals", ["session_id"])
    op.create_table(
        "refresh_families",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("audience", sa.String(length=255), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("is_revoked", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_refresh_families_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_refresh_families"),
    )
    op.create_index("ix_refresh_families_expires_s", "refresh_families", ["expires_s"])
    op.create_index("ix_refresh_families_user_id", "refresh_families", ["user_id"])
    op.create_table(
        "service_tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("is_revoked", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_service_tokens_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_service_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_service_tokens_token_hash"),
    )
    op.create_index("ix_service_tokens_user_id", "service_tokens", ["user_id"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("team_id", sa.String(length=40), nullable=True),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_sessions_owner_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name="fk_sessions_team_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_owner_id_ended_s", "sessions", ["owner_id", "ended_s"])
    op.create_index("ix_sessions_team_id", "sessions", ["team_id"])
    op.create_table(
        "sign_in_links",
        sa.Column("link_hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_sign_in_links_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("link_hash", name="pk_sign_in_links"),
    )
    op.create_index("ix_sign_in_links_user_id", "sign_in_links", ["user_id"])
    op.create_table(
        "team_members",
        sa.Column("team_id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name="fk_team_members_team_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_team_members_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("team_id", "user_id", name="pk_team_members"),
    )
    op.create_index("ix_team_members_user_id", "team_members", ["user_id"])
    op.create_table(
        "refresh_tokens",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("family_id", sa.String(length=40), nullable=False),
        sa.Column("is_used", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["family_id"],
            ["refresh_families.id"],
            name="fk_refresh_tokens_family_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("token_hash", name="pk_refresh_tokens"),
    )
    op.create_index("ix_refresh_tokens_family_id", "refresh_tokens", ["family_id"])
    op.bulk_insert(
        sa.table(
            "state",
            sa.column("id", sa.BigInteger),
            sa.column("revision", sa.BigInteger),
            sa.column("generation", sa.BigInteger),
        ),
        [{"id": 1, "revision": 1, "generation": 1}],
    )
