"""Who a request comes from, and what belongs to whom (RBAC-3)."""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cellwall.accounts import failures
from cellwall.core.errors import Denied
from cellwall.core.types import AccountRef, Permission, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An authenticated user, by one credential."""

    user_id: str
    name: str
    role: str
    teams: frozenset[str] = frozenset()
    scopes: frozenset[Permission] | None = None
    """Of a service token; None for a person who signed in."""
    credential: str
    """The id of the access or service token, for the record and for revocation."""
    family_id: str = ""
    """The sign-in; empty for a service token."""
    expires_s: float
    address: str = ""
    """Where the request came from."""

    def principal(self, interface: str) -> Principal:
        """For an `Action` that comes over this interface."""
        return Principal(self.name, interface, self.role, self.scopes, self.account)

    @property
    def account(self) -> AccountRef:
        """The account that an action is counted for."""
        return AccountRef(
            user_id=self.user_id,
            teams=self.teams,
            # A sign-in gets a new access token every few minutes, which must not start afresh.
            credential=self.family_id or self.credential,
            address=self.address,
        )


def require_tenant(who: Identity, tenant: str) -> None:
    """Raise `Denied` where a host is reserved for a team (its id) that the user is no member of:
    which host gets a session is asked for by a header, which anybody can write."""
    if tenant and tenant not in who.teams:
        raise Denied(
            "this host is reserved for a team, and you are not one of its members",
            hint="Leave `tenant` out of Cellwall-Labels, or use the id of a team of yours "
            "(GET /v1/teams).",
            code="CW-FLEET-TENANT",
        )


class Owned(Protocol):
    """A resource of one user, which a team may share."""

    @property
    def owner_id(self) -> str: ...

    @property
    def team_id(self) -> str | None: ...


Resource = TypeVar("Resource", bound=Owned)


@dataclass(frozen=True, slots=True)
class _Absent:
    owner_id: str = ""
    team_id: str | None = None


_ABSENT = _Absent()


def require_own(resource: Resource | None, who: Identity, *, what: str) -> Resource:
    """The resource, if it belongs to the user or to a team of the user; else `NotFound`.

    The one place where ownership is checked. A missing resource is compared like one of another
    user, and both raise the same error: neither the text nor the work tells them apart. No role is
    an exception: an administrator reads the audit log, not sessions of others.
    """
    found: Owned = _ABSENT if resource is None else resource
    is_owner = bool(found.owner_id) & (found.owner_id == who.user_id)
    is_shared = found.team_id is not None and found.team_id in who.teams
    if resource is None or not (is_owner | is_shared):
        raise failures.not_found(what)
    return resource


def require_owner(resource: Resource | None, who: Identity, *, what: str) -> Resource:
    """`require_own` for what no member of a team may do to the resource of another one, such as
    erasing it."""
    return require_own(resource, replace(who, teams=frozenset()), what=what)


@functools.lru_cache(maxsize=4096)
def address_subject(address: str) -> str:
    """The address as guesses are counted: an IPv6 user has a whole /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "address:unknown"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return f"address:{found.ipv4_mapped}"
        return f"address:{ipaddress.ip_network((found, 64), strict=False)}"
    return f"address:{found}"
