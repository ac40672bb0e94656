"""Connects accounts of other services to their owners (RBAC-3).

An account names a secret of its owner: the vault gives the secrets of each user of the service
names of their own, so that no user can connect an account with the password of another user and
read it (confused deputy).
"""

from __future__ import annotations

import re
import time

from cellwall.accounts.failures import not_found
from cellwall.accounts.names import canonical_name
from cellwall.config.models import Settings
from cellwall.core.connections import AccountKind, ConnectedAccount
from cellwall.core.errors import BadInput
from cellwall.core.ids import new_id
from cellwall.core.outcomes import EventKind
from cellwall.core.types import REMOTE_INTERFACES, Json, Permission, Principal
from cellwall.egress.destinations.hostnames import parse_url
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.connection_list import (
    MAX_ACCOUNTS,
    MAX_OWN_ACCOUNTS,
    StoredConnections,
    encode,
    owner_of,
)
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.secrets.leases import check_secret_name

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_MAX_USERNAME = 128


class ConnectionAdmin:
    """The connected accounts of one state folder, for a person who changes them."""

    def __init__(self, home: str, settings: Settings) -> None:
        self._home, self._settings = home, settings
        self._list = StoredConnections(home)

    def add(
        self,
        name: str,
        *,
        kind: AccountKind,
        url: str,
        username: str,
        secret: str,
        by: Principal,
        user: str | None = None,
    ) -> ConnectedAccount:
        """Connect an account for `user`, an account of the service, or for `by` itself."""
        owner = self._owner(by, user)
        account = ConnectedAccount(
            id=new_id("con"),
            owner=owner,
            name=_check_name(name),
            kind=kind,
            url=_check_url(url),
            username=_check_username(username),
            secret=check_secret_name(secret),
            created_s=time.time(),
        )
        known: dict[str, Json] = {"owner": account.owner, "url": account.url, "secret": secret}
        change = AdminChange(EventKind.ACCOUNT, "connect", account.name, known)
        with (
            change.recorded_in(self._home, self._settings, by),
            self._list.stored.change() as rows,
        ):
            _check_free(account, [self._list.decode(row) for row in rows])
            rows.append(encode(account))
        return account

    def list(self, *, by: Principal, user: str | None = None) -> tuple[ConnectedAccount, ...]:
        """The accounts of `user`, for a user who may connect them, or one's own."""
        return self._list.list_of(self._owner(by, user))

    def remove(self, name: str, *, by: Principal, user: str | None = None) -> None:
        """Forget an account; its secret stays in the vault."""
        owner = self._owner(by, user)
        change = AdminChange(EventKind.ACCOUNT, "disconnect", name[:64], {"owner": owner})
        with (
            change.recorded_in(self._home, self._settings, by),
            self._list.stored.change() as rows,
        ):
            kept = [
                row for row in rows if row["owner"] != owner or name not in (row["name"], row["id"])
            ]
            if len(kept) == len(rows):
                raise not_found("account")
            rows[:] = kept

    def remove_all(self, user: str, *, by: Principal) -> None:
        """Forget all accounts of a removed user: the next one may have the same name."""
        owner = self._owner(by, user)
        if not self._list.list_of(owner):
            return
        change = AdminChange(EventKind.ACCOUNT, "disconnect", "all", {"owner": owner})
        with (
            change.recorded_in(self._home, self._settings, by),
            self._list.stored.change() as rows,
        ):
            rows[:] = [row for row in rows if row["owner"] != owner]

    def _owner(self, by: Principal, user: str | None) -> str:
        """The owner whose accounts these are, if `by` may change them."""
        if by.interface not in REMOTE_INTERFACES:
            refuse_agents("a connected account")
        if user is None:
            require(self._settings, by, Permission.SECRETS_USE)
            return owner_of(by)
        require(self._settings, by, Permission.CONFIG_WRITE)
        return f"user:{canonical_name(user)}"


def _check_free(account: ConnectedAccount, others: list[ConnectedAccount]) -> None:
    own = sum(other.owner == account.owner for other in others)
    if len(others) >= MAX_ACCOUNTS or own >= MAX_OWN_ACCOUNTS:
        raise BadInput(
            "there are too many connected accounts already",
            hint="Remove one that is not used any more.",
            code="CW-BAD-ACCOUNT",
        )
    for other in others:
        if (other.owner, other.name) == (account.owner, account.name):
            raise BadInput(
                "an account of this name is connected already",
                hint="Remove it first, or choose another name.",
                code="CW-BAD-ACCOUNT",
            )


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BadInput(
            "the name of an account has at most 40 lower-case letters, digits and . _ -",
            hint="For example work-calendar.",
            code="CW-BAD-ACCOUNT",
        )
    return name


def _check_url(text: str) -> str:
    """Egress checks where it leads, at each use; here only that there is one reading of it."""
    url = parse_url(text)
    if url.scheme != "https" or "?" in url.target:
        raise BadInput(
            "the URL of an account begins with https:// and has no query",
            hint="Give the URL of the calendar collection.",
            code="CW-BAD-ACCOUNT",
        )
    return str(url)


def _check_username(name: str) -> str:
    if not 0 < len(name) <= _MAX_USERNAME or not name.isprintable() or ":" in name:
        raise BadInput(
            "the user name has 1 to 128 printable characters and no colon", code="CW-BAD-ACCOUNT"
        )
    return name
