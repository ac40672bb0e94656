"""A fleet with a vault: a keeper, two hosts and a database, without Ray between them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import insert, update

from cellwall.admin.fleet_secret_keeper import SecretKeeper
from cellwall.admin.fleet_vault import FleetVault, HostTrustFiles
from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.audit.log import AuditLog
from cellwall.config.models import Settings
from cellwall.core.host_trust import StoredCertificate
from cellwall.core.ids import new_id
from cellwall.core.network import Binding
from cellwall.core.types import AccountRef, Principal
from cellwall.fleet.certificates import open_authority
from cellwall.fleet.enrolment import public_keys
from cellwall.fleet.identity import HostKeys, open_host_keys
from cellwall.runtime.home import local_principal
from cellwall.runtime.recording import open_record
from cellwall.secrets.ownership import stored_name
from cellwall.storage.engine import StorageSettings
from cellwall.storage.fleet_models import HostRow
from cellwall.storage.hosts import database_now
from cellwall.storage.models import SessionRow
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store, open_store
from unit.storage import records

VALUE = b"ghp_value-that-is-looked-for-0001"
NAME = "GITHUB_TOKEN"
LOST_AFTER_S = 3600.0


@dataclass
class Wire:
    """What Ray carries, for everybody to see."""

    seen: list[bytes] = field(default_factory=list)
    change: Callable[[bytes], bytes] = lambda answer: answer


class Peers:
    """Implements `HostPeers` by a direct call."""

    def __init__(self, keeper: SecretKeeper, wire: Wire) -> None:
        self._keeper, self._wire = keeper, wire

    async def ask(self, host_id: str, incarnation: str, question: bytes) -> bytes:
        del host_id, incarnation
        answer = await self._keeper.hear(question)
        self._wire.seen += [question, answer]
        return self._wire.change(answer)


@dataclass
class BorrowingHost:
    """A host without a vault of its own."""

    keys: HostKeys
    incarnation: str
    vault: FleetVault
    audit: AuditLog
    clock_s: list[float]


class LendingFleet:
    """The database, the keeper and its vault; `host` adds a host."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.settings = Settings.model_validate({"vault": {"key": "file"}})
        self.home = folder / "keeper"
        self.home.mkdir(mode=0o700)
        self.authority = open_authority(str(self.home), creates=True)
        self.ann, self.bob = (
            records.user("ann", role="administrator"),
            records.user("bob", role="administrator"),
        )
        self.wire, self.policy = Wire(), 0
        self.vault = VaultAdmin(str(self.home), self.settings)

    async def start(self) -> None:
        local = local_principal("cli")
        self.vault.init(choice=VaultKeyChoice(), principal=local)
        for user in (self.ann, self.bob):
            await self.store.add_user(user)
            name = stored_name(NAME, self.principal(user.id))
            self.vault.set(name, bytearray(VALUE + user.name.encode()), local)
            self.vault.grant(name, Binding(host="api.github.com"), local)
        self.keys = await self._member("keeper", new_id("inc"), {"vault": "keeper"})
        self.keeper = SecretKeeper(
            lambda: self.vault,
            self.store,
            self.keys,
            self.authority.pem,
            policy=lambda: self.policy,
            lost_after_s=LOST_AFTER_S,
        )

    def principal(self, user_id: str) -> Principal:
        account = AccountRef(user_id=user_id, teams=frozenset(), credential="", address="")
        return Principal("x", "http", "administrator", None, account)

    async def _member(self, name: str, incarnation: str, about: dict[str, str]) -> HostKeys:
        home = self.folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        keys = open_host_keys(str(home), new_id("svc"))
        pem = self.authority.issue(
            keys.tls.public_key(),
            host_id=keys.host_id,
            address="127.0.0.2",
            identity=keys.signing.public,
            box_key=keys.box_public,
        )
        stored = StoredCertificate(keys.host_id, pem, is_revoked=False)
        kept = public_keys(keys.signing.public, keys.box_public)
        assert await self.store.keep_certificate(stored, public_keys=kept)
        async with self.store._database.write() as connection:
            values = {"id": keys.host_id, "incarnation": incarnation, "about": about}
            seen_s = await database_now(connection)
            row = insert(HostRow).values(**values, seen_s=seen_s, is_draining=False, lost_s=None)
            await connection.execute(row)
        return keys

    async def host(self, name: str, *, policy: int = 0) -> BorrowingHost:
        incarnation, clock_s = new_id("inc"), [1000.0]
        keys = await self._member(name, incarnation, {})
        audit = open_record(str(self.folder / name), self.settings)
        vault = FleetVault(
            HostTrustFiles(keys, self.authority.pem),
            self.store,
            Peers(self.keeper, self.wire),
            self.settings,
            audit,
            incarnation=incarnation,
            policy=lambda: policy,
            clock=lambda: clock_s[0],
        )
        return BorrowingHost(keys, incarnation, vault, audit, clock_s)

    async def session(self, host: BorrowingHost, owner_id: str = "") -> str:
        """A live session on this host."""
        made = records.session(owner_id or self.ann.id)
        assert await self.store.add_session(made, max_live=99)
        await self.change(made.id, service_id=host.keys.host_id)
        return made.id

    async def change(self, session_id: str, **values: object) -> None:
        async with self.store._database.write() as connection:
            row = update(SessionRow).where(SessionRow.id == session_id)
            await connection.execute(row.values(**values))

    async def change_host(self, host: BorrowingHost, **values: object) -> None:
        async with self.store._database.write() as connection:
            row = update(HostRow).where(HostRow.id == host.keys.host_id)
            await connection.execute(row.values(**values))


@asynccontextmanager
async def lending_fleet(folder: Path) -> AsyncIterator[LendingFleet]:
    settings = StorageSettings(home=str(folder))
    migrate(settings)
    async with open_store(settings) as store:
        made = LendingFleet(folder, store)
        await made.start()
        yield made


def long_ago_s() -> float:
    return time.time() - 10 * LOST_AFTER_S
