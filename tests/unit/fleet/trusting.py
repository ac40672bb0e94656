"""A fleet's trust in memory: an authority, its hosts, and a database of dictionaries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cellwall.core.host_trust import HostAdmission, StoredCertificate
from cellwall.core.ids import new_id
from cellwall.fleet.certificates import FleetAuthority, open_authority
from cellwall.fleet.enrolment import JoinToken, public_keys
from cellwall.fleet.enrolment_service import EnrolmentListener
from cellwall.fleet.identity import HostKeys, fleet_folder, open_host_keys
from cellwall.fleet.pod_tokens import PodReviewer

FIRST, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class MemoryTrust:
    """Implements `HostTrustPort`; the real one is tested in unit/storage."""

    def __init__(self) -> None:
        self.tokens: dict[bytes, float] = {}
        self.certificates: dict[str, tuple[StoredCertificate, str]] = {}

    async def add_join_token(self, token_hash, *, expires_s, made_by):
        self.tokens.setdefault(token_hash, expires_s)

    async def admit_host(self, token_hash, certificate, *, public_keys):
        known = self.certificates.get(certificate.host_id)
        if known is not None and (known[1] != public_keys or known[0].is_revoked):
            return HostAdmission.OTHER_KEY
        if self.tokens.get(token_hash, 0) <= time.time():
            return HostAdmission.NO_TOKEN
        self.tokens[token_hash] = 0  # used
        self.certificates[certificate.host_id] = certificate, public_keys
        return HostAdmission.ADMITTED

    async def list_certificates(self):
        return [stored for stored, _ in self.certificates.values()]


@dataclass
class Fleet:
    """The first host and its listener."""

    folder: Path
    trust: MemoryTrust = field(default_factory=MemoryTrust)
    joined: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = str(self.folder / "first")
        Path(self.home).mkdir()
        self.authority: FleetAuthority = open_authority(self.home, creates=True)
        self.keys = self.machine("first")
        self.pem = self.certify(self.keys, FIRST)
        self.trust.certificates[self.keys.host_id] = (
            StoredCertificate(self.keys.host_id, self.pem, is_revoked=False),
            public_keys(self.keys.signing.public, self.keys.box_public),
        )
        (Path(fleet_folder(self.home)) / "tls.pem").write_text(self.pem)

    def machine(self, name: str, host_id: str | None = None) -> HostKeys:
        """A machine with keys of its own."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return open_host_keys(str(home), host_id or new_id("svc"))

    def certify(
        self,
        keys: HostKeys,
        address: str,
        authority: FleetAuthority | None = None,
        *,
        names: Sequence[str] = (),
    ) -> str:
        return (authority or self.authority).issue(
            keys.tls.public_key(),
            host_id=keys.host_id,
            address=address,
            identity=keys.signing.public,
            box_key=keys.box_public,
            names=names,
        )

    async def token(self, port: int, *, lifetime_s: float = 600) -> JoinToken:
        made = JoinToken.make(
            self.authority, expires_s=int(time.time() + lifetime_s), host=FIRST, port=port
        )
        await self.trust.add_join_token(
            self.authority.token_hash(made.secret, made.expires_s),
            expires_s=made.expires_s,
            made_by="ann",
        )
        return made

    def listening(
        self, *, authority: FleetAuthority | None = None, pods: PodReviewer | None = None
    ):
        listener = EnrolmentListener(
            authority or self.authority,
            self.trust,
            ray_token="r" * 64,
            ray_address=f"{FIRST}:6390",
            recording=self._record,
            pods=pods,
        )
        folder = fleet_folder(self.home)
        return listener.listening(
            FIRST, 0, certificate=f"{folder}/tls.pem", key=f"{folder}/tls.key"
        )

    @contextmanager
    def _record(self, host_id: str, address: str):
        self.joined.append((host_id, address))
        yield
