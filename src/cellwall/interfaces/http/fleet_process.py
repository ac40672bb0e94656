"""The processes of `cellwall fleet up` and `join`: Ray's node, the host of this machine, a front.

They start in this order, and each step can refuse with a hint:
  (1) settings: what several hosts must share is configured;
  (2) sockets of the front, if there is one;
  (3) database: created, or refused with an old schema;
  (4) trust: the first host makes the fleet's authority, others join with a token, once;
  (5) the node of Ray; a first one, or one that joins;
  (6) the host: a detached process of Ray that owns the runtime of this state folder;
  (7) the front listens, and the first host waits for machines that join.
At the first signal the host drains: no new sessions, and requests under way have `drain_s`.
"""

# ruff: noqa: PLC0415  # late imports: Ray takes seconds, a refusal must not

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cellwall.admin.fleet import (
    FleetPort,
    HostLost,
    HostsPort,
    NodeOptions,
    RayNode,
    RayTrust,
    RequestBodies,
    check_fleet_settings,
    lost_after_s,
    open_hosts,
    ray_engine,
    require_ray,
    service_id_of,
)
from cellwall.admin.fleet_trust import (
    FleetTrust,
    listening_for_machines,
    trust_of_first,
    trust_of_joining,
    trust_of_running_ray,
)
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError, Denied
from cellwall.core.home import shaping
from cellwall.core.ids import new_id
from cellwall.interfaces.http.front_serving import (
    load_front,
    request_bodies,
    serve_front,
    signalled,
)
from cellwall.interfaces.http.listening import Listening, Started, open_listening
from cellwall.interfaces.standalone_proxy import first_error
from cellwall.runtime.home import local_principal, state_home

if TYPE_CHECKING:
    from types import ModuleType


OPENING = "cellwall.interfaces.http.fleet_host:open_host"
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What the command line says."""

    config: str | None
    profile: str | None
    address: str | None = None
    """Of the first host; None: this is the first."""
    labels: Mapping[str, str] = field(default_factory=dict)
    token_file: str | None = None
    join_token: str | None = field(default=None, repr=False)
    """Of `cellwall fleet token`; needed once."""
    has_front: bool = True
    has_host: bool = True
    is_ray_running: bool = False
    """Ray's node on this machine was started before, for example by KubeRay."""
    host: str | None = None
    port: int | None = None
    as_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStarted:
    """What a person needs once the machine is part of the fleet."""

    host_id: str
    """Empty for a front without a host."""
    address: str
    """For `cellwall fleet join`; empty where machines do not join."""
    front: Started | None


class FleetProcess:
    """This machine's part of a fleet, from its start to its end."""

    def __init__(self, options: FleetOptions, on_ready: Callable[[FleetStarted], None]) -> None:
        self._options, self._on_ready = options, on_ready
        self._config = None if options.config is None else os.path.abspath(options.config)
        self._settings: Settings = load_settings(
            file=self._config, profile=options.profile, environ=os.environ
        )
        self._home = state_home(os.environ)

    def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        options, settings = self._options, self._settings
        refuse_root(as_root=options.as_root)
        check_fleet_settings(settings)  # (1)
        require_ray()
        os.umask(0o077)
        listening = None
        if options.has_front:
            listening = open_listening(settings, host=options.host, port=options.port)  # (2)
        from cellwall.admin.database import DatabaseAdmin

        DatabaseAdmin(self._home, settings).prepare(local_principal("cli"))  # (3)
        os.environ.update(shaping(os.environ))
        try:
            return anyio.run(self._serve, listening)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _serve(self, listening: Listening | None) -> int:
        fleet_section = self._settings.fleet
        trust = await self._trust()  # (4)
        own = f"{fleet_section.node_address}:{fleet_section.port}"
        address = self._options.address or own
        host_id = service_id_of(self._home)
        async with AsyncExitStack() as stack:
            node = None
            if not self._options.is_ray_running:
                node = await stack.enter_async_context(self._node(address, host_id, trust.ray))
            engine = await self._load(trust.ray, node)  # (5)
            connect = anyio.to_thread.run_sync(
                lambda: engine.connect(address, node_ip=fleet_section.node_address)
            )
            await connect
            stack.callback(engine.disconnect)
            coordinator = await anyio.to_thread.run_sync(engine.coordinator_id)
            actor = None
            if self._options.has_host:
                host = self._host(engine, host_id, coordinator)
                actor = await stack.enter_async_context(host)  # (6)
            hosts: HostsPort = await stack.enter_async_context(
                open_hosts(self._home, self._settings)
            )
            bodies = request_bodies(self._settings)
            fleet = engine.RayFleet(
                hosts,
                coordinator=coordinator,
                lost_after_s=lost_after_s(self._settings),
                bodies=bodies,
            )
            await fleet.look()
            await stack.enter_async_context(
                listening_for_machines(self._home, self._settings, trust, ray_address=own)
            )
            async with anyio.create_task_group() as tasks:
                if listening is not None:  # else each machine would read all rows, each second
                    tasks.start_soon(fleet.watch)
                if actor is not None:
                    tasks.start_soon(_end_with_host, engine, actor)
                told = FleetStarted(host_id=host_id, address=address, front=None)
                if listening is None:
                    self._on_ready(told)
                    await signalled()
                else:
                    await self._front(fleet, bodies, listening, told, engine)  # (7)
                if self._options.has_host:
                    await self._drain(fleet, host_id)
                tasks.cancel_scope.cancel()
        return 0

    async def _trust(self) -> FleetTrust:
        options, is_first = self._options, self._options.address is None
        given = options.token_file or self._settings.fleet.token_file
        if options.is_ray_running:
            return trust_of_running_ray(self._home, self._settings, given, creates=is_first)
        if is_first:
            return await trust_of_first(self._home, self._settings, given)
        return await trust_of_joining(self._home, self._settings, options.join_token, given)

    async def _load(self, trust: RayTrust, node: RayNode | None) -> ModuleType:
        """The driver of Ray. What takes seconds of imports is loaded while the node starts."""
        async with anyio.create_task_group() as tasks:
            if node is not None:
                tasks.start_soon(anyio.to_thread.run_sync, node.wait_until_up)
            engine = await anyio.to_thread.run_sync(ray_engine, trust)
            if self._options.has_front:
                await anyio.to_thread.run_sync(load_front)
        return engine

    @asynccontextmanager
    async def _node(self, address: str, host_id: str, trust: RayTrust) -> AsyncIterator[RayNode]:
        """A node that starts; `_load` waits for it."""
        node = RayNode(
            NodeOptions(
                address=address,
                is_head=self._options.address is None,
                node_ip=self._settings.fleet.node_address,
                host_id=host_id,
                trust=trust,
                log_file=os.path.join(self._home, "fleet-node.log"),
                preloads=OPENING.partition(":")[0] if self._options.has_host else "",
            ),
            os.environ,
        )
        node.start()
        try:
            yield node
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(node.stop)

    @asynccontextmanager
    async def _host(self, engine: ModuleType, host_id: str, coordinator: str) -> AsyncIterator[Any]:
        options: dict[str, Any] = {
            "home": self._home,
            "config": self._config,
            "profile": self._options.profile,
            "environ": shaping(os.environ),
            "incarnation": (incarnation := new_id("inc")),
            "labels": dict(self._options.labels),
            "coordinator": coordinator,
        }
        actor = await engine.start_host(
            host_id,
            incarnation,
            opening=OPENING,
            options=options,
            is_pinned=not self._options.is_ray_running,
        )
        try:
            yield actor
        finally:
            with anyio.CancelScope(shield=True):
                await engine.stop_host(actor)

    async def _front(
        self,
        fleet: Any,  # noqa: ANN401  # the driver loads late
        bodies: RequestBodies,
        listening: Listening,
        told: FleetStarted,
        engine: ModuleType,
    ) -> None:
        has_ended = False

        def announce(started: Started) -> None:
            self._on_ready(replace(told, front=started))

        async def node_ended() -> None:
            nonlocal has_ended
            await engine.wait_for_node()
            has_ended = True

        async def signal_or_end() -> None:
            async with anyio.create_task_group() as tasks:
                for each in (signalled, node_ended):
                    tasks.start_soon(_first, each, tasks.cancel_scope)

        await serve_front(
            fleet,
            bodies,
            self._settings,
            listening,
            owner_code=fleet.owner_code,
            on_ready=announce,
            until=signal_or_end,
        )
        if has_ended:  # new hosts would stay unknown, and large bodies would not cross
            raise CellwallError(
                "Ray ended on this machine, and the front with it",
                hint="Start `cellwall fleet` again, in the same way: sessions go on.",
                code="CW-FLEET-NODE",
            )

    async def _drain(self, fleet: FleetPort, host_id: str) -> None:
        """No new sessions come; runs under way have `drain_s` to end."""
        await fleet.drain(host_id)
        with anyio.move_on_after(self._settings.server.drain_s):
            while any(each.id == host_id and each.busy for each in await fleet.list()):  # noqa: ASYNC110  # of another process
                await anyio.sleep(_LOOK_EVERY_S)


def refuse_root(*, as_root: bool) -> None:
    """Raise `Denied` for root, unless that was asked for."""
    if os.geteuid() == 0 and not as_root:
        raise Denied(
            "the service does not run as root",
            hint="Run it as an ordinary user (docs/guides/serve.md shows how), or accept the risk "
            "with --dangerously-as-root.",
            code="CW-SERVE-ROOT",
        )


async def _first(work: Callable[[], Awaitable[None]], others: anyio.CancelScope) -> None:
    await work()
    others.cancel()


async def _end_with_host(engine: ModuleType, actor: Any) -> None:  # noqa: ANN401  # Ray's handle
    """A host that was lost or removed serves nothing any more: what started the process learns it,
    and can start it again."""
    await engine.wait_for_host(actor)
    raise HostLost(
        "the host of this machine was lost or removed",
        hint="Start `cellwall fleet join` again: it joins as a new host without sessions.",
    )
