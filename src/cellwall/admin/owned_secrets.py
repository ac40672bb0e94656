"""Secrets of the users of the service: each user has the own ones, and no others (RBAC-3)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cellwall.admin.vault import VaultAdmin
from cellwall.core.errors import NotFound
from cellwall.core.network import Binding
from cellwall.core.types import Permission, Principal
from cellwall.secrets.leases import check_secret_name
from cellwall.secrets.ownership import prefix_of, shown_name, stored_name
from cellwall.secrets.store import SecretInfo

__all__ = ["OwnedSecrets", "SecretInfo", "WantedGrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedGrant:
    """Where a secret may be sent."""

    binding: Binding
    until_s: float | None = None


class OwnedSecrets(VaultAdmin):
    """The vault for one user at a time. Values go in and never out."""

    change_permission = Permission.SECRETS_USE
    """A user changes no secret but the own ones, so needs no right to change the configuration."""
    _lock = threading.Lock()

    def read_all(self, who: Principal) -> list[SecretInfo]:
        """The user's secrets, by name."""
        prefix = prefix_of(who)
        found = [each for each in self.list(who) if each.name.startswith(prefix)]
        return [replace(each, name=shown_name(each.name)) for each in found]

    def read(self, name: str, who: Principal) -> SecretInfo:
        """Raises `NotFound`."""
        found = [each for each in self.read_all(who) if each.name == name]
        if not found:
            raise NotFound("there is no such secret", hint="Check the name, and who owns it.")
        return found[0]

    def put(
        self,
        name: str,
        who: Principal,
        *,
        value: bytearray | None,
        grants: Sequence[WantedGrant] | None,
    ) -> SecretInfo:
        """Store a value, replace the grants, or both. A failure midway leaves fewer grants."""
        check_secret_name(name)
        if grants:
            self.check_may_grant()
        stored = stored_name(name, who)
        with self._lock:
            if value is None:
                self.read(name, who)
            elif grants is None or not self._is_there(name, who):
                self.set(stored, value, who)
            else:
                self.revoke(stored, None, who)  # before the value: it must not go to the old places
                self.set(stored, value, who)
            if grants is not None:
                self.revoke(stored, None, who)
                for each in grants:
                    self.grant(stored, each.binding, who, until_s=each.until_s)
            return self.read(name, who)

    def drop(self, name: str, who: Principal) -> None:
        """Remove a secret with its grants."""
        with self._lock:
            self.read(name, who)
            self.remove(stored_name(name, who), who)

    def _is_there(self, name: str, who: Principal) -> bool:
        return any(each.name == name for each in self.read_all(who))
