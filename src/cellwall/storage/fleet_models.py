"""The tables of a fleet: its hosts, what they are trusted with, and what is released to them.

A change here needs a migration; a test compares both.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from cellwall.storage.models import ID, NAME, Base


class HostRow(Base):
    """A host of the fleet and its lease; the times are those of the database's clock."""

    __tablename__ = "hosts"
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    incarnation: Mapped[str] = mapped_column(ID)
    about: Mapped[dict[str, Any]]
    seen_s: Mapped[float]
    is_draining: Mapped[bool]
    lost_s: Mapped[float | None]


class JoinTokenRow(Base):
    """A one-time token with which a machine becomes a host; hashed with a key outside of here."""

    __tablename__ = "join_tokens"
    token_hash: Mapped[bytes] = mapped_column(primary_key=True)
    made_by: Mapped[str] = mapped_column(NAME)
    expires_s: Mapped[float]
    used_s: Mapped[float | None]
    used_by: Mapped[str | None] = mapped_column(ID)


class HostCertificateRow(Base):
    """The certificate of a host, signed outside of here."""

    __tablename__ = "host_certificates"
    host_id: Mapped[str] = mapped_column(ID, primary_key=True)
    public_keys: Mapped[str]
    pem: Mapped[str] = mapped_column(Text)
    issued_s: Mapped[float]
    revoked_s: Mapped[float | None]


class HostLogRow(Base):
    """Which audit log a host writes."""

    __tablename__ = "host_logs"
    origin: Mapped[str] = mapped_column(String(80), primary_key=True)
    host_id: Mapped[str] = mapped_column(ID)
    statement: Mapped[str] = mapped_column(Text)


class WitnessedCheckpointRow(Base):
    """A checkpoint of a host's audit log, countersigned by another host."""

    __tablename__ = "witnessed_checkpoints"
    origin: Mapped[str] = mapped_column(String(80), primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    witness_id: Mapped[str] = mapped_column(ID, primary_key=True)
    note: Mapped[str] = mapped_column(Text)
    seen_s: Mapped[float]


class ReleaseRow(Base):
    """A version of a policy or a feed, signed outside of here."""

    __tablename__ = "releases"
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    note: Mapped[str] = mapped_column(Text)
    content: Mapped[bytes]
    made_s: Mapped[float]
