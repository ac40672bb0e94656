"""The fleet as the service and the command line use it: its engine, its hosts and its database."""

# ruff: noqa: PLC0415  # late imports: Ray takes seconds, and only a fleet of several hosts needs it

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cellwall.admin.database import storage_settings
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError
from cellwall.core.host_trust import TrustStore
from cellwall.core.hosts import Held, HostsPort
from cellwall.fleet import leasing
from cellwall.fleet.engine import (
    AnswerBroken,
    Application,
    FleetPort,
    HostLost,
    HostPeers,
    HostState,
    Message,
    Place,
    Receive,
    Scope,
    Send,
    Wish,
    host_lost,
    no_host,
)
from cellwall.fleet.leasing import HostLease
from cellwall.fleet.local import LocalFleet
from cellwall.fleet.placement import has_labels
from cellwall.fleet.ray_node import NodeOptions, RayNode, RayTrust, ray_environment
from cellwall.fleet.request_bodies import RequestBodies
from cellwall.fleet.states import state_of, state_of_load
from cellwall.storage.service_id import service_id_of

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "AnswerBroken",
    "Application",
    "FleetPort",
    "Held",
    "HostLease",
    "HostLost",
    "HostPeers",
    "HostState",
    "HostsPort",
    "LocalFleet",
    "Message",
    "NodeOptions",
    "Place",
    "RayNode",
    "RayTrust",
    "Receive",
    "RequestBodies",
    "Scope",
    "Send",
    "Wish",
    "check_fleet_settings",
    "fleet_token",
    "has_labels",
    "host_lost",
    "host_states",
    "lost_after_s",
    "no_host",
    "open_hosts",
    "open_trust",
    "ray_engine",
    "require_ray",
    "service_id_of",
    "state_of_load",
    "token_path",
]
_TOKEN_NAME = "fleet.token"  # noqa: S105  # a name


def lost_after_s(settings: Settings) -> float:
    """When others take over: a host has ended what it held by then (`HostLease`)."""
    return leasing.lost_after_s(settings.fleet.lease_s)


async def host_states(hosts: HostsPort, settings: Settings) -> tuple[HostState, ...]:
    """All hosts by id; one without a valid lease counts as lost."""
    limit_s = lost_after_s(settings)
    return tuple(
        state_of(each, is_lost=each.is_lost or each.unseen_s > limit_s)
        for each in await hosts.list_hosts()
    )


def check_fleet_settings(settings: Settings) -> None:
    """Raise `ConfigError` where several hosts could not work together."""
    missing = [
        name
        for name, is_set in (
            ("url in [storage]", bool(settings.storage.url)),
            ("public_url in [server]", bool(settings.server.public_url)),
            ("key_file in [accounts]", settings.accounts.key_file is not None),
        )
        if not is_set
    ]
    if missing:
        raise ConfigError(
            f"a fleet needs {' and '.join(missing)}",
            hint="All hosts share one PostgreSQL, one address for clients and one key of accounts: "
            "docs/guides/fleet.md.",
            code="CW-FLEET-CONFIG",
        )


def ray_engine(trust: RayTrust) -> ModuleType:
    """The driver of Ray; raises `ConfigError` without the extra. Ray reads its environment while it
    is imported, and its children inherit it."""
    require_ray()
    os.environ.update(ray_environment(trust))
    from cellwall.fleet import ray

    return ray


def require_ray() -> None:
    """Raise `ConfigError` without the extra."""
    if find_spec("ray") is None:
        raise ConfigError(
            "Ray is not installed",
            hint="Install Cellwall with the extra: pip install 'cellwall[fleet]' (Python 3.11 to "
            "3.13).",
            code="CW-FLEET-EXTRA",
        )


def token_path(home: str) -> str:
    """The file with Ray's token where the configuration names none."""
    return os.path.join(home, _TOKEN_NAME)


def fleet_token(home: str, given: str | None, *, creates: bool) -> str:
    """The path of the file with the token of the fleet. `creates`: at the first host."""
    path = token_path(home) if given is None else given
    if creates and given is None and not os.path.exists(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    if not os.path.exists(path):
        raise ConfigError(
            "the token of the fleet is missing",
            hint="Make a join token with `cellwall fleet token` on the first host, and give it to "
            "`cellwall fleet join` on standard input with --join-token.",
            code="CW-FLEET-TOKEN",
        )
    return path


@asynccontextmanager
async def open_hosts(home: str, settings: Settings) -> AsyncIterator[HostsPort]:
    """The hosts as the database knows them."""
    from cellwall.storage.store import open_store

    async with open_store(storage_settings(home, settings)) as store:
        yield store


@asynccontextmanager
async def open_trust(home: str, settings: Settings) -> AsyncIterator[TrustStore]:
    """Tokens, certificates and witnessed logs, as the database keeps them."""
    from cellwall.storage.store import open_store

    async with open_store(storage_settings(home, settings)) as store:
        yield store
