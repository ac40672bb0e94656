"""Connected accounts (RBAC-3): mailboxes or calendars of one user elsewhere, and their use."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """An event to create. Times are in ISO 8601 with their zone."""

    summary: str
    start: str
    end: str
    location: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class UseAccount:
    """Read or change a connected account of the principal (RBAC-3)."""

    account: str
    """The name that its owner gave it, or its id."""
    name: Literal["list_events", "create_event"]
    start: str = ""
    end: str = ""
    """For `list_events`: the period, in ISO 8601 with its zone."""
    event: CalendarEvent | None = None
    """For `create_event`."""
    target: ConnectedAccount | None = field(default=None, repr=False)
    """Set by the runtime alone, once the account is known to be the principal's."""
