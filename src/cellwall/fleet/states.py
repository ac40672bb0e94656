"""What a host tells of itself with each renewal of its lease, and how the fleet reads it.

The text comes from the database, which every host of the fleet writes: a value that is missing or
of another type counts as unknown, and the host gets no session for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellwall.core.hosts import HostRecord
from cellwall.core.types import Json
from cellwall.fleet.engine import HostState

KEEPER = "keeper"
"""The value of `vault` of the host that lends secrets to the others."""


def state_of(record: HostRecord, *, is_lost: bool) -> HostState:
    """The state of a host as of its last renewal."""
    about = record.about
    labels, templates = about.get("labels"), about.get("templates")
    return HostState(
        id=record.id,
        incarnation=record.incarnation,
        version=str(about.get("version", "")),
        policy_version=_count(about.get("policy_version")),
        problem=str(about.get("problem", "")),
        address=str(about.get("address", "")),
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, Mapping) else {},
        memory_free_bytes=_count(about.get("memory_free_bytes")),
        memory_bytes=_count(about.get("memory_bytes")),
        sessions=_count(about.get("sessions")),
        busy=_count(about.get("busy")),
        keeps_vault=about.get("vault") == KEEPER,
        templates=frozenset(map(str, templates)) if isinstance(templates, list) else frozenset(),
        unseen_s=record.unseen_s,
        is_draining=record.is_draining,
        is_lost=is_lost,
    )


def state_of_load(host_id: str, about: Mapping[str, Json]) -> HostState:
    """The state of a service without a fleet, by the same words."""
    alone = HostRecord(
        id=host_id, incarnation="", about=about, unseen_s=0.0, is_draining=False, is_lost=False
    )
    return state_of(alone, is_lost=False)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
