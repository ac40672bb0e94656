"""The vault with an audit log: every unlock, lease and release is logged, and roles are checked.

Actions lease secrets here; `admin/vault.py` adds the changes that people make.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

import anyio

from cellwall.audit.log import AuditLog
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import AuditFailed, CellwallError, VaultError
from cellwall.core.events import Event, EventKind
from cellwall.core.roles import Permission
from cellwall.core.types import Json, Principal, new_id
from cellwall.runtime.home import state_home
from cellwall.runtime.permissions import require
from cellwall.runtime.recording import Change, open_record
from cellwall.sandbox.linux._syscalls import set_not_dumpable
from cellwall.secrets import failures
from cellwall.secrets.grants import check_secret_name
from cellwall.secrets.leases import Lease
from cellwall.secrets.memory import wipe
from cellwall.secrets.settings import KEY_SOURCES, KeySource, VaultSettings
from cellwall.secrets.vault import Vault as Store

AskPassphrase = Callable[[bool], bytearray]
"""Given by the interface; told whether it is a new one, which a person types twice. We wipe it."""


def vault_settings(settings: Settings) -> VaultSettings:
    """As the configuration says it."""
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
        self._store = Store(os.path.join(home, "vault"), self._chosen)

    @classmethod
    def configured(
        cls,
        *,
        config: str | None = None,
        profile: str | None = None,
        ask: AskPassphrase | None = None,
    ) -> Self:
        """As the configuration and the environment say."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings, ask=ask)

    @property
    def home(self) -> str:
        """The state folder that it belongs to."""
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
        """Whether it needs no person; also where that cannot be read, since it is damaged."""
        if not self._store.exists:
            return False
        try:
            return self._store.source != "passphrase"
        except VaultError:
            return True

    def unlock(self, principal: Principal, *, restored: bool = False) -> None:
        """With the key that opens it. Success and failure are both on the record."""
        require(self._settings, principal, Permission.SECRETS_USE)
        self._unlock(principal, restored=restored)

    def watch(self, principal: Principal) -> None:
        """Open what opens without a person, so that its values do not leave unseen (NET-5).

        No role is asked, since nothing is used: what must not leave is the same for everybody.
        Raises `VaultError` if it does not open.
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
                    told: dict[str, Json] = {"id": self._store.id, "restored": restored}
                    self._write(audit, principal, "unlock", "ok", told)
                    if passphrase is not None and not restored and self._store.is_weaker:
                        self._strengthen(audit, principal, passphrase)
            except CellwallError as error:
                self._store.lock()
                with suppress(AuditFailed):  # a second failure must not hide the first
                    self._write(audit, principal, "unlock", "failed", _error_body(error))
                raise

    def lock(self) -> None:
        """Forget its keys; every lease ends."""
        self._store.lock()

    def _strengthen(self, audit: AuditLog, principal: Principal, passphrase: bytearray) -> None:
        """SEC-1: what a guess costs is raised over time, when the passphrase is at hand."""
        change = Change(EventKind.VAULT, "strengthen", "vault", {})
        with change.recorded(audit, principal) as outcome:
            self._store.strengthen(passphrase)
            outcome["generation"] = self._store.generation

    def check_names(self, names: Sequence[str], principal: Principal) -> None:
        """Raises unless each of them is the name of a secret."""
        self._open(principal, Permission.SECRETS_USE)
        if not all(self._store.has(name) for name in names):
            raise failures.unknown_secret()

    def values(self) -> Mapping[str, bytes]:
        """What must not leave; see `core.network.KnownValues`."""
        return self._store.values()

    def contains_old(self, text: bytes) -> tuple[str, ...]:
        """Names of values, also of old ones, that stand in a text."""
        return self._store.contains_old(text)

    async def lease(
        self,
        names: Sequence[str],
        *,
        tool: str,
        principal: Principal,
        session_id: str = "",
        action_id: str = "",
    ) -> Lease:
        """Lend secrets to an action or a session; on the record before anybody has them."""
        require(self._settings, principal, Permission.SECRETS_USE)
        told: dict[str, Json] = {"names": [], "tool": tool}
        lease: Lease | None = None
        for each in names:
            check_secret_name(each)
        try:
            if not self._store.is_unlocked:
                await anyio.to_thread.run_sync(self.unlock, principal)
            # Only what is a name: what somebody typed in its place may be a value (SEC-2).
            told["names"] = [each for each in names if self._store.has(each)]
            lease = self._store.lease(names, tool=tool, session=session_id)
            told["generation"] = self._store.generation
        except CellwallError as error:
            body = told | _error_body(error)
            with suppress(AuditFailed):  # a second failure must not hide the first
                await self._write_use(principal, "lease", "refused", body, action_id, session_id)
            raise
        try:
            await self._write_use(principal, "lease", "ok", told, action_id, session_id)
        except BaseException:
            lease.end()
            raise
        return lease

    async def release(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        """The lease ends, whatever becomes of the record of it."""
        lease.end()
        await self._write_use(principal, "release", "ok", released(lease), action_id, lease.session)

    def release_now(self, lease: Lease, *, principal: Principal, action_id: str = "") -> None:
        """The same, for whoever has no event loop any more."""
        lease.end()
        told = released(lease)
        with self._record() as audit:
            audit.write(vault_event(principal, "release", "ok", told, action_id, lease.session))

    def end_session(self, session_id: str) -> None:
        """Every lease of it ends."""
        self._store.end_session(session_id)

    def _open(self, principal: Principal, permission: Permission) -> None:
        """(1) and (2)."""
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
        keep_out_of_core_files()  # every way to a key leads through here
        ask = ask or self._ask
        if source != "passphrase":
            yield None
            return
        if ask is None:
            raise VaultError(
                "the vault is opened by a passphrase, and nobody can be asked for it here",
                hint="A program opens it with cellwall.Vault.open(passphrase); for use without a "
                "person, choose another key: `cellwall vault rekey --key file`.",
                code="CW-VAULT-NO-KEY",
            )
        passphrase = ask(is_new)
        try:
            yield passphrase
        finally:
            wipe(passphrase)


def vault_event(
    who: Principal, what: str, status: str, body: dict[str, Json], action_id: str, session_id: str
) -> Event:
    """Of something that was done with the vault; names, never values."""
    names = body.get("names")
    about = ", ".join(map(str, names)) if isinstance(names, list) else "vault"
    told = {"change": what, "message": f"{what} {about}: {status}", "status": status, **body}
    return Event(EventKind.VAULT, action_id, who.name, who.interface, told, session_id)


def released(lease: Lease) -> dict[str, Json]:
    """What was lent, and how often each was handed to the proxy."""
    return {"names": list(lease.names), "revealed": dict(lease.revealed)}


def _error_body(error: CellwallError) -> dict[str, Json]:
    """Why it was refused, with what is for the record alone."""
    return {"error_code": error.code, "reason": error.message, "detail": error.detail}


_kept_out_by: int | None = None


def keep_out_of_core_files() -> None:
    """For the rest of this process's life, and of what it forks; programs it starts have a memory
    of their own, and only the limit goes on to them. Before the first key is read.

    (1) the limit: no core file is written, and none is handed to a program behind `|` in
    core_pattern. For that it is 1: at 0 the kernel starts it, core(5), also for a crash in a cell,
    which could not raise the limit again;
    (2) not dumpable: no program either way, and nobody without CAP_SYS_PTRACE can look in;
    (3) the filter: were somebody to make it dumpable again, no memory would be in the file.
    """
    global _kept_out_by  # of the process, as what it stands for
    if _kept_out_by == os.getpid():
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
            hint="Let it lower its own limit of core files, and call prctl(PR_SET_DUMPABLE).",
            code="CW-VAULT-MEMORY",
            detail=str(error),
        ) from error
    _kept_out_by = os.getpid()
