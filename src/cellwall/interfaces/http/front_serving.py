"""A front that listens: the HTTP server over the port of a fleet."""

# ruff: noqa: PLC0415  # late imports: a machine that only joins has no HTTP server

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio

from cellwall.admin.fleet import FleetPort, RequestBodies
from cellwall.config.models import Settings
from cellwall.interfaces.http.listening import Listening, Started

_BODIES_BYTES = 512 * 1024 * 1024
"""Of all large requests that the front holds at a time, at least."""


def request_bodies(settings: Settings) -> RequestBodies:
    """As large as the service takes them, and bounded all together."""
    most = max(settings.server.max_body_bytes, settings.server.max_file_bytes)
    return RequestBodies(max_bytes=most, max_total_bytes=max(_BODIES_BYTES, 4 * most))


def load_front() -> None:
    """Import what `serve_front` needs: a second of work that can be done beside other work."""
    import cellwall.interfaces.http.fleet_front
    import cellwall.interfaces.http.http_server  # noqa: F401


async def serve_front(
    fleet: FleetPort,
    bodies: RequestBodies,
    settings: Settings,
    listening: Listening,
    *,
    owner_code: Callable[[], Awaitable[str]],
    on_ready: Callable[[Started], None],
    until: Callable[[], Awaitable[None]],
) -> None:
    """Serve until `until` returns; requests under way then have `drain_s`."""
    from cellwall.interfaces.http.fleet_front import FleetFront
    from cellwall.interfaces.http.http_server import HttpServer

    front = FleetFront(fleet, bodies, max_body_bytes=settings.server.max_body_bytes)
    server = HttpServer(settings.server, front, listening, lambda: False)

    async def announce() -> None:
        on_ready(
            Started(
                url=settings.server.public_url or listening.public_url,
                sign_in_code=await owner_code() or None,
                link_s=settings.accounts.sign_in_link_s,
            )
        )

    async def stop() -> None:
        await until()
        server.should_exit = True

    server.on_started = announce
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        await server.serve(sockets=list(listening.sockets))
        tasks.cancel_scope.cancel()


async def signalled() -> None:
    """Until SIGTERM or SIGINT."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for _ in received:
            return
