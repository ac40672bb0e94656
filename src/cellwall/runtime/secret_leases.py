"""Secrets for actions: leased for one action, or for the life of a live sandbox (SEC-3).

Also keeps values of the vault out of the audit log, whatever action they came with (SEC-2):
current values in every encoding that the guard knows, replaced ones by their digests. Texts that
merely look like a credential are redacted by the log itself.
"""

# ruff: noqa: PLC0415  # late imports: most runs open no vault

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from cellwall.core.connections import UseAccount
from cellwall.core.errors import AuditFailed, BadInput, VaultError
from cellwall.core.network import SecretUse
from cellwall.core.types import Action, FetchUrl, Json, Principal, RunCode, ServeClient

if TYPE_CHECKING:
    from cellwall.guard.redact.known import KnownValueSearch
    from cellwall.runtime.vault import AuditedVault
    from cellwall.secrets.leases import Lease


class LendingVault(Protocol):
    """A vault as actions use it: that of this machine, or that of its fleet."""

    @property
    def exists(self) -> bool: ...

    @property
    def is_unlocked(self) -> bool: ...

    @property
    def opens_alone(self) -> bool: ...

    @property
    def generation(self) -> int: ...

    def unlock(self, principal: Principal) -> None: ...

    def watch(self, principal: Principal) -> None: ...

    def lock(self) -> None: ...

    def check_names(self, names: Sequence[str], principal: Principal) -> None: ...

    def values(self) -> Mapping[str, bytes]: ...

    def contains_old(self, text: bytes) -> tuple[str, ...]: ...

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
    ) -> Lease: ...

    async def release(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None: ...

    def release_now(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None: ...

    def end_session(self, session_id: str) -> None: ...


_REGISTERED: weakref.WeakValueDictionary[str, AuditedVault] = weakref.WeakValueDictionary()


def register_vault(vault: AuditedVault, home: str) -> None:
    """Let the sandboxes of this process use the vault while it is unlocked."""
    _REGISTERED[home] = vault


def has_open_vault() -> bool:
    """Whether this program has a vault open, for any state folder."""
    return any(vault.is_unlocked for vault in list(_REGISTERED.values()))


@dataclass(frozen=True, slots=True)
class _SessionLease:
    """The lease of a live sandbox, with the data that its release event needs."""

    lease: Lease
    vault: LendingVault
    principal: Principal
    action_id: str


class SecretLeaser:
    """Implements `VaultPort`, and `KnownValues` for the egress leak check."""

    def __init__(
        self,
        make: Callable[[], LendingVault],
        home: str,
        folder_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`make` is called on first use: most runs use no secret, and opening takes time.

        `folder_of` gives the host directory of a live sandbox.
        """
        self._folder_of = folder_of
        self._make = make
        self._made: LendingVault | None = None
        self._home = home
        self._lock = threading.Lock()
        self._kept: dict[str, _SessionLease] = {}

    @property
    def own(self) -> LendingVault:
        """The vault of this runtime."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def unlocked(self) -> LendingVault | None:
        """An unlocked vault: of this runtime, or one that the embedding program has unlocked."""
        for vault in (self._made, _REGISTERED.get(self._home)):
            if vault is not None and vault.is_unlocked:
                return vault
        return None

    @property
    def vault(self) -> LendingVault:
        """The vault to use: an unlocked one, else that of this runtime."""
        return self.unlocked or self.own

    def lend_from(self, vault: LendingVault) -> None:
        """Use this vault instead of that of the state folder."""
        self._made = vault

    def close(self) -> None:
        """Forget its keys; every lease ends."""
        if self._made is not None:
            self._made.lock()

    async def check(self, action: Action) -> None:
        if action.secrets:
            check = self.vault.check_names
            await anyio.to_thread.run_sync(check, _stored_names(action), action.principal)

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[tuple[SecretUse, ...]]:
        if not action.secrets:
            # Egress without secrets: the leak check must know the values, or there is no egress.
            vault = self.vault
            if vault.exists and not vault.is_unlocked:
                await anyio.to_thread.run_sync(vault.watch, action.principal)
            yield ()
        elif action.session_id is not None:
            # The same placeholders for its whole life: code keeps them in variables.
            yield (await self._lease_for_session(action, action.session_id)).uses
        else:
            vault = self.vault
            lease = await self._lease(vault, action)
            try:
                yield lease.uses
            finally:
                with anyio.CancelScope(shield=True):
                    await vault.release(lease, principal=action.principal, action_id=action.id)

    async def _lease_for_session(self, action: Action, session_id: str) -> Lease:
        kept = self._kept.get(session_id)
        if kept is None:
            vault, who = self.vault, action.principal
            made = _SessionLease(await self._lease(vault, action), vault, who, action.id)
            with self._lock:
                kept = self._kept.setdefault(session_id, made)
            if kept is not made:
                await vault.release(made.lease, principal=who, action_id=action.id)
        if set(kept.lease.names) != set(_stored_names(action)):
            raise BadInput("a live sandbox keeps the secrets that it was created with")
        return kept.lease

    async def _lease(self, vault: LendingVault, action: Action) -> Lease:
        return await vault.lease(
            _stored_names(action),
            tool=_tool(action),
            principal=action.principal,
            session_id=action.session_id or "",
            action_id=action.id,
            project=await anyio.to_thread.run_sync(self._project, action),
        )

    def _project(self, action: Action) -> str:
        """The host directory that a person has given to the sandbox."""
        folder = action.workspace.host_path
        if action.session_id is not None:
            folder = self._folder_of(action.session_id)
        return os.path.realpath(folder) if folder else ""

    def values(self) -> Mapping[str, bytes]:
        """Empty only where there is no value, or a person would have to type the passphrase.

        A vault that opens without a person is unlocked before there is egress. If it is locked
        again, the leak check must fail rather than see no values (NET-5).
        """
        from cellwall.secrets import failures

        vault = self.vault
        if not vault.is_unlocked and vault.opens_alone:
            raise failures.shut(failures.locked())
        return vault.values()

    def end_session(self, session_id: str) -> None:
        with self._lock:
            kept = self._kept.pop(session_id, None)
        if kept is not None:
            # A failing audit log is reported by the session-end event, which follows.
            with suppress(AuditFailed):
                kept.vault.release_now(
                    kept.lease, principal=kept.principal, action_id=kept.action_id
                )
        if self._made is not None:
            self._made.end_session(session_id)


def _stored_names(action: Action) -> tuple[str, ...]:
    """The names in the vault: a user of the service can only name the own secrets (RBAC-3)."""
    from cellwall.secrets.ownership import stored_name

    return tuple(stored_name(name, action.principal) for name in action.secrets)


def _tool(action: Action) -> str:
    """The tool name in grants. In a live sandbox a request cannot be traced to one action."""
    if action.session_id is not None:
        return "sandbox"
    if isinstance(action.operation, FetchUrl | ServeClient):
        return "fetch" if isinstance(action.operation, FetchUrl) else "proxy"
    if isinstance(action.operation, UseAccount):
        return "account"
    return "code" if isinstance(action.operation, RunCode) else "run"


_MIN_VALUE_BYTES = 6
"""Shorter values occur in every text by chance."""
_MIN_NUMBER, _MAX_NUMBER = 10**5, 10**1000
"""The digits of a shorter number are no known value; a longer one cannot be serialised."""


class RecordRedactor:
    """Removes values of the vault from the body of an event."""

    def __init__(self, leaser: SecretLeaser) -> None:
        self._leaser = leaser
        self._seen: tuple[int, int] | None = None
        self._known: KnownValueSearch | None = None
        self._short: tuple[tuple[str, bytes], ...] = ()

    def __call__(self, body: dict[str, Json]) -> dict[str, Json]:
        """The body itself where nothing can be in it."""
        vault = self._leaser.unlocked
        if vault is None:
            return body
        try:
            seen = (id(vault), vault.generation)
            if seen != self._seen:
                from cellwall.guard.redact.known import KnownValueSearch
                from cellwall.parsing.credentials.known_forms import MIN_BYTES

                values = vault.values()
                self._known = KnownValueSearch(values.items())
                self._short = tuple(
                    (name, value)
                    for name, value in values.items()
                    if _MIN_VALUE_BYTES <= len(value) < MIN_BYTES
                )
                self._seen = seen
        except VaultError:
            pass  # damaged meanwhile: values read before are still redacted
        # Top-level keys are our own: a secret with the value `status` must not remove them.
        return {key: self._clean(value) for key, value in body.items()}

    def _clean(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._clean_all(value)
        if isinstance(value, Sequence):
            return [self._clean(each) for each in value]
        if isinstance(value, int) and _MIN_NUMBER <= abs(value) < _MAX_NUMBER:
            # A card or account number stored as text may occur here as a number.
            text = str(value)
            shown = self._text(text)
            return value if shown == text else shown
        return value

    def _clean_all(self, mapping: Mapping[str, Json]) -> dict[str, Json]:
        """Keys below the first level may be chosen by an agent, as in a tool's arguments."""
        cleaned: dict[str, Json] = {}
        times: dict[str, int] = {}
        for key, value in mapping.items():
            clean = name = self._text(key)
            # Two keys with secrets may be equal once redacted; neither is lost.
            while name in cleaned or (name != key and name in mapping):
                times[clean] = times.get(clean, 1) + 1
                name = f"{clean} ({times[clean]})"
            cleaned[name] = self._clean(value)
        return cleaned

    def _text(self, text: str) -> str:
        if len(text) < _MIN_VALUE_BYTES:
            return text
        try:
            data, handler = text.encode("utf-8", "surrogateescape"), "surrogateescape"
        except UnicodeEncodeError:  # a lone surrogate that stands for no byte
            data, handler = text.encode("utf-8", "surrogatepass"), "surrogatepass"
        cleaned = self._without_known(data)
        try:
            old = self._leaser.vault.contains_old(cleaned)
        except VaultError:
            old = ()
        if old:
            return f"[left out: holds an old value of {', '.join(old)}]"
        if cleaned == data:
            return text
        try:
            return cleaned.decode("utf-8", handler)
        except UnicodeDecodeError:  # a binary value was cut out of the middle of a character
            return cleaned.decode("utf-8", "replace")

    def _without_known(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        done = 0
        for span in self._known.find(data, 0, is_final=True)[0] if self._known else ():
            parts += data[done : span.start], b"[%s]" % span.rule.encode()
            done = span.end
        data = b"".join([*parts, data[done:]])
        # The guard finds short values as whole words alone; the log removes them anywhere.
        for name, value in self._short:
            data = data.replace(value, b"[secret %s]" % name.encode())
        return data
