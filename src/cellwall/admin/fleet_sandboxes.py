"""A fleet with the driver of agent-sandbox, as the command line and the service use it.

Its hosts are claims of sandboxes in the cluster; which of them has a session is in the database.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from cellwall.admin.cluster_api import open_cluster_api
from cellwall.admin.fleet import RequestBodies, open_hosts
from cellwall.admin.fleet_hosts import FleetAdmin, HostState
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.fleet.claims import host_id_of
from cellwall.fleet.kubernetes import KubernetesFleet, SandboxSettings
from cellwall.fleet.kubernetes_api import Conflict, Missing
from cellwall.storage.service_id import name_service

__all__ = [
    "KubernetesFleet",
    "configured_admin",
    "is_of_sandboxes",
    "name_sandbox_service",
    "open_sandbox_fleet",
    "ray_only",
]


def is_of_sandboxes(settings: Settings) -> bool:
    """Whether the driver is that of agent-sandbox."""
    return settings.fleet.driver == "agent-sandbox"


def ray_only(what: str) -> BadInput:
    """For what hosts of Ray have and sandboxes of a cluster do not."""
    return BadInput(
        f"{what} is for the driver ray",
        hint='The configuration has driver = "agent-sandbox" in [fleet]: the SandboxWarmPool says '
        "how many sandboxes there are.",
        code="CW-FLEET-DRIVER",
    )


@asynccontextmanager
async def open_sandbox_fleet(
    home: str, settings: Settings, bodies: RequestBodies
) -> AsyncIterator[KubernetesFleet]:
    """The sandboxes of the cluster as they are now; raises with a hint where it does not answer."""
    section = settings.kubernetes
    async with open_cluster_api(settings) as api, open_hosts(home, settings) as hosts:
        fleet = KubernetesFleet(
            api,
            hosts,
            SandboxSettings(
                fleet=section.fleet,
                pools=section.pools,
                default_pool=section.pool,
                ready_s=section.ready_s,
                port=section.service_port,
                service_ca_file=section.service_ca_file,
                service_name=section.service_name,
            ),
            bodies=bodies,
        )
        try:
            await _look(fleet)
            yield fleet
        finally:
            await fleet.close()


async def _look(fleet: KubernetesFleet) -> None:
    try:
        await fleet.look()
    except (Missing, Conflict):
        raise CellwallError(
            "the cluster knows no claims of sandboxes",
            hint="Install agent-sandbox with its extensions, and check namespace in [kubernetes].",
            code="CW-KUBERNETES",
        ) from None


class SandboxFleetAdmin(FleetAdmin):
    """The same commands over the claims of the cluster."""

    async def _list(self) -> tuple[HostState, ...]:
        async with (
            open_hosts(self._home, self._settings) as hosts,
            open_sandbox_fleet(self._home, self._settings, _no_bodies()) as fleet,
        ):
            counts = await hosts.count_sessions()
            return tuple(
                replace(each, sessions=counts.get(each.id, 0)) for each in await fleet.list()
            )

    async def _set_draining(self, host_id: str, *, is_draining: bool) -> bool:
        async with open_sandbox_fleet(self._home, self._settings, _no_bodies()) as fleet:
            await fleet.drain(host_id, is_draining=is_draining)
        return True

    async def _remove(self, host_id: str, *, revokes: bool) -> bool:
        if revokes:
            raise ray_only("--revoke")
        async with open_sandbox_fleet(self._home, self._settings, _no_bodies()) as fleet:
            await fleet.remove(host_id)
        return True


def configured_admin(*, config: str | None = None, profile: str | None = None) -> FleetAdmin:
    """Of the driver that the configuration names."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    kind = SandboxFleetAdmin if is_of_sandboxes(settings) else FleetAdmin
    return kind.configured(config=config, profile=profile)


def name_sandbox_service(home: str, settings: Settings) -> None:
    """The service in a pod goes by the id that fronts compute from the name of its sandbox, which
    is the name of the pod and so its hostname. No effect with another driver."""
    if not is_of_sandboxes(settings):
        return
    wanted = host_id_of(socket.gethostname())
    if name_service(home, wanted) != wanted:
        raise ConfigError(
            "the state folder belongs to the service of another sandbox",
            hint="Give each pod a state folder of its own, such as an emptyDir.",
            code="CW-FLEET-NAME",
        )


def _no_bodies() -> RequestBodies:
    return RequestBodies(max_bytes=0, max_total_bytes=0)
