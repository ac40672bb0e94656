"""Changes to the vault, made by people and logged.

A change goes:
  (1) the role permits it; (2) the vault opens, which is an event itself;
  (3) write the intent, with the name and never a value; a failed write refuses (AUD-1);
  (4) change, and sign a grant where `approvals.key` is configured: a lease believes the signature,
      not the vault's file (POL-13);
  (5) write the outcome with the new generation: a rollback of the vault together with its own note
      of the last generation is detected by comparing with the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cellwall.core.errors import BadInput
from cellwall.core.keys import SigningKey
from cellwall.core.network import Binding
from cellwall.core.outcomes import EventKind
from cellwall.core.standing_grants import GrantKind, StandingGrant
from cellwall.core.types import Json, Permission, Principal
from cellwall.egress.destinations.allowlist import parse_rule
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase as AskApprover
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.vault import (
    AskPassphrase,
    AuditedVault,
    adopt_session_keys,
    note_unlocked,
    vault_settings,
)
from cellwall.secrets import failures
from cellwall.secrets.format import KEY_SOURCES, KeySource, VaultSettings
from cellwall.secrets.leases import Grant, check_secret_name
from cellwall.secrets.sealing import wipe
from cellwall.secrets.store import SecretInfo, VaultStore, secret_grant
from cellwall.secrets.values import MAX_VALUE_BYTES, weakness

__all__ = [
    "MAX_VALUE_BYTES",
    "Grant",
    "SecretInfo",
    "VaultAdmin",
    "VaultKeyChoice",
    "weakness",
    "wipe",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultKeyChoice:
    """The key source of the vault, where it differs from the configuration."""

    source: str | None = None
    file: str | None = None
    command: tuple[str, ...] = ()

    def over(self, settings: VaultSettings) -> VaultSettings:
        # A named file or command implies its source.
        implied = {"file"} if self.file else set()
        implied |= {"command"} if self.command else set()
        sources = implied | ({self.source} if self.source else set())
        found = [each for each in KEY_SOURCES if each in sources]
        if len(sources) > 1 or len(found) < len(sources):
            raise BadInput(
                "these options do not name exactly one key source",
                hint=f"One of: {', '.join(KEY_SOURCES)}.",
                code="CW-VAULT-INPUT",
            )
        return replace(
            settings,
            key=found[0] if found else settings.key,
            key_file=os.path.abspath(self.file) if self.file else settings.key_file,
            key_command=self.command or settings.key_command,
        )


class VaultAdmin(AuditedVault):
    """The vault of one state folder, for a person who changes it."""

    change_permission = Permission.CONFIG_WRITE

    @property
    def id(self) -> str:
        return self._store.id

    @property
    def source(self) -> KeySource:
        """The key source that opens the vault."""
        return self._store.source

    @property
    def is_cheap_to_guess(self) -> bool:
        """Whether the passphrase hash costs less than advised."""
        return self._chosen.is_cheap_to_guess

    @property
    def missing_setting(self) -> str:
        """The lines of TOML that the configuration needs so that the key is found next time."""
        wanted, configured = self._chosen, vault_settings(self._settings)
        name = f"key_{wanted.key}"
        if wanted.key not in ("file", "command") or (
            getattr(wanted, name) == getattr(configured, name)
        ):
            return ""
        # TOML reads the strings and lists of JSON.
        return f"[vault]\n{name} = {json.dumps(getattr(wanted, name), ensure_ascii=False)}"

    def init(self, *, choice: VaultKeyChoice, principal: Principal) -> None:
        """Create the vault and unlock it."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        settings = choice.over(vault_settings(self._settings))
        directory = os.path.join(self._home, "vault")
        if self._store.exists:
            raise failures.exists(directory)
        store = VaultStore(directory, settings, grants=self._grants)
        change = AdminChange(EventKind.VAULT, "init", "vault", {"key": settings.key})
        with (
            self._passphrase(settings.key, is_new=True) as passphrase,
            self._record() as audit,
            change.recorded(audit, principal) as outcome,
        ):
            store.init(passphrase)
            adopt_session_keys(self._home, store)
            outcome |= {"id": store.id, "generation": store.generation}
        self._store, self._chosen = store, settings
        note_unlocked(self)

    def find_by(self, choice: VaultKeyChoice) -> None:
        """Use the key source of the caller instead of the configured one."""
        self._chosen = choice.over(vault_settings(self._settings))
        self._store = self._open_store()

    def list(self, principal: Principal) -> tuple[SecretInfo, ...]:
        """Names, versions and grants; never a value (SEC-2)."""
        self._open(principal, Permission.SECRETS_USE)
        return self._store.list()

    def prepare(self, name: str, principal: Principal, *, must_exist: bool) -> None:
        """Run all checks that need no value, before a person types one."""
        check_secret_name(name)
        self._open(principal, self.change_permission)
        if must_exist and not self._store.has(name):
            raise failures.unknown_secret()

    def set(
        self,
        name: str,
        value: bytes | bytearray,
        principal: Principal,
        *,
        project: str | None = None,
    ) -> int:
        """Store or replace a value; returns its version. With `project`, only sandboxes that work
        on this folder can use the secret (SEC-3); an empty one ends that bound."""
        place = os.path.realpath(project) if project else project
        if place and not os.path.isdir(place):
            raise BadInput(
                "the folder of the project does not exist",
                hint="Name the folder that sandboxes get with --workspace.",
                code="CW-VAULT-PROJECT",
            )
        with self._changing("set", name, principal, may_be_new=True) as outcome:
            if place is not None:
                outcome["project"] = place
            outcome["version"] = version = self._store.set(name, value, project=place)
        return version

    def rotate(self, name: str, value: bytes | bytearray, principal: Principal) -> int:
        """Replace the value of an existing secret; returns its version."""
        with self._changing("rotate", name, principal) as outcome:
            outcome["version"] = version = self._store.rotate(name, value)
        return version

    def end_overlap(self, name: str, principal: Principal) -> bool:
        """Wipe the previous value, which was valid during a rotation."""
        with self._changing("end-overlap", name, principal) as outcome:
            outcome["wiped"] = is_wiped = self._store.end_overlap(name)
        return is_wiped

    def remove(self, name: str, principal: Principal) -> None:
        """Remove the secret with its values and grants."""
        with self._changing("remove", name, principal):
            self._withdraw(name, None)
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
        ask: AskApprover | None = None,
    ) -> Grant:
        """Allow the secret in one place of matching requests. `ask` asks for the passphrase of the
        approver, where a key is configured."""
        refuse_agents("a grant of a secret")
        binding = replace(binding, host=_canonical_host(binding.host))
        approver = self._unlock_approver(ask)
        with self._changing("grant", name, principal) as outcome:
            made = self._store.grant(name, binding, tools=tools, session=session, until_s=until_s)
            outcome["grant"] = made.to_json()
            if self._grants is not None and approver is not None:
                self._grants.sign([self.signed_form(name, made)], approver)
        return made

    def check_may_grant(self) -> None:
        """Raise where a grant needs a passphrase, for callers that can ask no person for it."""
        self._unlock_approver(None)

    def _unlock_approver(self, ask: AskApprover | None) -> SigningKey | None:
        """The approver's key; None: no key is configured."""
        if self._grants is None:
            return None
        command = "cellwall vault grant NAME --host HOST"
        return self._grants.key.ask_for("a grant of a secret", ask, command=command)

    def signed_form(self, name: str, grant: Grant) -> StandingGrant:
        """What the approver signs of a grant."""
        project = next(each.project for each in self._store.list() if each.name == name)
        return secret_grant(self._store.id, name, grant, project=project)

    def revoke(self, name: str, grant_id: str | None, principal: Principal) -> int:
        """Remove one grant or all; returns the number."""
        with self._changing("revoke", name, principal) as outcome:
            self._withdraw(name, grant_id)
            outcome["grants"] = count = self._store.revoke(name, grant_id)
        return count

    def _withdraw(self, name: str, grant_id: str | None) -> None:
        """End signatures under grants: one that is put back into the vault is none."""
        if self._grants is None:
            return
        subject = f"{self._store.id}/{name}"
        if grant_id is None:
            self._grants.withdraw(GrantKind.SECRET, subject)
            return
        info = next(each for each in self._store.list() if each.name == name)
        for grant in info.grants:
            for project in {"", info.project} if grant.id == grant_id else ():
                digest = secret_grant(self._store.id, name, grant, project=project).digest
                self._grants.withdraw(GrantKind.SECRET, subject, digest=digest)

    def rekey(
        self,
        *,
        choice: VaultKeyChoice,
        principal: Principal,
        restored: bool = False,
        ask: AskPassphrase | None = None,
    ) -> None:
        """Encrypt everything with new keys; `restored` accepts a vault restored from a backup."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        # The key source stays the same unless the caller chooses another.
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

    @contextmanager
    def _changing(
        self, what: str, name: str, principal: Principal, *, may_be_new: bool = False
    ) -> Iterator[dict[str, Json]]:
        """(1) to (3) and (5), around the caller's (4)."""
        # Before it is logged: it may be a value typed in place of a name (SEC-2).
        check_secret_name(name)
        self._open(principal, self.change_permission)
        if not may_be_new and not self._store.has(name):
            raise failures.unknown_secret()
        with self._recorded(what, name, principal, {}) as outcome:
            yield outcome

    @contextmanager
    def _recorded(
        self, what: str, name: str, principal: Principal, known: dict[str, Json]
    ) -> Iterator[dict[str, Json]]:
        known |= {"id": self._store.id, "from_generation": self._store.generation}
        change = AdminChange(EventKind.VAULT, what, name, known)
        with self._record() as audit, change.recorded(audit, principal) as outcome:
            yield outcome
            outcome["generation"] = self._store.generation


def _canonical_host(text: str) -> str:
    """The host, by the rules of `--allow-domain`: no wildcard over a public suffix (NET-2)."""
    if not {"/", ":", " "}.isdisjoint(text):
        raise BadInput(
            "the host of a grant must be a name alone",
            hint="Give ports, methods and path by --port, --method and --path.",
            code="CW-VAULT-GRANT",
        )
    rule = parse_rule(text)
    return f"*.{rule.host}" if rule.is_wildcard else rule.host
