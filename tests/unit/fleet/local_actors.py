"""Hosts of a fleet in this process, called as Ray's actors are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from cellwall.core.hosts import HostRecord
from cellwall.fleet import ray as engine
from cellwall.fleet.engine import Application
from cellwall.fleet.ray_host import RayHost
from cellwall.fleet.request_bodies import RequestBodies

FIRST = HostRecord(
    id="svc_1", incarnation="inc_1", about={}, unseen_s=0.1, is_draining=False, is_lost=False
)


class ApplicationHost:
    """Implements `OpenedHost` over an application of the test."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._has_ended = asyncio.Event()

    async def first_owner_code(self) -> str:
        return ""

    async def hear(self, question: bytes) -> bytes:
        return question

    async def closed(self) -> None:
        await self._has_ended.wait()

    async def close(self) -> None:
        self._has_ended.set()


async def open_host(options: Mapping[str, Any], peers: object) -> ApplicationHost:
    del peers
    return ApplicationHost(options["application"])


class _Method:
    def __init__(self, call: Any) -> None:
        self._call = call

    def remote(self, *values: Any) -> asyncio.Future[Any]:
        # Who waits for it no longer does not end it.
        return asyncio.shield(asyncio.ensure_future(self._call(*deepcopy(values))))


class LocalActor:
    """As the handle of an actor."""

    def __init__(self, host: RayHost) -> None:
        self.host = host

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self.host, name))


class _Records:
    service_id = "svc_0"

    async def list_hosts(self) -> tuple[HostRecord, ...]:
        return (FIRST,)


async def started_host(application: Application) -> RayHost:
    host = RayHost(f"{__name__}:open_host", {"application": application})
    assert "pid" in await host.start()
    return host


def fleet_of(host: RayHost, bodies: RequestBodies | None = None) -> engine.RayFleet:
    """A front that knows one host."""
    bodies = bodies or RequestBodies(max_bytes=2**30, max_total_bytes=2**30)
    records: Any = _Records()
    fleet = engine.RayFleet(records, coordinator="", lost_after_s=60, bodies=bodies)
    fleet._states = {FIRST.id: engine.state_of(FIRST, is_lost=False)}
    fleet._actors = {FIRST.incarnation: LocalActor(host)}
    return fleet
