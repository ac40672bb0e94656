"""Port of what the hosts of a fleet may believe of each other, as the shared database keeps it.

The database is not the root of this trust: certificates and statements in it are signed by keys
outside of it, and each reader checks them. The database makes a token single-use, and keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cellwall.core.hosts import HostsPort


class HostAdmission(StrEnum):
    """What came of a join token."""

    ADMITTED = "admitted"
    NO_TOKEN = "no token"  # noqa: S105  # a reason
    """Unknown, expired, or used before."""
    OTHER_KEY = "other key"
    """There is a host of this name with another key."""


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    """A certificate as the database has it; each reader checks it."""

    host_id: str
    pem: str
    is_revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLog:
    """Which audit log a host writes, in a statement signed by the host."""

    origin: str
    host_id: str
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessedCheckpoint:
    """A checkpoint of one host's log, countersigned by another host."""

    origin: str
    size: int
    witness_id: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRelease:
    """One version of a policy or a feed, signed by the fleet's authority."""

    kind: str
    version: int
    note: str
    content: bytes


class HostTrustPort(Protocol):
    """Each method is one transaction."""

    async def add_join_token(
        self, token_hash: bytes, *, expires_s: float, made_by: str
    ) -> None: ...

    async def admit_host(
        self, token_hash: bytes, certificate: StoredCertificate, *, public_keys: str
    ) -> HostAdmission:
        """Use a token up and keep the certificate, or change nothing. `public_keys` are those of
        the host: a name keeps its keys."""

    async def keep_certificate(self, certificate: StoredCertificate, *, public_keys: str) -> bool:
        """Of the first host, which has the authority; False if the name has other keys."""

    async def list_certificates(self) -> Sequence[StoredCertificate]: ...

    async def revoke_certificate(self, host_id: str) -> bool: ...

    async def database_time_s(self) -> float: ...


class WitnessPort(Protocol):
    """Each method is one transaction."""

    async def add_host_log(self, log: HostLog) -> bool:
        """False if the log is kept with another statement."""

    async def list_host_logs(self) -> Sequence[HostLog]: ...

    async def add_witnessed(self, checkpoint: WitnessedCheckpoint) -> bool:
        """False if this witness has signed another one of this size."""

    async def list_witnessed(
        self, origin: str, *, witness_id: str | None = None, after: int = -1
    ) -> Sequence[WitnessedCheckpoint]:
        """By size; of one witness, and only larger ones, where asked."""


class ReleasesPort(Protocol):
    """Each method is one transaction."""

    async def add_release(self, release: SignedRelease) -> bool:
        """False if there is this version or a later one."""

    async def newest_release(self, kind: str) -> SignedRelease | None: ...

    async def newest_release_note(self, kind: str) -> tuple[int, str] | None:
        """The version and the signature of the newest one, without its content."""


class TrustStore(HostTrustPort, WitnessPort, ReleasesPort, HostsPort, Protocol):
    """The database, as far as trust between hosts needs it."""
