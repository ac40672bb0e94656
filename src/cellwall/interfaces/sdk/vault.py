"""`cellwall.Vault`: manages the user's secrets (SEC-1 to SEC-7).

There is no `get`: programs store values and never read them (SEC-2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellwall.admin.vault import Grant, SecretInfo, VaultAdmin, VaultKeyChoice
from cellwall.core.network import Binding, Place
from cellwall.core.types import Principal
from cellwall.runtime.home import local_principal
from cellwall.runtime.secret_leases import register_vault

PassphraseSource: TypeAlias = "str | bytes | Callable[[], str | bytes] | None"


class Vault:
    """An open vault; the end of a `with` block locks it. Each change is audited first.

    with cellwall.Vault.open(passphrase=ask_passphrase) as vault:
        vault.set("GITHUB_TOKEN", token)
        vault.grant("GITHUB_TOKEN", host="api.github.com")
        cellwall.run_command(command, allow_domains=["api.github.com"], secrets=["GITHUB_TOKEN"])

    Sandboxes of this process use it for as long as it is open.
    """

    def __init__(self, admin: VaultAdmin, principal: Principal) -> None:
        self._admin = admin
        self._principal = principal

    @classmethod
    def open(
        cls,
        passphrase: PassphraseSource = None,
        *,
        create: bool = False,
        key: str | None = None,
        key_file: str | None = None,
        key_command: Sequence[str] = (),
        config: str | None = None,
        profile: str | None = None,
    ) -> Vault:
        """Unlock the vault; with `create`, create it if there is none.

        `key`, `key_file` and `key_command` choose what opens a new vault; default: as configured.
        """
        who = local_principal("sdk")
        admin = VaultAdmin.configured(
            config=config, profile=profile, ask=_passphrase_reader(passphrase)
        )
        choice = VaultKeyChoice(source=key, file=key_file, command=tuple(key_command))
        if create and not admin.exists:
            admin.init(choice=choice, principal=who)
        else:
            admin.find_by(choice)
            admin.unlock(who)
        register_vault(admin, admin.home)
        return cls(admin, who)

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock()

    def __repr__(self) -> str:
        return f"Vault({'unlocked' if self._admin.is_unlocked else 'locked'})"

    @property
    def generation(self) -> int:
        """The number of changes."""
        return self._admin.generation

    def lock(self) -> None:
        """Wipe the keys from memory."""
        self._admin.lock()

    def list(self) -> tuple[SecretInfo, ...]:
        """Names, versions and grants; never a value."""
        return self._admin.list(self._principal)

    def set(self, name: str, value: str | bytes | bytearray, *, project: str | None = None) -> int:
        """Store or replace a value; returns its version. With `project`, only sandboxes that work
        on this folder can use the secret."""
        return self._admin.set(name, _bytes(value), self._principal, project=project)

    def rotate(self, name: str, value: str | bytes | bytearray) -> int:
        """Replace the value of an existing secret; the old value is kept until the next one."""
        return self._admin.rotate(name, _bytes(value), self._principal)

    def end_overlap(self, name: str) -> bool:
        """Wipe the old value now; returns whether there was one."""
        return self._admin.end_overlap(name, self._principal)

    def remove(self, name: str) -> None:
        """Remove a secret with its values and grants."""
        self._admin.remove(name, self._principal)

    def grant(
        self,
        name: str,
        *,
        host: str,
        ports: Sequence[int] = (443,),
        methods: Sequence[str] = (),
        path: str = "/",
        place: Place = "header",
        field: str = "authorization",
        tools: Sequence[str] = (),
        session: str = "",
        until_s: float | None = None,
    ) -> Grant:
        """Allow a secret in requests to a host. Refused where `approvals.key` is configured, since
        a program is not asked for the passphrase: use `cellwall vault grant`."""
        binding = Binding(
            host=host,
            ports=tuple(ports),
            methods=tuple(methods),
            path=path,
            place=place,
            name=field,
        )
        return self._admin.grant(
            name, binding, self._principal, tools=tools, session=session, until_s=until_s
        )

    def revoke(self, name: str, grant_id: str | None = None) -> int:
        """Revoke one grant of a secret, or all; returns their number."""
        return self._admin.revoke(name, grant_id, self._principal)

    def rekey(
        self,
        passphrase: PassphraseSource = None,
        *,
        key: str | None = None,
        key_file: str | None = None,
        key_command: Sequence[str] = (),
    ) -> None:
        """Re-encrypt everything with a new key."""
        choice = VaultKeyChoice(source=key, file=key_file, command=tuple(key_command))
        self._admin.rekey(
            choice=choice, principal=self._principal, ask=_passphrase_reader(passphrase)
        )


def _passphrase_reader(passphrase: PassphraseSource) -> Callable[[bool], bytearray] | None:
    if passphrase is None:
        return None

    def ask(_: bool) -> bytearray:  # noqa: FBT001  # as the runtime calls it
        return _bytes(passphrase() if callable(passphrase) else passphrase)

    return ask


def _bytes(value: str | bytes | bytearray) -> bytearray:
    return bytearray(value.encode() if isinstance(value, str) else value)
