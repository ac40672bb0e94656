"""The start of `cellwall serve`, in this order; each step can refuse with a hint before a later one
has an effect:
  (1) who: not root, unless that is asked for;
  (2) sockets: opened or inherited; beyond loopback only with TLS;
  (3) cells: the lock of the supervisor, so that this process owns all cells of the state folder;
  (4) database: created or migrated;
  (5) the runtime, the accounts and the application; then it listens and says so (`server`).
"""

# ruff: noqa: PLC0415  # late imports: FastAPI and SQLAlchemy take seconds, a refusal must not

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from cellwall.config.load import load_settings
from cellwall.core.errors import Denied
from cellwall.core.home import shaping
from cellwall.interfaces.http.listening import Started, open_listening
from cellwall.interfaces.http.service_manager import ServiceManager, inherited_sockets
from cellwall.interfaces.supervisor.ownership import own_cells
from cellwall.runtime.home import local_principal, state_home


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says."""

    config: str | None
    profile: str | None
    host: str | None
    port: int | None
    as_root: bool


def serve(options: ServeOptions, on_ready: Callable[[Started], None]) -> int:
    """Serve until a signal; returns the exit code."""
    end_by_signals()
    if os.geteuid() == 0 and not options.as_root:  # (1)
        raise Denied(
            "the service does not run as root",
            hint="Run it as an ordinary user (docs/guides/serve.md shows how), or accept the risk "
            "with --dangerously-as-root.",
            code="CW-SERVE-ROOT",
        )
    config = None if options.config is None else os.path.abspath(options.config)
    settings = load_settings(file=config, profile=options.profile, environ=os.environ)
    manager = ServiceManager(os.environ)
    inherited = inherited_sockets(os.environ)
    home = state_home(os.environ)
    os.umask(0o077)
    _raise_descriptor_limit()
    listening = open_listening(
        settings, host=options.host, port=options.port, inherited=inherited
    )  # (2)
    with _owned_cells(home) as line:  # (3)
        from cellwall.admin.database import DatabaseAdmin
        from cellwall.admin.fleet_sandboxes import name_sandbox_service
        from cellwall.interfaces.http.server import ServiceProcess

        name_sandbox_service(home, settings)
        DatabaseAdmin(home, settings).prepare(local_principal("cli"))  # (4)
        os.environ.update(shaping(os.environ))  # absolute: the directory changes
        os.chdir("/")
        process = ServiceProcess(home, settings, listening, manager, on_ready)
        return anyio.run(process.run, line, config, options.profile)  # (5)


def end_by_signals() -> None:
    """Until the event loop handles signals, the kernel ends the process by them.

    An exception of a handler in Python can be lost: a callback of the import system that it hits
    ignores all exceptions, and the service would start. What is done here survives kill -9.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a shell's background job
            signal.signal(number, signal.SIG_DFL)


def _raise_descriptor_limit() -> None:
    """Each connection and each live cell needs descriptors."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _owned_cells(home: str) -> Iterator[socket.socket]:
    line, lock = own_cells(home)
    try:
        yield line
    finally:
        line.close()
        os.close(lock)
