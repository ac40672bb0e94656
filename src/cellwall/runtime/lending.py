"""Secrets for actions: lent for one of them, or for as long as a live sandbox lives (SEC-3)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from cellwall.core.errors import AuditFailed, BadInput
from cellwall.core.network import SecretUse
from cellwall.core.types import Action, FetchUrl, Principal, RunCode

if TYPE_CHECKING:
    from cellwall.runtime.vault import Lease, Vault

_OPENED: weakref.WeakValueDictionary[str, Vault] = weakref.WeakValueDictionary()


def lend_from(vault: Vault, home: str) -> None:
    """Let the sandboxes of this process use it for as long as it is unlocked."""
    _OPENED[home] = vault


@dataclass(frozen=True, slots=True)
class _Kept:
    """A live sandbox's lease, and what the record needs at its end."""

    lease: Lease
    vault: Vault
    principal: Principal
    action_id: str


class Lending:
    """Keeps `VaultPort`, and `KnownValues` for whoever watches what leaves."""

    def __init__(self, make: Callable[[], Vault], home: str) -> None:
        """`make` is called with the first use: most runs have none, and it takes its time."""
        self._make = make
        self._made: Vault | None = None
        self._home = home
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    @property
    def own(self) -> Vault:
        """Ours."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def opened(self) -> Vault | None:
        """One that is unlocked: ours, or the one that the program around us has opened."""
        for vault in (self._made, _OPENED.get(self._home)):
            if vault is not None and vault.is_unlocked:
                return vault
        return None

    @property
    def vault(self) -> Vault:
        """The one to use."""
        return self.opened or self.own

    def close(self) -> None:
        """Forget its keys; every lease ends."""
        if self._made is not None:
            self._made.lock()

    async def check(self, action: Action) -> None:
        if action.secrets:
            check = self.vault.check_names
            await anyio.to_thread.run_sync(check, action.secrets, action.principal)

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[tuple[SecretUse, ...]]:
        if not action.secrets:
            # Whoever has a way out: what the vault holds is recognised on it, or there is none.
            vault = self.vault
            if vault.exists and not vault.is_unlocked:
                await anyio.to_thread.run_sync(vault.watch, action.principal)
            yield ()
        elif action.session_id is not None:
            # The same placeholders for as long as it lives: code keeps them in its variables.
            yield (await self._kept_for(action, action.session_id)).uses
        else:
            vault = self.vault
            lease = await _lent(vault, action)
            try:
                yield lease.uses
            finally:
                with anyio.CancelScope(shield=True):
                    await vault.release(lease, principal=action.principal, action_id=action.id)

    async def _kept_for(self, action: Action, session_id: str) -> Lease:
        kept = self._kept.get(session_id)
        if kept is None:
            vault, who = self.vault, action.principal
            made = _Kept(await _lent(vault, action), vault, who, action.id)
            with self._lock:
                kept = self._kept.setdefault(session_id, made)
            if kept is not made:
                await vault.release(made.lease, principal=who, action_id=action.id)
        if set(kept.lease.names) != set(action.secrets):
            raise BadInput("the secrets of a live sandbox are those it began with")
        return kept.lease

    def values(self) -> Mapping[str, bytes]:
        """Empty only where there is nothing to know, or a person would have to be asked.

        A vault that opens without one is open before there is a way out; if it is not any more,
        whoever watches must not find nothing (NET-5).
        """
        from cellwall.secrets import failures  # noqa: PLC0415  # only with a way out

        vault = self.vault
        if not vault.is_unlocked and vault.opens_alone:
            raise failures.shut(failures.locked())
        return vault.values()

    def end_session(self, session_id: str) -> None:
        with self._lock:
            kept = self._kept.pop(session_id, None)
        if kept is not None:
            # Whose record cannot be written is told by the session's own end, which follows.
            with suppress(AuditFailed):
                kept.vault.release_now(
                    kept.lease, principal=kept.principal, action_id=kept.action_id
                )
        if self._made is not None:
            self._made.end_session(session_id)


async def _lent(vault: Vault, action: Action) -> Lease:
    return await vault.lease(
        action.secrets,
        tool=_tool(action),
        principal=action.principal,
        session_id=action.session_id or "",
        action_id=action.id,
    )


def _tool(action: Action) -> str:
    """The word that grants use for it. In a live sandbox nobody can tell whose request it is."""
    if action.session_id is not None:
        return "sandbox"
    if isinstance(action.operation, FetchUrl):
        return "fetch"
    return "code" if isinstance(action.operation, RunCode) else "run"
