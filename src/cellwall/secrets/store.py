"""The vault store: secrets encrypted at rest, granted for named uses, leased for a time (SEC-1 to
SEC-7).

A value can be read only through a lease.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cellwall.core.ids import new_id
from cellwall.core.network import Binding
from cellwall.core.standing_grants import GrantKind, GrantsPort, StandingGrant, digest_of
from cellwall.secrets import failures
from cellwall.secrets.format import KeySlot, KeySource, Secret, VaultSettings
from cellwall.secrets.keys import VaultKeys
from cellwall.secrets.leases import (
    MAX_GRANTS,
    Grant,
    Lease,
    check_grant,
    check_project,
    check_secret_name,
    is_in_project,
)
from cellwall.secrets.sealing import KEY_BYTES, derive_into
from cellwall.secrets.values import (
    MAX_VALUE_BYTES,
    MIN_LENT_BYTES,
    check_value,
    decrypt_value,
    is_lendable,
    new_version,
)
from cellwall.secrets.vault_file import OpenVault
from cellwall.secrets.vault_handle import VaultHandle

__all__ = ["MAX_VALUE_BYTES", "SecretInfo", "VaultStore"]

MAX_SECRETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """All that is ever shown of a secret."""

    name: str
    version: int
    made_s: float
    changed_s: float
    has_previous: bool
    """True if the previous value is still known, so that echoes of it are found."""
    grants: tuple[Grant, ...]
    project: str = ""


class VaultStore:
    """The vault in one directory; implements `KnownValues`. Callers wipe the passphrases they
    pass."""

    def __init__(
        self,
        directory: str,
        settings: VaultSettings | None = None,
        *,
        grants: GrantsPort | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._handle = VaultHandle(directory, settings or VaultSettings())
        self._signatures = grants
        self._clock = clock
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    # Opening and closing

    @property
    def exists(self) -> bool:
        return self._handle.exists

    @property
    def is_unlocked(self) -> bool:
        return self._handle.is_unlocked

    @property
    def id(self) -> str:
        return self._handle.current().preamble.vault

    @property
    def generation(self) -> int:
        """Counts every change; also part of each audit record."""
        return self._handle.current().preamble.generation

    @property
    def source(self) -> KeySource:
        """The kind of key that opens the vault; readable while it is locked."""
        return self._handle.slot().source

    @property
    def is_weaker(self) -> bool:
        """True if `strengthen` would raise the cost of guessing the passphrase."""
        return self._handle.keys.is_weaker(self._handle.current().preamble.slot)

    def init(self, passphrase: bytearray | None = None) -> None:
        """Create an empty vault, unlocked."""
        self._handle.init(passphrase)

    def unlock(self, passphrase: bytearray | None = None, *, restored: bool = False) -> None:
        """Verify every byte and hold the keys in memory until `lock`.

        `restored` accepts a vault older than the last generation seen, for `rekey` only.
        """
        self._handle.open(passphrase, restored=restored)

    def lock(self) -> None:
        """Wipe the keys; every lease ends."""
        with self._handle.mutex:
            for lease in list(self._leases):
                lease.end()
            self._handle.lock()

    def session_key(self) -> bytearray:
        """The key under which private keys of session data are sealed (FS-5). Derived from a key
        that survives `rekey`; the caller wipes it."""
        with self._handle.mutex:
            self._handle.current()
            key = bytearray(KEY_BYTES)
            derive_into(self._handle.page.buffer("digest"), "session keys", key)
            return key

    # Secrets and grants

    def list(self) -> tuple[SecretInfo, ...]:
        """Sorted by name. Never a value (SEC-2)."""
        return tuple(
            SecretInfo(
                name=name,
                version=each.current.number,
                made_s=each.made_s,
                changed_s=each.current.made_s,
                has_previous=each.previous is not None,
                grants=each.grants,
                project=each.project,
            )
            for name, each in sorted(self._handle.current().content.secrets.items())
        )

    def has(self, name: str) -> bool:
        """True if there is a secret of this name."""
        return name in self._handle.current().content.secrets

    def set(
        self,
        name: str,
        value: bytes | bytearray,
        *,
        must_exist: bool = False,
        project: str | None = None,
    ) -> int:
        """Store a value; the previous one stays known until the next change. Returns the version.

        `project` binds the secret to a folder; left out, the binding stays as it was.
        """
        check_secret_name(name)
        check_project(project)
        check_value(value)
        with self._handle.change() as (folder, vault):
            before = vault.content.secrets.get(name)
            if before is None and must_exist:
                raise failures.unknown_secret()
            if before is None and len(vault.content.secrets) >= MAX_SECRETS:
                raise failures.full(f"{MAX_SECRETS} secrets")
            now_s = self._clock()
            number = 1 if before is None else before.current.number + 1
            page = self._handle.page
            current = new_version(page, name, number, value, made_s=now_s)
            secret = (
                Secret(current=current, made_s=now_s)
                if before is None
                else replace(before, current=current, previous=before.current)
            )
            if project is not None:
                secret = replace(secret, project=project)
            known = vault.known.with_value(page.buffer("digest"), name, value)
            self._handle.write(folder, vault, {name: secret}, known=known)
        return number

    def rotate(self, name: str, value: bytes | bytearray) -> int:
        """Store a new value for an existing secret (SEC-6)."""
        return self.set(name, value, must_exist=True)

    def end_overlap(self, name: str) -> bool:
        """Wipe the previous value; returns whether there was one."""
        with self._handle.change() as (folder, vault):
            secret = _secret_named(vault, name)
            if secret.previous is None:
                return False
            self._handle.write(folder, vault, {name: replace(secret, previous=None)})
        return True

    def remove(self, name: str) -> None:
        """Remove a secret with its values and grants; the digests of its values stay."""
        with self._handle.change() as (folder, vault):
            _secret_named(vault, name)
            self._handle.write(folder, vault, {name: None})

    def grant(
        self,
        name: str,
        binding: Binding,
        *,
        tools: Sequence[str] = (),
        session: str = "",
        until_s: float | None = None,
    ) -> Grant:
        """Allow a secret to be sent to one place on the wire, within these bounds."""
        grant = check_grant(
            Grant(
                id=new_id("gr"),
                binding=binding,
                tools=tuple(tools),
                session=session,
                until_s=until_s,
                made_s=self._clock(),
            )
        )
        with self._handle.change() as (folder, vault):
            secret = _secret_named(vault, name)
            # Expired grants are removed to make space.
            now_s = self._clock()
            alive = [each for each in secret.grants if each.until_s is None or each.until_s > now_s]
            if len(alive) >= MAX_GRANTS:
                raise failures.full(f"{MAX_GRANTS} grants of one secret")
            self._handle.write(folder, vault, {name: replace(secret, grants=(*alive, grant))})
        return grant

    def revoke(self, name: str, grant_id: str | None = None) -> int:
        """Revoke one grant or all grants of a secret; returns how many. Their leases end."""
        with self._handle.change() as (folder, vault):
            secret = _secret_named(vault, name)
            remaining = tuple(each for each in secret.grants if grant_id not in (None, each.id))
            if grant_id is not None and len(remaining) == len(secret.grants):
                raise failures.unknown_grant()
            self._handle.write(folder, vault, {name: replace(secret, grants=remaining)})
        return len(secret.grants) - len(remaining)

    # New keys

    def rekey(
        self, passphrase: bytearray | None = None, *, settings: VaultSettings | None = None
    ) -> None:
        """Create a new vault key and wrap it anew; every value is encrypted again."""
        keys = self._handle.keys
        self._handle.rekey(replace(keys, settings=settings or keys.settings), passphrase)

    def strengthen(self, passphrase: bytearray) -> None:
        """Wrap the same vault key with a costlier passphrase hash."""
        with self._handle.change() as (folder, vault):
            keys = _strengthened_keys(self._handle.keys, vault.preamble.slot)
            slot = keys.new_slot(vault.preamble.vault, passphrase, self._handle.page)
            self._handle.write(folder, vault, {}, slot=slot)

    # Use

    def lease(
        self, names: Sequence[str], *, tool: str, session: str = "", project: str = ""
    ) -> Lease:
        """Lease secrets to one action or session, as far as they are granted. `project` is the
        canonical path of the folder that it works on."""
        with self._handle.mutex:
            content, now_s = self._handle.current().content, self._clock()
            granted: dict[str, Sequence[Grant]] = {}
            for name in names:
                secret = content.secrets.get(check_secret_name(name))
                if secret is None:
                    raise failures.unknown_secret()
                if not is_in_project(project, secret.project):
                    raise failures.other_project(name)
                granted[name] = [
                    each
                    for each in secret.grants
                    if each.permits(tool=tool, session=session, now_s=now_s)
                ]
                if not granted[name]:
                    raise failures.not_granted(name, tool)
                granted[name] = [each for each in granted[name] if self._counts(name, each)]
                if not granted[name]:
                    raise failures.unsigned_grant(name)
                if not is_lendable(self._handle.page, name, secret.current):
                    raise failures.too_short(name, MIN_LENT_BYTES)
            source = partial(self.value_for, project=project)
            lease = Lease(source, granted, session=session, clock=self._clock)
            self._leases.add(lease)
            return lease

    def _counts(self, name: str, grant: Grant) -> bool:
        """Whether the approver has signed the grant, where signatures are needed (POL-13). A grant
        that was signed for all folders also counts where the secret was bound to one since."""
        if self._signatures is None:
            return True
        bounds = {"", self._handle.current().content.secrets[name].project}
        signed = (secret_grant(self.id, name, grant, project=each) for each in bounds)
        return any(map(self._signatures.is_signed, signed))

    def end_session(self, session: str) -> None:
        """End every lease of a session (SEC-3)."""
        with self._handle.mutex:
            for lease in list(self._leases):
                if lease.session == session:
                    lease.end()

    def value_for(self, name: str, grants: frozenset[str], *, project: str = "") -> bytes:
        """For leases only, which have checked that they are still active."""
        with self._handle.mutex:
            secret = self._handle.current().content.secrets.get(name)
            if secret is None or not grants <= {grant.id for grant in secret.grants}:
                raise failures.lease_ended(name)
            held = [grant for grant in secret.grants if grant.id in grants]
            if not all(self._counts(name, grant) for grant in held):  # withdrawn since
                raise failures.lease_ended(name)
            if not is_in_project(project, secret.project):  # bound since it was leased
                raise failures.lease_ended(name)
            value = decrypt_value(self._handle.page, name, secret.current)
            if len(value) < MIN_LENT_BYTES:  # rotated since it was leased
                raise failures.too_short(name, MIN_LENT_BYTES)
            return value

    def values(self) -> Mapping[str, bytes]:
        """Every value that must not leave, previous ones as NAME@VERSION; empty while locked.

        Raises if a vault that was unlocked has become unreadable: otherwise an attacker could hide
        all values from the leak check by breaking the file (NET-5).
        """
        with self._handle.mutex:
            if not self._handle.was_opened:
                return {}
            values: dict[str, bytes] = {}
            for name, secret in self._handle.current().content.secrets.items():
                values[name] = decrypt_value(self._handle.page, name, secret.current)
                if secret.previous is not None:
                    key = f"{name}@{secret.previous.number}"
                    values[key] = decrypt_value(self._handle.page, name, secret.previous)
            return values

    def contains_old(self, text: bytes) -> tuple[str, ...]:
        """Names of the values ever stored that occur in a text; () while locked."""
        with self._handle.mutex:
            if not self._handle.was_opened:
                return ()
            known = self._handle.current().known
            return known.find(self._handle.page.buffer("digest"), text)


def secret_grant(vault: str, name: str, grant: Grant, *, project: str) -> StandingGrant:
    """What the approver signs: one grant of a secret, with all its bounds, in this vault."""
    digest = digest_of(grant.to_json(), project)
    return StandingGrant(GrantKind.SECRET, f"{vault}/{name}", digest)


def _strengthened_keys(keys: VaultKeys, slot: KeySlot) -> VaultKeys:
    settings, least = keys.settings, slot.argon2
    if least is not None:  # never weaker than before
        settings = replace(
            settings,
            key="passphrase",
            argon2_memory_kib=max(settings.argon2_memory_kib, least.memory_kib),
            argon2_passes=max(settings.argon2_passes, least.passes),
        )
    return replace(keys, settings=settings)


def _secret_named(vault: OpenVault, name: str) -> Secret:
    secret = vault.content.secrets.get(check_secret_name(name))
    if secret is None:
        raise failures.unknown_secret()
    return secret
