"""Port of the hosts of a fleet, as the shared database knows them.

A host is a service (`core.services`) that also has a lease: it renews the lease all the time, and
stops serving by itself when it cannot. All times are measured by the clock of the database, so that
the clocks of the hosts do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cellwall.core.errors import Busy
from cellwall.core.types import Json

HOST_LOST = "host-lost"
"""Why a session has ended whose host was lost."""
SESSION_LABELS = "labels"
"""In the metadata of a session that may start again: what it has asked of its host."""
Held = Literal["session", "approval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host of the fleet."""

    id: str
    """The id of its service, which marks its sessions."""
    incarnation: str
    """Of one process: a host that starts again is another incarnation."""
    about: Mapping[str, Json]
    """What the host tells of itself: labels, load, version."""
    unseen_s: float
    """Since it renewed its lease."""
    is_draining: bool
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """The host that has a session or a question, or had it."""

    service_id: str
    is_ended: bool
    is_lost: bool
    """The session ended with its host."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """That its next host must have, where the session may start again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlacement:
    """A session and one host, as the database knows both at the same moment."""

    owner_id: str
    holder_id: str
    """The host that has the session."""
    is_ended: bool
    host: HostRecord | None
    """The host that was asked about; None if it has left."""


class SecondCoordinator(Busy):
    """Another coordinator has live hosts on the same database."""

    default_code = "CW-FLEET-SECOND"


def second_coordinator() -> SecondCoordinator:
    """For all but the first: two would tell each other's sessions lost."""
    return SecondCoordinator(
        "another first host serves the fleet of this database",
        hint="Join it, or end its hosts first: `cellwall fleet status` shows them. One database is "
        "for one fleet.",
    )


def has_rivals(hosts: Iterable[HostRecord], coordinator: str, *, seen_s: float) -> bool:
    """Whether a host with a lease that is not older belongs to another coordinator."""
    return any(
        not each.is_lost
        and each.unseen_s <= seen_s
        and each.about.get("coordinator", "") != coordinator
        for each in hosts
    )


class HostsPort(Protocol):
    """The hosts of a fleet. Each method is one transaction."""

    @property
    def service_id(self) -> str: ...

    async def join_host(
        self, incarnation: str, about: Mapping[str, Json], *, rivals_s: float
    ) -> None:
        """This service is a host from now on; an earlier incarnation loses its lease. Raises
        `SecondCoordinator` if a host of another coordinator was seen so shortly ago."""

    async def renew_host(self, incarnation: str, about: Mapping[str, Json]) -> HostRecord | None:
        """Renew the lease; None once the host was declared lost, removed or replaced."""

    async def leave_host(self, incarnation: str) -> None:
        """This host has ended."""

    async def list_hosts(self) -> tuple[HostRecord, ...]:
        """By id; lost ones for a day."""

    async def set_draining(self, host_id: str, *, is_draining: bool) -> bool:
        """False if there is no such host."""

    async def remove_host(self, host_id: str) -> bool:
        """Forget a host; its process finds out when it renews."""

    async def declare_lost(self, host: HostRecord, *, unseen_s: float, answer: str) -> bool:
        """End sessions and questions of a host whose lease is older than this; False if the host
        has renewed the lease meanwhile, or another caller was first."""

    async def count_sessions(self) -> Mapping[str, int]:
        """Live sessions of each service that has any, by its id."""

    async def find_holder(self, kind: Held, name: str) -> Holder | None:
        """For routing alone: whether the caller may use it is decided by the host."""

    async def session_placement(self, session_id: str, *, host_id: str) -> SessionPlacement | None:
        """Where a session is now, and the lease of this host; None for an unknown session."""
