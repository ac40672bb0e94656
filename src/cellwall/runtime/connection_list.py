"""The list of connected accounts, and the only way to find one: by its owner (RBAC-3).

Beside the vault and not in the database of the service: an account is an address and the name of a
secret, and without that vault it is nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from cellwall.accounts.failures import not_found
from cellwall.core.connections import ConnectedAccount
from cellwall.core.types import REMOTE_INTERFACES, Principal
from cellwall.runtime.state_lists import Stamp, StateList

MAX_ACCOUNTS = 10_000
MAX_OWN_ACCOUNTS = 50
"""Of one owner, so that no user takes the places of others."""
_FIELDS = frozenset(ConnectedAccount.__dataclass_fields__)


def owner_of(principal: Principal) -> str:
    """The owner as accounts name it. A user of the service and one of this machine may have the
    same name, and are two."""
    kind = "user" if principal.interface in REMOTE_INTERFACES else "local"
    return f"{kind}:{principal.name}"


class StoredConnections:
    """The connected accounts of one state folder; read again after a change."""

    def __init__(self, home: str) -> None:
        self.stored = StateList(home, "connections", "CW-CONNECTIONS")
        self._stamp: Stamp | None = None
        self._by_owner: dict[str, dict[str, ConnectedAccount]] = {}

    def find(self, name: str, *, owner: str) -> ConnectedAccount:
        """The account of this owner with this name or id; else `NotFound`, the same if another
        user has one."""
        found = self._current().get(owner, {}).get(name)
        if found is None:
            raise not_found("account")
        return found

    def has_any(self, owner: str) -> bool:
        """Whether this owner has an account."""
        return owner in self._current()

    def _current(self) -> dict[str, dict[str, ConnectedAccount]]:
        stamp = self.stored.stamp()
        if stamp != self._stamp:
            self._by_owner = self._read()
            self._stamp = stamp
        return self._by_owner

    def list_of(self, owner: str) -> tuple[ConnectedAccount, ...]:
        """The accounts of this owner, by name."""
        return tuple(each for each in self.all() if each.owner == owner)

    def all(self) -> tuple[ConnectedAccount, ...]:
        """Every account, by owner and name."""
        rows = [self.decode(each) for each in self.stored.read()]
        return tuple(sorted(rows, key=lambda each: (each.owner, each.name)))

    def decode(self, fields: dict[str, Any]) -> ConnectedAccount:
        """An entry as stored."""
        texts = [value for key, value in fields.items() if key != "created_s"]
        if fields.keys() != _FIELDS or not all(isinstance(text, str) for text in texts):
            raise self.stored.broken()
        return ConnectedAccount(**fields)

    def _read(self) -> dict[str, dict[str, ConnectedAccount]]:
        found: dict[str, dict[str, ConnectedAccount]] = {}
        for each in self.all():
            found.setdefault(each.owner, {}).update({each.name: each, each.id: each})
        return found


@cache
def connections_of(home: str) -> StoredConnections:
    """The list of a state folder, kept in memory."""
    return StoredConnections(home)


def encode(account: ConnectedAccount) -> dict[str, Any]:
    """The entry to store."""
    return asdict(account)
