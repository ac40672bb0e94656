"""The tables of accounts, sessions and messages. A change here needs a migration; a test compares
both. `tables.py` has all tables.

Secrets are never stored: passwords as Argon2id hashes, tokens and links as SHA-256 of 256 random
bits, signing keys encrypted under a key outside of the database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

STATE_ID = 1
ID = String(40)
NAME = String(64)


class Base(DeclarativeBase):
    """Constraints have fixed names, so that a migration can name them on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it from the class
        str: String(255),
        float: Double(),
        int: BigInteger(),
        bool: Boolean(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
        list[str]: JSON(),
    }


class StateRow(Base):
    """One row. Every revocation increments `revision`; writers that exclude each other lock it."""

    __tablename__ = "state"
    __table_args__ = (CheckConstraint(f"id = {STATE_ID}", name="single_row"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    revision: Mapped[int]
    generation: Mapped[int]


class UserRow(Base):
    """An account with its role."""

    __tablename__ = "users"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    role: Mapped[str] = mapped_column(String(32))
    password_hash: Mapped[str | None]
    is_disabled: Mapped[bool]
    generation: Mapped[int]
    created_s: Mapped[float]


class TeamRow(Base):
    """A team."""

    __tablename__ = "teams"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    created_s: Mapped[float]


class MemberRow(Base):
    """A user in a team."""

    __tablename__ = "team_members"
    team_id: Mapped[str] = mapped_column(
        ID, ForeignKey("teams.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[str] = mapped_column(
        ID, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class ServiceTokenRow(Base):
    """A service token."""

    __tablename__ = "service_tokens"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(NAME)
    token_hash: Mapped[bytes] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    created_s: Mapped[float]
    expires_s: Mapped[float]
    is_revoked: Mapped[bool]


class FamilyRow(Base):
    """A sign-in."""

    __tablename__ = "refresh_families"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    audience: Mapped[str]
    created_s: Mapped[float]
    expires_s: Mapped[float] = mapped_column(index=True)
    is_revoked: Mapped[bool]


class RefreshTokenRow(Base):
    """A refresh token; used ones stay until their family expires, to detect their reuse."""

    __tablename__ = "refresh_tokens"
    token_hash: Mapped[bytes] = mapped_column(primary_key=True)
    family_id: Mapped[str] = mapped_column(
        ID, ForeignKey("refresh_families.id", ondelete="CASCADE"), index=True
    )
    is_used: Mapped[bool]
    used_s: Mapped[float | None]
    successor: Mapped[bytes | None]
    """The next token of the family, sealed; for the last used token alone."""


class FlowRow(Base):
    """A sign-in that has begun elsewhere; it is deleted when it ends."""

    __tablename__ = "sign_in_flows"
    flow_hash: Mapped[bytes] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    sealed: Mapped[bytes]
    expires_s: Mapped[float] = mapped_column(index=True)


class ExternalIdentityRow(Base):
    """A user of an OpenID provider."""

    __tablename__ = "external_identities"
    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    is_managed: Mapped[bool]
    created_s: Mapped[float]


class PasskeyRow(Base):
    """The public key of a passkey."""

    __tablename__ = "passkeys"
    credential_id: Mapped[bytes] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(ID, unique=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(NAME)
    public_key: Mapped[bytes]
    sign_count: Mapped[int]
    created_s: Mapped[float]
    used_s: Mapped[float | None]


class RevokedTokenRow(Base):
    """An access token that was revoked before its expiry."""

    __tablename__ = "revoked_tokens"
    jti: Mapped[str] = mapped_column(ID, primary_key=True)
    until_s: Mapped[float] = mapped_column(index=True)


class SigningKeyRow(Base):
    """A signing key."""

    __tablename__ = "signing_keys"
    kid: Mapped[str] = mapped_column(ID, primary_key=True)
    public: Mapped[bytes]
    sealed: Mapped[bytes]
    created_s: Mapped[float]
    verify_until_s: Mapped[float | None]


class LinkRow(Base):
    """A one-time sign-in link; it is deleted when it is used."""

    __tablename__ = "sign_in_links"
    link_hash: Mapped[bytes] = mapped_column(primary_key=True)
    user_id: Mapped[str | None] = mapped_column(
        ID, ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    expires_s: Mapped[float]


class AttemptRow(Base):
    """Failed sign-ins of an account or from an address."""

    __tablename__ = "sign_in_attempts"
    subject: Mapped[str] = mapped_column(String(120), primary_key=True)
    failures: Mapped[int]
    last_s: Mapped[float]
    blocked_until_s: Mapped[float]
    forget_after_s: Mapped[float] = mapped_column(index=True)


class ServiceRow(Base):
    """A service that uses this database, and when it was last seen."""

    __tablename__ = "services"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    seen_s: Mapped[float]


class SessionRow(Base):
    """Metadata of a session."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("ix_sessions_owner_id_ended_s", "owner_id", "ended_s"),
        Index("ix_sessions_service_id_ended_s", "service_id", "ended_s"),
    )
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"))
    team_id: Mapped[str | None] = mapped_column(
        ID, ForeignKey("teams.id", ondelete="SET NULL"), index=True
    )
    created_s: Mapped[float]
    ended_s: Mapped[float | None] = mapped_column(index=True)
    about: Mapped[dict[str, Any]]
    service_id: Mapped[str] = mapped_column(ID, server_default="")
    end_reason: Mapped[str] = mapped_column(String(32), server_default="")


class RunKeyRow(Base):
    """The idempotency key of a run, in a session that may start again on another host."""

    __tablename__ = "run_keys"
    session_id: Mapped[str] = mapped_column(
        ID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    key_hash: Mapped[bytes] = mapped_column(primary_key=True)


class ApprovalRow(Base):
    """That a question was put to a person, and how it ended; never its text."""

    __tablename__ = "approvals"
    __table_args__ = (Index("ix_approvals_owner_id_answered_s", "owner_id", "answered_s"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    session_id: Mapped[str] = mapped_column(ID, index=True)
    owner_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"))
    asked_s: Mapped[float]
    expires_s: Mapped[float]
    question: Mapped[dict[str, Any]]
    answer: Mapped[str | None] = mapped_column(String(32))
    answered_by: Mapped[str | None] = mapped_column(ID)
    answered_s: Mapped[float | None]
    service_id: Mapped[str] = mapped_column(ID, server_default="")


class BudgetRow(Base):
    """A limit per period."""

    __tablename__ = "budgets"
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    subject: Mapped[str] = mapped_column(String(120), primary_key=True)
    resource: Mapped[str] = mapped_column(NAME, primary_key=True)
    limit: Mapped[float]
    period_s: Mapped[float]


class UsageRow(Base):
    """What was used in one period."""

    __tablename__ = "usage"
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    subject: Mapped[str] = mapped_column(String(120), primary_key=True)
    resource: Mapped[str] = mapped_column(NAME, primary_key=True)
    period_start_s: Mapped[float] = mapped_column(primary_key=True)
    amount: Mapped[float]


class PairingCodeRow(Base):
    """A one-time code that binds a sender of a channel to a user; deleted when it is used."""

    __tablename__ = "pairing_codes"
    code_hash: Mapped[bytes] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    expires_s: Mapped[float]


class PairingRow(Base):
    """A sender on a channel who is a user."""

    __tablename__ = "pairings"
    __table_args__ = (UniqueConstraint("channel", "sender_hash", name="uq_pairings_channel"),)
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    user_id: Mapped[str] = mapped_column(ID, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    channel: Mapped[str] = mapped_column(String(16))
    sender_hash: Mapped[bytes]
    created_s: Mapped[float]


class MessageRow(Base):
    """A message that was handled, or is being handled; never its text."""

    __tablename__ = "messages"
    __table_args__ = (Index("ix_messages_pairing_id_received_s", "pairing_id", "received_s"),)
    message_hash: Mapped[bytes] = mapped_column(primary_key=True)
    pairing_id: Mapped[str] = mapped_column(ID, ForeignKey("pairings.id", ondelete="CASCADE"))
    received_s: Mapped[float]
    answered_s: Mapped[float | None]
    forget_after_s: Mapped[float] = mapped_column(index=True)
