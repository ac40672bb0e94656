"""Secrets for actions: lent for one of them, or for as long as a live sandbox lives (SEC-3)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio

from holdfast.core.errors import BadInput, HoldfastError
from holdfast.core.network import SecretUse
from holdfast.core.types import Action, FetchUrl, RunCode
from holdfast.runtime.vault import Lease, Vault


class Lending:
    """Keeps `VaultPort`, and `KnownValues` for whoever watches what leaves."""

    def __init__(self, vault: Vault, home: str) -> None:
        self._own = vault
        self._home = home
        self._lock = threading.Lock()
        self._kept: dict[str, Lease] = {}

    @property
    def vault(self) -> Vault:
        """Ours, or the one that the program around us has opened."""
        return self._own if self._own.is_unlocked else Vault.lent(self._home) or self._own

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[tuple[SecretUse, ...]]:
        if not action.secrets:
            await self._know(action)
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
        lease = self._kept.get(session_id)
        if lease is None:
            made = await _lent(self.vault, action)
            with self._lock:
                lease = self._kept.setdefault(session_id, made)
            if lease is not made:
                made.end()
        if set(lease.names) != set(action.secrets):
            raise BadInput("the secrets of a live sandbox are those it began with")
        return lease

    async def _know(self, action: Action) -> None:
        """What opens without a person is opened, so that its values are recognised (NET-5)."""
        vault = self.vault
        with suppress(HoldfastError):  # which is on the record; the allowlist is the wall
            if vault.exists and not vault.is_unlocked and vault.source != "passphrase":
                await anyio.to_thread.run_sync(vault.unlock, action.principal)

    def values(self) -> Mapping[str, bytes]:
        return self.vault.values()

    def end_session(self, session_id: str) -> None:
        with self._lock:
            lease = self._kept.pop(session_id, None)
        if lease is not None:
            lease.end()
        self._own.end_session(session_id)


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
    if isinstance(action.want, FetchUrl):
        return "fetch"
    return "code" if isinstance(action.want, RunCode) else "run"
