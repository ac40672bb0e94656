"""The vault with an audit log: every unlock, lease and release is logged, and roles are checked.

Actions lease secrets here; `admin/vault.py` adds the changes that people make.
"""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

import anyio

from cellwall.audit.log import AuditLog
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import AuditFailed, CellwallError, VaultError
from cellwall.core.forks import OwnerProcess
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange, error_body, open_record
from cellwall.runtime.signed_grants import signed_grants
from cellwall.sandbox.linux._syscalls import set_not_dumpable
from cellwall.secrets import failures
from cellwall.secrets.format import KEY_SOURCES, KeySource, VaultSettings
from cellwall.secrets.leases import Lease, check_secret_name
from cellwall.secrets.sealing import wipe
from cellwall.secrets.session_keys import SessionKeys
from cellwall.secrets.store import VaultStore

AskPassphrase = Callable[[bool], bytearray]
"""Asks for the passphrase; the argument is true for a new one, typed twice. The vault wipes it."""


def vault_settings(settings: Settings) -> VaultSettings:
    """The key settings as configured."""
    vault = settings.vault
    source = next(each for each in KEY_SOURCES if each == vault.key)
    return VaultSettings(
        key=source,
        key_file=vault.key_file,
        key_command=vault.key_command,
        argon2_memory_kib=vault.argon2_memory_kib,
        argon2_passes=vault.argon2_passes,
        argon2_lanes=vault.argon2_lanes,
    )


class AuditedVault:
    """The vault of one state folder. Implements `core.network.KnownValues`."""

    def __init__(
        self,
        home: str,
        settings: Settings,
        *,
        ask: AskPassphrase | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._home = home
        self._settings = settings
        self._ask = ask
        self._audit = audit
        self._chosen = vault_settings(settings)
        self._grants = signed_grants(home, settings)
        self._store = self._open_store()

    def _open_store(self) -> VaultStore:
        return VaultStore(os.path.join(self._home, "vault"), self._chosen, grants=self._grants)

    @classmethod
    def configured(
        cls,
        *,
        config: str | None = None,
        profile: str | None = None,
        ask: AskPassphrase | None = None,
    ) -> Self:
        """The vault of the configuration and the environment."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings, ask=ask)

    @property
    def home(self) -> str:
        """The state folder of the vault."""
        return self._home

    @property
    def exists(self) -> bool:
        return self._store.exists

    @property
    def is_unlocked(self) -> bool:
        return self._store.is_unlocked

    @property
    def generation(self) -> int:
        return self._store.generation

    @property
    def opens_alone(self) -> bool:
        """Whether it opens without a person; also true where a damaged vault cannot say."""
        if not self._store.exists:
            return False
        try:
            return self._store.source != "passphrase"
        except VaultError:
            return True

    def unlock(self, principal: Principal, *, restored: bool = False) -> None:
        """Unlock the vault. Success and failure are both logged."""
        require(self._settings, principal, Permission.SECRETS_USE)
        self._unlock(principal, restored=restored)

    def watch(self, principal: Principal) -> None:
        """Unlock a vault that opens without a person: the leak check needs its values (NET-5).

        No role is checked, since no secret is used: the values that must not leave are the same for
        every principal. Raises `VaultError` if the vault does not open.
        """
        if self._store.is_unlocked or not self.opens_alone:
            return
        try:
            self._unlock(principal, restored=False)
        except VaultError as error:
            raise failures.shut(error) from None

    def _unlock(self, principal: Principal, *, restored: bool) -> None:
        with self._record() as audit:
            try:
                with self._passphrase(self._store.source, is_new=False) as passphrase:
                    self._store.unlock(passphrase, restored=restored)
                    adopt_session_keys(self._home, self._store)
                    note_unlocked(self)
                    body: dict[str, Json] = {"id": self._store.id, "restored": restored}
                    self._write(audit, principal, "unlock", "ok", body)
                    if passphrase is not None and not restored and self._store.is_weaker:
                        self._strengthen(audit, principal, passphrase)
            except CellwallError as error:
                self._store.lock()
                with suppress(AuditFailed):  # a second failure must not hide the first
                    self._write(audit, principal, "unlock", "failed", error_body(error))
                raise

    def session_key(self, vault: str) -> bytearray:
        """The key that opens the private keys of session data (FS-5), if this is their vault.

        No secret is used, so no role is checked and no event is written: reading the log must not
        write to it.
        """
        if not self._store.exists:
            raise failures.session_locked("there is no vault")
        if not self._store.is_unlocked:
            with self._passphrase(self._store.source, is_new=False) as passphrase:
                self._store.unlock(passphrase)
        if self._store.id != vault:
            raise failures.session_locked("the vault is another one")
        return self._store.session_key()

    def lock(self) -> None:
        """Forget the keys; every lease ends."""
        self._store.lock()

    def _strengthen(self, audit: AuditLog, principal: Principal, passphrase: bytearray) -> None:
        """SEC-1: raise the cost of a guess while the passphrase is at hand."""
        change = AdminChange(EventKind.VAULT, "strengthen", "vault", {})
        with change.recorded(audit, principal) as outcome:
            self._store.strengthen(passphrase)
            outcome["generation"] = self._store.generation

    def check_names(self, names: Sequence[str], principal: Principal) -> None:
        """Raise unless each name is the name of a secret."""
        self._open(principal, Permission.SECRETS_USE)
        if not all(self._store.has(name) for name in names):
            raise failures.unknown_secret()

    def values(self) -> Mapping[str, bytes]:
        """Values that must not leave; see `core.network.KnownValues`."""
        return self._store.values()

    def contains_old(self, text: bytes) -> tuple[str, ...]:
        """Names of the secrets whose current or old value occurs in the text."""
        return self._store.contains_old(text)

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
        """Lease secrets to an action or a session; logged, with `about`, before the caller gets
        them."""
        require(self._settings, principal, Permission.SECRETS_USE)
        body: dict[str, Json] = {"names": [], "tool": tool, **(about or {})}
        lease: Lease | None = None
        for each in names:
            check_secret_name(each)
        try:
            if not self._store.is_unlocked:
                await anyio.to_thread.run_sync(self.unlock, principal)
            # Known names only: a text typed in place of a name may be a value (SEC-2).
            body["names"] = [each for each in names if self._store.has(each)]
            lease = self._store.lease(names, tool=tool, session=session_id, project=project)
            body["generation"] = self._store.generation
        except CellwallError as error:
            refused = body | error_body(error)
            with suppress(AuditFailed):  # a second failure must not hide the first
                await self._write_use(principal, "lease", "refused", refused, action_id, session_id)
            raise
        try:
            await self._write_use(principal, "lease", "ok", body, action_id, session_id)
        except BaseException:
            lease.end()
            raise
        return lease

    async def release(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        """End the lease, even if the event cannot be written."""
        lease.end()
        await self._write_use(
            principal, "release", "ok", release_body(lease), action_id, lease.session
        )

    def release_now(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        """`release` for a caller without an event loop."""
        lease.end()
        body = release_body(lease)
        with self._record() as audit:
            audit.write(vault_event(principal, "release", "ok", body, action_id, lease.session))

    def end_session(self, session_id: str) -> None:
        """End every lease of the session."""
        self._store.end_session(session_id)

    def _open(self, principal: Principal, permission: Permission) -> None:
        """Steps (1) and (2) of a change: the role permits it, the vault opens."""
        require(self._settings, principal, permission)
        if not self._store.is_unlocked:
            self.unlock(principal)

    @contextmanager
    def _record(self) -> Iterator[AuditLog]:
        if self._audit is not None:
            yield self._audit
            return
        with open_record(self._home, self._settings) as audit:
            yield audit

    def _write(
        self, audit: AuditLog, who: Principal, what: str, status: str, body: dict[str, Json]
    ) -> None:
        audit.write(vault_event(who, what, status, body, new_id("act"), ""))

    async def _write_use(
        self,
        who: Principal,
        what: str,
        status: str,
        body: dict[str, Json],
        action_id: str,
        session_id: str,
    ) -> None:
        with self._record() as audit:
            await audit.record(vault_event(who, what, status, body, action_id, session_id))

    @contextmanager
    def _passphrase(
        self, source: KeySource, *, is_new: bool, ask: AskPassphrase | None = None
    ) -> Iterator[bytearray | None]:
        keep_out_of_core_files()  # every path to a key passes here
        ask = ask or self._ask
        if source != "passphrase":
            yield None
            return
        if ask is None:
            raise VaultError(
                "the vault needs a passphrase, and no person can be asked for it here",
                hint="A program opens it with cellwall.Vault.open(passphrase); for use without a "
                "person, choose another key: `cellwall vault rekey --key file`.",
                code="CW-VAULT-NO-KEY",
            )
        passphrase = ask(is_new)
        try:
            yield passphrase
        finally:
            wipe(passphrase)


_unlocked: weakref.WeakSet[AuditedVault] = weakref.WeakSet()


def note_unlocked(vault: AuditedVault) -> None:
    """Make an unlocked vault known to `unlocked_vault`, as long as it lives."""
    _unlocked.add(vault)


def unlocked_vault(home: str) -> AuditedVault | None:
    """A vault of this state folder that this process has unlocked, for whatever use."""
    found = (each for each in list(_unlocked) if each.home == home and each.is_unlocked)
    return next(found, None)


def adopt_session_keys(home: str, store: VaultStore) -> None:
    """Move the private keys of session data under an unlocked vault (FS-5)."""
    keys, key = SessionKeys(home), store.session_key()
    try:
        keys.adopt(store.id, key)
    finally:
        wipe(key)
        keys.close()


def vault_event(
    who: Principal, what: str, status: str, body: dict[str, Json], action_id: str, session_id: str
) -> Event:
    """An event of the vault; names, never values."""
    names = body.get("names")
    about = ", ".join(map(str, names)) if isinstance(names, list) else "vault"
    event = {"change": what, "message": f"{what} {about}: {status}", "status": status, **body}
    return Event(EventKind.VAULT, action_id, who.name, who.interface, event, session_id)


def release_body(lease: Lease) -> dict[str, Json]:
    """The leased names, and how often the proxy read each value."""
    return {"names": list(lease.names), "revealed": dict(lease.revealed)}


_protected: OwnerProcess | None = None
"""The process whose memory `keep_out_of_core_files` has protected."""


def keep_out_of_core_files() -> None:
    """Keep secret values out of core files and debuggers (ISO-13), before the first key is read.

    For the rest of this process and its forks; programs it executes have memory of their own and
    inherit only the limit.

    (1) the limit: no core file is written, and none is piped to a program in core_pattern. It is 1,
    not 0: at 0 the kernel still starts that program, core(5), also for a crash in a cell, which
    could not raise the limit again;
    (2) not dumpable: no core file either way, and only CAP_SYS_PTRACE can read the memory;
    (3) the filter: if the process becomes dumpable again, the core file holds no memory.
    """
    global _protected  # a state of the process
    if _protected is not None and _protected.is_current:
        return
    try:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0) if hard == 0 else (1, 1))
        # Before (2), after which the files of /proc/self belong to root.
        with suppress(OSError), open("/proc/self/coredump_filter", "w", encoding="ascii") as file:
            file.write("0")
        set_not_dumpable()
    except (OSError, ValueError) as error:
        raise VaultError(
            "the memory of this process cannot be kept out of core files",
            hint="Allow it to lower RLIMIT_CORE and to call prctl(PR_SET_DUMPABLE).",
            code="CW-VAULT-MEMORY",
            detail=str(error),
        ) from error
    _protected = OwnerProcess()
