"""Connected accounts: a mailbox or calendar of one user at another service (RBAC-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AccountKind: TypeAlias = Literal["caldav"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedAccount:
    """Where the account is, whose it is, and which secret of the vault opens it."""

    id: str
    owner: str
    """`local:NAME` for a user of this machine, `user:NAME` for an account of the service."""
    name: str
    """Chosen by its owner, and unique for this owner alone."""
    kind: AccountKind
    url: str
    """The calendar collection, over https."""
    username: str
    secret: str
    """The name of the password in the vault."""
    created_s: float
