"""The vault of a fleet as a host sees it that does not keep it: secrets of its own sessions, lent.

Values are in the memory of this process alone, for a short time that the host measures from before
each question, on a clock that also runs while the machine sleeps. A task asks again before the time
is over. Where the keeper does not answer, values are wiped when their time is over, and come back
with its next answer; where the keeper refuses, the lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio.from_thread

from cellwall.admin.fleet_secret_keeper import KeeperStore, SecretKeeper
from cellwall.audit.log import AuditLog
from cellwall.config.models import Settings
from cellwall.core.errors import AuditFailed, BadInput, CellwallError, ConfigError, VaultError
from cellwall.core.host_trust import StoredCertificate
from cellwall.core.hosts import HostRecord
from cellwall.core.types import Json, Permission, Principal
from cellwall.fleet.certificates import HostCertificate, read_host_certificate
from cellwall.fleet.engine import HostPeers
from cellwall.fleet.identity import CA_FILE, HostKeys, fleet_folder, open_host_keys
from cellwall.fleet.secret_lending import (
    NONCE_BYTES,
    LentSecret,
    LentSecrets,
    SecretQuestion,
    forged_answer,
    open_answer,
)
from cellwall.fleet.states import KEEPER
from cellwall.runtime.judging import require
from cellwall.runtime.vault import keep_out_of_core_files, release_body, vault_event
from cellwall.secrets import failures
from cellwall.secrets.leases import Grant, Lease, check_grant, check_secret_name, parse_grant
from cellwall.secrets.sealing import wipe
from cellwall.storage.service_id import service_id_of

__all__ = ["FleetVault", "HostTrustFiles", "KeeperStore", "SecretKeeper", "open_trust_files"]
RENEW_EVERY_S = 5.0
_MAX_PEM_BYTES = 64 * 1024
_TRANSIENT = frozenset(
    {
        *("CW-FLEET-OLD", "CW-HOST-UNREACHABLE", "CW-FLEET-KEEPER"),
        *("CW-STORAGE-BUSY", "CW-STORAGE-UNUSABLE"),  # here or at the keeper: nobody has refused
    }
)
_log = logging.getLogger("cellwall.fleet")


class LendingStore(Protocol):
    """The database, as far as a host that borrows reads it."""

    async def list_certificates(self) -> Sequence[StoredCertificate]: ...

    async def list_hosts(self) -> tuple[HostRecord, ...]: ...


@dataclass(frozen=True, slots=True, repr=False)
class HostTrustFiles:
    """The keys of this host, and the certificate of its fleet's authority."""

    keys: HostKeys
    authority: str


def open_trust_files(home: str, settings: Settings) -> HostTrustFiles | None:
    """None where each host has a vault of its own; raises without a certificate of the fleet."""
    if settings.fleet.vault == "own":
        return None
    try:
        with open(os.path.join(fleet_folder(home), CA_FILE), encoding="ascii") as file:
            authority = file.read(_MAX_PEM_BYTES)
    except FileNotFoundError:
        raise ConfigError(
            "secrets are lent only between hosts with certificates of the fleet",
            hint="Set vault in [fleet] to own, or let Cellwall start Ray: `cellwall fleet join`.",
            code="CW-FLEET-VAULT",
        ) from None
    return HostTrustFiles(open_host_keys(home, service_id_of(home)), authority)


@dataclass(slots=True, repr=False)
class _Borrowed:
    """The secrets of one session."""

    names: tuple[str, ...]
    values: dict[str, bytearray] = field(default_factory=dict)
    grants: dict[str, list[Grant]] = field(default_factory=dict)
    until_s: float = 0.0
    leases: list[Lease] = field(default_factory=list)

    def take_from(self, newer: _Borrowed) -> None:
        if newer is not self:
            self.wipe()
            self.values, self.grants, self.until_s = newer.values, newer.grants, newer.until_s

    def wipe(self) -> None:
        for each in self.values.values():
            wipe(each)
        self.values.clear()


class FleetVault:
    """Implements `LendingVault`."""

    exists = is_unlocked = opens_alone = True

    def __init__(
        self,
        trust: HostTrustFiles,
        store: LendingStore,
        peers: HostPeers,
        settings: Settings,
        audit: AuditLog,
        *,
        incarnation: str,
        policy: Callable[[], int],
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._trust, self._store, self._peers, self._settings = trust, store, peers, settings
        self._audit, self._incarnation, self._policy, self._clock = (
            audit, incarnation, policy, clock,
        )  # fmt: skip
        self._borrowed: dict[str, _Borrowed] = {}
        self._lock = threading.Lock()
        self.generation = 0

    def unlock(self, principal: Principal) -> None:
        """There is no key to type here."""

    watch = unlock

    def lock(self) -> None:
        for session_id in list(self._borrowed):
            self.end_session(session_id)

    def check_names(self, names: Sequence[str], principal: Principal) -> None:
        """In a worker thread of the service."""
        require(self._settings, principal, Permission.SECRETS_USE)
        for each in names:
            check_secret_name(each)
        owner = "" if principal.account is None else principal.account.user_id
        anyio.from_thread.run(self._ask, tuple(names), "", owner)

    def values(self) -> Mapping[str, bytes]:
        """Of the sessions of this host: others never came here."""
        with self._lock:
            self._forget_expired()
            held = list(self._borrowed.values())
            return {name: bytes(value) for each in held for name, value in each.values.items()}

    def contains_old(self, text: bytes) -> tuple[str, ...]:
        """Digests of old values stay with the keeper."""
        del text
        return ()

    async def lease(
        self,
        names: Sequence[str],
        *,
        tool: str,
        principal: Principal,
        session_id: str = "",
        action_id: str = "",
        project: str = "",
        about: Mapping[str, Json] | None = None,
    ) -> Lease:
        """Borrow secrets for a session of this host; logged before the caller gets them."""
        del project
        require(self._settings, principal, Permission.SECRETS_USE)
        keep_out_of_core_files()
        body: dict[str, Json] = {"names": [], "tool": tool, **(about or {})}
        try:
            if not session_id:
                raise VaultError(
                    "the secrets of a fleet are lent to sessions alone",
                    hint="Create a session with these secrets, and run this in it.",
                    code="CW-FLEET-SESSION",
                )
            held = _Borrowed(tuple(map(check_secret_name, names)))
            keeper_id = await self._renew(session_id, held)
        except CellwallError as error:
            with suppress(AuditFailed):  # a second failure must not hide the first
                refused = body | {"code": error.code}
                await self._write(principal, "lease", "refused", refused, action_id, session_id)
            raise
        source = partial(self._value_for, session_id)
        lease = Lease(source, dict(held.grants), session=session_id, clock=time.time)
        with self._lock:
            # Of two first actions at once, the second one joins what the first has borrowed.
            kept = self._borrowed.setdefault(session_id, held)
            kept.take_from(held)
            kept.leases.append(lease)
            self.generation += 1
        body |= {"names": list(names), "keeper": keeper_id}
        try:
            await self._write(principal, "lease", "ok", body, action_id, session_id)
        except BaseException:
            self.end_session(session_id)
            raise
        return lease

    async def release(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        self._end(lease)
        body = release_body(lease)
        await self._write(principal, "release", "ok", body, action_id, lease.session)

    def release_now(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        self._end(lease)
        body = release_body(lease)
        self._audit.write(vault_event(principal, "release", "ok", body, action_id, lease.session))

    def _end(self, lease: Lease) -> None:
        lease.end()
        held = self._borrowed.get(lease.session)
        if held is not None and all(each.is_over for each in held.leases):
            self.end_session(lease.session)

    def end_session(self, session_id: str) -> None:
        with self._lock:
            held = self._borrowed.pop(session_id, None)
            if held is not None:
                for each in held.leases:
                    each.end()
                held.wipe()
                self.generation += 1

    async def renew(self) -> None:
        """Ask again for what the sessions use; until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self.renew_once()

    async def renew_once(self) -> None:
        for session_id, held in list(self._borrowed.items()):
            try:
                await self._renew(session_id, held)
            except CellwallError as error:
                _log.warning("secrets of a session were not lent again: %s", error.code)
                if error.code not in _TRANSIENT:
                    self.end_session(session_id)
        with self._lock:
            self._forget_expired()

    async def _renew(self, session_id: str, held: _Borrowed) -> str:
        """Returns the keeper."""
        asked_s = self._clock()
        keeper_id, lent = await self._ask(held.names, session_id, "")
        grants = {name: _read_grants(each) for name, each in lent.secrets.items()}
        with self._lock:
            held.wipe()
            for name, each in lent.secrets.items():
                held.values[name], held.grants[name] = bytearray(each.value), grants[name]
            held.until_s = asked_s + lent.ttl_s
            self.generation += 1
            if held.leases and self._borrowed.get(session_id) is not held:
                held.wipe()  # the session has ended meanwhile
        return keeper_id

    def _value_for(self, session_id: str, name: str, grants: frozenset[str]) -> bytes:
        with self._lock:
            self._forget_expired()
            held = self._borrowed.get(session_id)
            is_granted = held is not None and grants <= {
                each.id for each in held.grants.get(name, ())
            }
            if held is None or not is_granted or name not in held.values:
                raise failures.lease_ended(name)
            return bytes(held.values[name])

    def _forget_expired(self) -> None:
        now_s = self._clock()
        for held in self._borrowed.values():
            if held.values and now_s >= held.until_s:
                held.wipe()
                self.generation += 1

    async def _ask(
        self, names: tuple[str, ...], session_id: str, owner_id: str
    ) -> tuple[str, LentSecrets]:
        keeper, record = await self._keeper()
        question = SecretQuestion(
            host_id=self._trust.keys.host_id,
            incarnation=self._incarnation,
            session_id=session_id,
            owner_id=owner_id,
            names=names,
            nonce=secrets.token_hex(NONCE_BYTES),
            policy=self._policy(),
        )
        message = question.signed(self._trust.keys.signing)
        answer = await self._peers.ask(record.id, record.incarnation, message)
        return record.id, open_answer(answer, question, keeper=keeper, own=self._trust.keys)

    async def _keeper(self) -> tuple[HostCertificate, HostRecord]:
        """The one host that keeps the vault. The database names it; its certificate proves it to
        be a host of this fleet, and what it answers is signed."""
        found = [
            each
            for each in await self._store.list_hosts()
            if each.about.get("vault") == KEEPER and not each.is_lost
        ]
        if len(found) == 1:
            for stored in await self._store.list_certificates():
                if stored.host_id == found[0].id and not stored.is_revoked:
                    certificate = read_host_certificate(stored.pem, self._trust.authority)
                    if certificate.host_id == found[0].id:
                        return certificate, found[0]
        raise VaultError(
            f"the fleet has {len(found)} hosts that keep its vault, and needs one",
            hint="Set vault in [fleet] to keeper on one host, and start that host.",
            code="CW-FLEET-KEEPER",
        )

    async def _write(
        self,
        who: Principal,
        what: str,
        status: str,
        body: dict[str, Json],
        action_id: str,
        session_id: str,
    ) -> None:
        await self._audit.record(vault_event(who, what, status, body, action_id, session_id))


def _read_grants(lent: LentSecret) -> list[Grant]:
    """A keeper of another version may have signed what this one cannot read."""
    try:
        return [check_grant(parse_grant(fields)) for fields in lent.grants]
    except (KeyError, TypeError, AttributeError, BadInput):
        raise forged_answer() from None
