"""The host that keeps the vault of a fleet: lends secrets to the hosts that have the sessions.

A question of another host goes:
  (1) the host that it names has signed it, with a certificate of the fleet's authority that is
      valid and not revoked; (2) its nonce is new;
  (3) this process of the host has a lease in the database; (4) its policy is not older than ours;
  (5) the session lives, and is placed on that host now; (6) the names are those of its owner, who
      still has the role to use secrets; (7) the vault lends them: grants, and the record;
  (8) seal them for the host, for a short time.
Where a step fails nothing is lent. The host asks again before the time is over, and each time all
steps are gone through: a session that has moved, a host that was removed and a grant that was
revoked end the lease. A host that is cut off has the values until the time is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread

from cellwall.core.accounts import User
from cellwall.core.errors import CellwallError, VaultError
from cellwall.core.host_trust import StoredCertificate
from cellwall.core.hosts import HostRecord, SessionPlacement
from cellwall.core.types import AccountRef, Principal
from cellwall.fleet.certificates import HostCertificate, read_host_certificate
from cellwall.fleet.identity import HostKeys
from cellwall.fleet.secret_lending import (
    LendingRefused,
    LentSecret,
    SecretQuestion,
    refuse_answer,
    seal_answer,
)
from cellwall.runtime.secret_leases import LendingVault
from cellwall.secrets.leases import Lease
from cellwall.secrets.ownership import prefix_of

TTL_S = 30.0
_MAX_NONCES = 100_000
_TIDY_EVERY_S = 5.0
_TOOL = "sandbox"
_log = logging.getLogger("cellwall.fleet")


class KeeperStore(Protocol):
    """The database, as far as the keeper reads it."""

    async def list_certificates(self) -> Sequence[StoredCertificate]: ...

    async def list_hosts(self) -> tuple[HostRecord, ...]: ...

    async def session_placement(
        self, session_id: str, *, host_id: str
    ) -> SessionPlacement | None: ...

    async def find_user(self, user_id: str) -> User | None: ...


@dataclass(slots=True)
class _HeldLease:
    """What the vault has lent to one host for one session."""

    lease: Lease
    principal: Principal
    until_s: float


class SecretKeeper:
    """Answers the questions of other hosts."""

    def __init__(
        self,
        vault: Callable[[], LendingVault],
        store: KeeperStore,
        keys: HostKeys,
        authority: str,
        *,
        policy: Callable[[], int],
        lost_after_s: float,
    ) -> None:
        """`policy`: the version of the fleet's policy that this host applies."""
        self._vault, self._store, self._keys, self._authority = vault, store, keys, authority
        self._policy, self._lost_after_s = policy, lost_after_s
        self._nonces: OrderedDict[str, None] = OrderedDict()
        self._held: dict[tuple[str, str, str, tuple[str, ...]], _HeldLease] = {}
        self._lending = asyncio.Lock()

    async def hear(self, message: bytes) -> bytes:
        """The sealed answer, or a refusal. Never raises: an exception would cross Ray as an
        object, with what it carries."""
        try:
            question, signature = SecretQuestion.parse(message)
            host = await self._host_of(question, signature)
            return await self._answer(question, host)
        except VaultError as error:
            return refuse_answer(error)
        except CellwallError as error:
            return refuse_answer(VaultError(error.message, hint=error.hint, code=error.code))
        except Exception as error:  # noqa: BLE001  # see above
            _log.error("a question for secrets failed: %s", type(error).__name__)
            return refuse_answer(LendingRefused("the keeper of the vault failed", hint=_LOG))

    async def _host_of(self, question: SecretQuestion, signature: bytes) -> HostCertificate:
        host: HostCertificate | None = None
        for stored in await self._store.list_certificates():  # (1)
            if stored.host_id == question.host_id and not stored.is_revoked:
                host = read_host_certificate(stored.pem, self._authority)
        if (
            host is None
            or host.host_id != question.host_id
            or not question.is_signed_by(host, signature)
        ):
            raise _refused("it is not signed by a host of this fleet")
        if question.nonce in self._nonces:  # (2)
            raise _refused("it came twice")
        self._nonces[question.nonce] = None
        if len(self._nonces) > _MAX_NONCES:
            self._nonces.popitem(last=False)
        return host

    async def _answer(self, question: SecretQuestion, host: HostCertificate) -> bytes:
        owner_id = await self._owner_of(question)
        user = await self._store.find_user(owner_id)  # (6)
        if user is None or user.is_disabled:
            raise _refused("the owner of the session is gone")
        account = AccountRef(user_id=user.id, teams=frozenset(), credential="", address="")
        principal = Principal(user.name, "http", user.role, None, account)
        if not all(name.startswith(prefix_of(principal)) for name in question.names):
            raise _refused("it names secrets of another user")
        if not question.session_id:
            check = self._vault().check_names
            await anyio.to_thread.run_sync(check, question.names, principal)
            return seal_answer(
                question,
                {name: LentSecret(b"") for name in question.names},
                host=host,
                keeper=self._keys,
                ttl_s=TTL_S,
            )
        async with self._lending:
            held = await self._lease(question, principal)  # (7)
            try:
                values = await anyio.to_thread.run_sync(_reveal, held.lease)
            except VaultError:
                held.until_s = 0.0
                await self._release_unused()
                raise
        secrets = {
            name: LentSecret(value, tuple(each.to_json() for each in held.lease.granted[name]))
            for name, value in values.items()
        }
        return seal_answer(question, secrets, host=host, keeper=self._keys, ttl_s=TTL_S)  # (8)

    async def _owner_of(self, question: SecretQuestion) -> str:
        if question.session_id:
            place = await self._store.session_placement(
                question.session_id, host_id=question.host_id
            )
            record = None if place is None else place.host
        else:
            place = None
            known = {each.id: each for each in await self._store.list_hosts()}
            record = known.get(question.host_id)
        if question.session_id and place is None:
            raise _refused("the session is unknown")
        is_here = (
            record is not None
            and record.incarnation == question.incarnation
            and not record.is_lost
            and record.unseen_s <= self._lost_after_s
        )
        if not is_here:  # (3)
            raise _refused("its host has no lease")
        if question.policy < self._policy():  # (4)
            raise LendingRefused(
                "the host of this session applies an older policy than the fleet's",
                hint="Try again in a moment: the host fetches the newest one.",
                code="CW-FLEET-OLD",
            )
        if place is None:
            return question.owner_id
        if place.is_ended or place.holder_id != question.host_id:  # (5)
            raise _refused("the session is not placed on that host")
        return place.owner_id

    async def _lease(self, question: SecretQuestion, principal: Principal) -> _HeldLease:
        """The lease that the host has already, or a new one; only the latter is recorded."""
        key = (question.host_id, question.incarnation, question.session_id, question.names)
        held = self._held.get(key)
        if held is None or held.lease.is_over:
            vault = self._vault()
            lease = await vault.lease(
                question.names,
                tool=_TOOL,
                principal=principal,
                session_id=question.session_id,
                about={"host": question.host_id},
            )
            held = _HeldLease(lease, principal, 0.0)
            self._held[key] = held
        held.until_s = time.monotonic() + TTL_S
        return held

    async def tidy_up(self) -> None:
        """Release what no host has asked for again; until cancelled."""
        while True:
            await asyncio.sleep(_TIDY_EVERY_S)
            try:
                async with self._lending:
                    await self._release_unused()
            except CellwallError as error:  # the lease has ended, its record is missing
                _log.error("the release of secrets was not recorded: %s", error.code)

    async def _release_unused(self) -> None:
        now_s = time.monotonic()
        for key, held in list(self._held.items()):
            if held.until_s < now_s or held.lease.is_over:
                del self._held[key]
                await self._vault().release(held.lease, principal=held.principal)


def _reveal(lease: Lease) -> dict[str, bytes]:
    """Each time anew: a revoked grant ends the lease here."""
    return {use.name: use.reveal() for use in lease.uses}


_LOG = "The log of the host that keeps the vault says why."


def _refused(reason: str) -> LendingRefused:
    return LendingRefused(
        f"no secret is lent: {reason}",
        hint="`cellwall fleet status` shows the hosts. Create the session again if its host was "
        "lost.",
    )
