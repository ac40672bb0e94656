"""The process of `cellwall fleet up` with the driver of agent-sandbox: a front, and no host.

It starts in this order, and each step can refuse with a hint:
  (1) settings: what several services must share is configured;
  (2) sockets;
  (3) database: created, or refused with an old schema;
  (4) the cluster: its API answers, and lets this service account read claims;
  (5) one sandbox for requests about no session, then the front listens.
"""

# ruff: noqa: PLC0415  # late imports: SQLAlchemy takes seconds, a refusal must not

from __future__ import annotations

import os
from collections.abc import Callable

import anyio

from cellwall.admin.fleet import check_fleet_settings
from cellwall.admin.fleet_sandboxes import open_sandbox_fleet, ray_only
from cellwall.config.models import Settings
from cellwall.interfaces.http.fleet_process import FleetOptions, FleetStarted, refuse_root
from cellwall.interfaces.http.front_serving import request_bodies, serve_front, signalled
from cellwall.interfaces.http.listening import Listening, Started, open_listening
from cellwall.interfaces.standalone_proxy import first_error
from cellwall.runtime.home import local_principal, state_home


class SandboxFrontProcess:
    """One front, from its start to its end."""

    def __init__(
        self,
        options: FleetOptions,
        settings: Settings,
        on_ready: Callable[[FleetStarted], None],
    ) -> None:
        self._options, self._settings, self._on_ready = options, settings, on_ready
        self._home = state_home(os.environ)

    def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        options, settings = self._options, self._settings
        refuse_root(as_root=options.as_root)
        for what, is_given in (
            ("`cellwall fleet join`", options.address is not None),
            ("--label", bool(options.labels)),
            ("--token-file", options.token_file is not None),
            ("--with-running-ray", options.is_ray_running),
        ):
            if is_given:
                raise ray_only(what)
        check_fleet_settings(settings)  # (1)
        os.umask(0o077)
        listening = open_listening(settings, host=options.host, port=options.port)  # (2)
        from cellwall.admin.database import DatabaseAdmin

        DatabaseAdmin(self._home, settings).prepare(local_principal("cli"))  # (3)
        try:
            anyio.run(self._serve, listening)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        return 0

    async def _serve(self, listening: Listening) -> None:
        bodies = request_bodies(self._settings)

        def announce(started: Started) -> None:
            self._on_ready(FleetStarted(host_id="", address="", front=started))

        async def no_code() -> str:
            return ""  # `cellwall user add` makes the first owner

        async with (
            open_sandbox_fleet(self._home, self._settings, bodies) as fleet,  # (4)
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(fleet.watch)
            tasks.start_soon(fleet.keep_sweeping)
            await fleet.standby()  # (5)
            await serve_front(
                fleet,
                bodies,
                self._settings,
                listening,
                owner_code=no_code,
                on_ready=announce,
                until=signalled,
            )
            tasks.cancel_scope.cancel()
