"""The vault for the record: who may use and change it, and that each of it is written down.

A change goes:
  (1) the role permits it; (2) the vault opens, which is an event itself;
  (3) write the intent, with the name and never a value; a failed write refuses (AUD-1);
  (4) change; (5) write the outcome with the new generation: who puts an older vault back together
      with its own note of the last generation is found by comparing with these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import anyio

from cellwall.audit.log import AuditLog
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import AuditFailed, BadInput, CellwallError, VaultError
from cellwall.core.events import EventKind
from cellwall.core.network import Binding
from cellwall.core.roles import Permission
from cellwall.core.types import Json, Principal, new_id
from cellwall.egress.reach.allowlist import parse_rule
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.core_files import keep_out_of_core_files
from cellwall.runtime.home import state_home
from cellwall.runtime.permissions import require
from cellwall.runtime.record import Change, open_record
from cellwall.runtime.vault_events import released, told_error, vault_event
from cellwall.runtime.vault_keys import AskPassphrase, KeyChoice, vault_settings
from cellwall.secrets import failures
from cellwall.secrets.format import KEY_SOURCES, KeySource
from cellwall.secrets.leases import Grant, Lease, check_secret_name
from cellwall.secrets.sealing import wipe
from cellwall.secrets.store import MAX_VALUE_BYTES, SecretInfo
from cellwall.secrets.store import VaultStore as Store
from cellwall.secrets.values import weakness

__all__ = [
    "KEY_SOURCES",
    "MAX_VALUE_BYTES",
    "Grant",
    "KeySource",
    "Lease",
    "SecretInfo",
    "Vault",
    "weakness",
    "wipe",
]


class Vault:
    """The vault of one state folder. Keeps `core.network.KnownValues`."""

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
    ) -> Vault:
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
    def id(self) -> str:
        return self._store.id

    @property
    def generation(self) -> int:
        return self._store.generation

    @property
    def source(self) -> KeySource:
        """What opens it."""
        return self._store.source

    @property
    def opens_alone(self) -> bool:
        """Whether it needs no person; also where that cannot be read, since it is damaged."""
        if not self._store.exists:
            return False
        try:
            return self._store.source != "passphrase"
        except VaultError:
            return True

    @property
    def is_cheap_to_guess(self) -> bool:
        """Whether the passphrase is hashed for less than is advised."""
        return self._chosen.is_cheap_to_guess

    @property
    def missing_setting(self) -> str:
        """What the configuration has to say now, so that the key is found the next time."""
        wanted, said = self._chosen, vault_settings(self._settings)
        if wanted.key == "file" and wanted.key_file != said.key_file:
            return "[vault] key_file"
        if wanted.key == "command" and wanted.key_command != said.key_command:
            return "[vault] key_command"
        return ""

    # Opening and closing

    def init(self, *, choice: KeyChoice, principal: Principal) -> None:
        """Make it; it is unlocked then."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        settings = choice.over(vault_settings(self._settings))
        directory = os.path.join(self._home, "vault")
        if self._store.exists:
            raise failures.exists(directory)
        store = Store(directory, settings)
        change = Change(EventKind.VAULT, "init", "vault", {"key": settings.key})
        with (
            self._passphrase(settings.key, is_new=True) as passphrase,
            self._record() as audit,
            change.recorded(audit, principal) as outcome,
        ):
            store.init(passphrase)
            outcome |= {"id": store.id, "generation": store.generation}
        self._store, self._chosen = store, settings

    def find_by(self, choice: KeyChoice) -> None:
        """Look for its key where the caller says, and not where the configuration does."""
        self._chosen = choice.over(vault_settings(self._settings))
        self._store = Store(os.path.join(self._home, "vault"), self._chosen)

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
                    self._write(audit, principal, "unlock", "failed", told_error(error))
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

    # Changes

    def list(self, principal: Principal) -> tuple[SecretInfo, ...]:
        """Names, versions and grants; never a value (SEC-2)."""
        self._open(principal, Permission.SECRETS_USE)
        return self._store.list()

    def check_names(self, names: Sequence[str], principal: Principal) -> None:
        """Raises unless each of them is the name of a secret."""
        self._open(principal, Permission.SECRETS_USE)
        if not all(self._store.has(name) for name in names):
            raise failures.unknown_secret()

    def prepare(self, name: str, principal: Principal, *, must_exist: bool) -> None:
        """Refuse what can be refused before a person has typed a value."""
        check_secret_name(name)
        self._open(principal, Permission.CONFIG_WRITE)
        if must_exist and not self._store.has(name):
            raise failures.unknown_secret()

    def set(self, name: str, value: bytes | bytearray, principal: Principal) -> int:
        """Store a value, new or in the place of another; returns its version."""
        with self._changing("set", name, principal, may_be_new=True) as outcome:
            outcome["version"] = version = self._store.set(name, value)
        return version

    def rotate(self, name: str, value: bytes | bytearray, principal: Principal) -> int:
        """A new value for a secret that is there; returns its version."""
        with self._changing("rotate", name, principal) as outcome:
            outcome["version"] = version = self._store.rotate(name, value)
        return version

    def end_overlap(self, name: str, principal: Principal) -> bool:
        """Wipe the value before the current one."""
        with self._changing("end-overlap", name, principal) as outcome:
            outcome["wiped"] = is_wiped = self._store.end_overlap(name)
        return is_wiped

    def remove(self, name: str, principal: Principal) -> None:
        """The secret with its values and grants."""
        with self._changing("remove", name, principal):
            self._store.remove(name)

    def grant(
        self,
        name: str,
        binding: Binding,
        principal: Principal,
        *,
        tools: Sequence[str] = (),
        session: str = "",
        until_s: float | None = None,
    ) -> Grant:
        """Let it be used at one place on the wire."""
        refuse_agents("a grant of a secret")
        binding = replace(binding, host=_canonical_host(binding.host))
        with self._changing("grant", name, principal) as outcome:
            made = self._store.grant(name, binding, tools=tools, session=session, until_s=until_s)
            outcome["grant"] = made.to_json()
        return made

    def revoke(self, name: str, grant_id: str | None, principal: Principal) -> int:
        """One grant, or all; tells how many."""
        with self._changing("revoke", name, principal) as outcome:
            outcome["grants"] = count = self._store.revoke(name, grant_id)
        return count

    def rekey(
        self,
        *,
        choice: KeyChoice,
        principal: Principal,
        restored: bool = False,
        ask: AskPassphrase | None = None,
    ) -> None:
        """New keys for everything; with `restored` for a vault that a person has put back."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        # What opens it stays of its kind, unless somebody says otherwise.
        settings = choice.over(replace(self._chosen, key=self._store.source))
        if restored or not self._store.is_unlocked:
            self.unlock(principal, restored=restored)
        known: dict[str, Json] = {"key": settings.key, "restored": restored}
        with (
            self._passphrase(settings.key, is_new=True, ask=ask) as passphrase,
            self._recorded("rekey", "vault", principal, known),
        ):
            self._store.rekey(passphrase, settings=settings)
        self._chosen = settings

    # Use

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
            body = told | told_error(error)
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

    # The record

    def _open(self, principal: Principal, permission: Permission) -> None:
        """(1) and (2)."""
        require(self._settings, principal, permission)
        if not self._store.is_unlocked:
            self.unlock(principal)

    @contextmanager
    def _changing(
        self, what: str, name: str, principal: Principal, *, may_be_new: bool = False
    ) -> Iterator[dict[str, Json]]:
        """(1) to (3) and (5), around the caller's (4)."""
        # Before it is written down: it may be a value, put wrongly (SEC-2).
        check_secret_name(name)
        self._open(principal, Permission.CONFIG_WRITE)
        if not may_be_new and not self._store.has(name):
            raise failures.unknown_secret()
        with self._recorded(what, name, principal, {}) as outcome:
            yield outcome

    @contextmanager
    def _recorded(
        self, what: str, name: str, principal: Principal, known: dict[str, Json]
    ) -> Iterator[dict[str, Json]]:
        known |= {"id": self._store.id, "from_generation": self._store.generation}
        change = Change(EventKind.VAULT, what, name, known)
        with self._record() as audit, change.recorded(audit, principal) as outcome:
            yield outcome
            outcome["generation"] = self._store.generation

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

    # Passphrases

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


def _canonical_host(text: str) -> str:
    """By the same rules as `--allow-domain`: no wildcard over everybody's names (NET-2)."""
    if not {"/", ":", " "}.isdisjoint(text):
        raise BadInput(
            "a grant's host is a name alone",
            hint="Give ports, methods and path by --port, --method and --path.",
            code="CW-VAULT-GRANT",
        )
    rule = parse_rule(text)
    return f"*.{rule.host}" if rule.is_wildcard else rule.host
