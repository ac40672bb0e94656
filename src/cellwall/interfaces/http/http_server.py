"""The HTTP server: uvicorn with the bounds of the service, and with an end of its start."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import uvicorn

from cellwall.admin.fleet import Application
from cellwall.config.server_section import ServerSection
from cellwall.core.errors import CellwallError
from cellwall.interfaces.http.bounded_listener import BoundedListener, ConnectionPlaces
from cellwall.interfaces.http.bounded_websocket import BoundedWebSocket
from cellwall.interfaces.http.connections import bounded_protocol
from cellwall.interfaces.http.listening import Listening
from cellwall.interfaces.http.terminal import MAX_FRAME_BYTES

_LOOK_EVERY_S = 0.1


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handlers, and with an end of its start."""

    def __init__(
        self,
        bounds: ServerSection,
        application: Application,
        listening: Listening,
        is_busy: Callable[[], bool],
    ) -> None:
        """`is_busy`: whether work is under way that no connection waits for."""
        super().__init__(_config(bounds, application, listening.context))
        self._is_busy, self._handshake_s = is_busy, bounds.request_timeout_s
        self._places = ConnectionPlaces(bounds.max_connections)
        self.on_started: Callable[[], Awaitable[None]] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """As uvicorn's, but a failed start is an error of ours, and a TLS handshake has a deadline
        and counts as a connection."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise _not_started()
        config, context = self.config, self.config.ssl
        protocol: Callable[..., asyncio.Protocol] = config.http_protocol_class
        make = functools.partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        self.servers = []
        for each in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                make,
                sock=BoundedListener.around(each, self._places),
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._handshake_s,
                backlog=config.backlog,
            )
            self.servers.append(server)
        self.started = True
        if self.on_started is not None:
            await self.on_started()

    async def _wait_tasks_to_complete(self) -> None:
        await super()._wait_tasks_to_complete()
        while self._is_busy():  # noqa: ASYNC110  # as uvicorn waits for connections
            await anyio.sleep(_LOOK_EVERY_S)


def _not_started() -> CellwallError:
    return CellwallError(
        "the application of the service did not start",
        hint="See the lines before this one, and `cellwall doctor --service`.",
        code="CW-SERVE-START",
    )


def _config(
    bounds: ServerSection, application: Application, context: ssl.SSLContext | None
) -> uvicorn.Config:
    protocol = bounded_protocol(timeout_s=bounds.request_timeout_s)
    return uvicorn.Config(
        application,
        http=protocol,  # type: ignore[arg-type]  # a factory serves as the class does
        interface="asgi3",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,  # the audit log tells who did what
        proxy_headers=False,  # a client could name any address
        server_header=False,
        # A WebSocket accepts messages before its caller is known.
        ws=BoundedWebSocket,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=bounds.drain_s,  # type: ignore[arg-type]  # passed to asyncio
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
