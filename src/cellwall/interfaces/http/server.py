"""The service once it has its sockets: one event loop with the HTTP server and the supervisor.

It stops in this order: no new connections; requests under way have `drain_s` to end; then they are
cancelled; sandboxes end; the lock is released. A second signal ends the process at once: as after
kill -9, every cell dies with it, and what was acknowledged is on disk.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
from fastapi import FastAPI

from cellwall.admin.accounts import open_accounts
from cellwall.admin.fleet import LocalFleet
from cellwall.config.models import Settings
from cellwall.core.home import shaping
from cellwall.interfaces.http.application import ServiceSettings, make_application
from cellwall.interfaces.http.housekeeping import Housekeeping, index_texts, watch_alerts
from cellwall.interfaces.http.http_server import HttpServer
from cellwall.interfaces.http.listening import Listening, Started
from cellwall.interfaces.http.operator_view import OperatorView
from cellwall.interfaces.http.presence import check_neighbours
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.http.service_manager import ServiceManager
from cellwall.interfaces.standalone_proxy import first_error
from cellwall.interfaces.supervisor.server import Supervisor
from cellwall.runtime.app import App

_log = logging.getLogger("cellwall.serve")
_ENDING_S = 30.0
"""Beyond the drain: sandboxes end, and the audit log is closed."""


class ServiceProcess:
    """One service, from its start to its end."""

    def __init__(
        self,
        home: str,
        settings: Settings,
        listening: Listening,
        manager: ServiceManager,
        on_ready: Callable[[Started], None],
    ) -> None:
        self._home, self._settings, self._listening = home, settings, listening
        self._manager, self._on_ready = manager, on_ready
        self._view = OperatorView(listening.public_url)
        self._api: FastAPI | None = None
        self._is_stopping = False
        self._drain_until = -math.inf
        """On the clock of the event loop, once a signal has come."""

    async def run(self, line: socket.socket, config: str | None, profile: str | None) -> int:
        """Serve until a signal; `line` is the socket of the supervisor."""
        supervisor = Supervisor(self._home, service=self._view)
        try:
            app = await supervisor.cache.take(config, profile, shaping(os.environ))
            return await self._serve(app, supervisor, line)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            with anyio.CancelScope(shield=True):  # without effect where the supervisor did it
                await anyio.to_thread.run_sync(supervisor.cache.close)

    async def _serve(self, app: App, supervisor: Supervisor, line: socket.socket) -> int:
        url = self._listening.public_url
        async with open_accounts(self._home, self._settings, issuer=url, audit=app.audit) as (
            accounts,
            store,
        ):
            await check_neighbours(store, accounts, self._settings)
            self._api = make_application(
                app,
                accounts,
                ServiceSettings.configured(
                    self._settings.server, names=self._listening.names, public_url=url
                ),
                store=store,
            )
            self._view.follow(app, store, self._api)
            fleet = LocalFleet(self._api, store.service_id)
            server = HttpServer(
                self._settings.server,
                partial(fleet.call, store.service_id),
                self._listening,
                self._is_busy,
            )

            async def announce() -> None:
                code = await accounts.sign_in.first_owner_link()
                started = Started(
                    url=url, sign_in_code=code, link_s=self._settings.accounts.sign_in_link_s
                )
                self._on_ready(started)
                self._manager.ready(f"listens on {url}")
                # What the start has made stays: a full collection would look at 300,000 objects,
                # and no request is served meanwhile.
                gc.freeze()

            server.on_started = announce
            housekeeping = Housekeeping(
                app=app,
                accounts=accounts,
                sessions=store,
                tls=self._listening.tls,
                context=self._listening.context,
                every_s=self._settings.server.housekeeping_s,
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_signals, server, supervisor)
                tasks.start_soon(watch_alerts, app)
                tasks.start_soon(index_texts, app)
                tasks.start_soon(housekeeping.run)
                tasks.start_soon(housekeeping.watch_owners, store, self._sandboxes)
                tasks.start_soon(self._ping)
                async with anyio.create_task_group() as serving:
                    serving.start_soon(self._supervise, supervisor, line, server)
                    try:
                        await server.serve(sockets=list(self._listening.sockets))
                    finally:
                        # HTTP requests have ended; those of the command line have the rest of the
                        # time, and then the runtimes are closed.
                        with anyio.CancelScope(deadline=self._drain_until):
                            await supervisor.drained.wait()
                        supervisor.stop()
                tasks.cancel_scope.cancel()
        return 0

    async def _supervise(
        self, supervisor: Supervisor, line: socket.socket, server: HttpServer
    ) -> None:
        """The supervisor closes the runtimes at its end, so it ends after the HTTP server."""
        await supervisor.serve(line)
        if not self._is_stopping:
            _log.warning("the state folder was removed or replaced: the service stops")
        server.should_exit = True

    def _sandboxes(self) -> OwnedSandboxes | None:
        service = None if self._api is None else getattr(self._api.state, "service", None)
        return None if service is None else service.sandboxes

    def _is_busy(self) -> bool:
        """Whether a run is under way whose client has left and may come back for its result."""
        sandboxes = self._sandboxes()
        return sandboxes is not None and any(each.busy for each in sandboxes.all())

    async def _watch_signals(self, server: HttpServer, supervisor: Supervisor) -> None:
        """The first signal drains, the second ends the process."""
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as received:
            async for number in received:
                if self._is_stopping:
                    # As by kill -9: the shim of each cell ends the cell when this process is gone.
                    os._exit(128 + number)
                self._is_stopping = True
                self._drain_until = anyio.current_time() + self._settings.server.drain_s
                self._manager.stopping(within_s=self._settings.server.drain_s + _ENDING_S)
                server.should_exit = True
                supervisor.drain()
                if self._api is not None:
                    self._api.state.mcp.drain()
                    if (service := getattr(self._api.state, "service", None)) is not None:
                        service.live.is_draining = True  # pages would be followed for ever

    async def _ping(self) -> None:
        """Tell systemd's watchdog that the event loop runs."""
        while self._manager.ping_every_s is not None:
            self._manager.ping()
            await anyio.sleep(self._manager.ping_every_s)
