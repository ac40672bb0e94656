"""The supervisor: a per-user process that keeps templates warm and sandboxes alive.

`python -m cellwall.interfaces.supervisor.server` is the program of `cellwall supervisor start`.

Its socket lies in the user's own state folder, mode 0600, and the kernel tells each client's uid
(SO_PEERCRED). It is one more interface: each request becomes an `Action` that goes through the
runtime's steps. If the supervisor dies, every cell dies with it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import anyio
import anyio.abc

import cellwall
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, error_kind
from cellwall.core.home import SUPERVISOR_SOCKET, shaping
from cellwall.core.outcomes import ErrorInfo
from cellwall.core.types import Json
from cellwall.interfaces.supervisor.codec import UNKNOWN_REQUEST
from cellwall.interfaces.supervisor.conversation import Conversation, hook_request
from cellwall.interfaces.supervisor.live_sandboxes import LiveSandboxes
from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.interfaces.supervisor.single_runs import single_request
from cellwall.runtime.home import state_home
from cellwall.runtime.observing import log_to_file, metrics_text

_IDLE_S = 900.0
_LOOK_EVERY_S = 1.0
_RETRY_S = 0.1
_FOR_ALL_VERSIONS = frozenset({"status", "stop"})
_log = logging.getLogger("cellwall.supervisor")
_CREDENTIALS = struct.Struct("3i")


class HostedService(Protocol):
    """The service in the supervisor's process: its sandboxes, as the operator sees them."""

    @property
    def address(self) -> str: ...

    async def describe(self) -> list[Json]:
        """As `LiveSandboxes.describe`, with the name of the owner of each sandbox."""

    def has(self, sandbox_id: str) -> bool: ...

    def log(self, sandbox_id: str) -> bytes:
        """The last output of a sandbox."""

    async def kill(self, sandbox_id: str) -> None: ...


class Supervisor:
    """Serves until it is stopped, or idle for 15 minutes; inside a service, as long as that."""

    def __init__(self, home: str, *, service: HostedService | None = None) -> None:
        self._home = home
        self._home_status = os.stat(home)
        self._service = service
        self.cache = RuntimeCache()
        self._sandboxes = LiveSandboxes(self.cache)
        self._used_at = time.monotonic()
        self._busy = 0
        self._is_leaving = False
        self._scope: anyio.CancelScope | None = None
        self._accepting: anyio.CancelScope | None = None
        self.drained = anyio.Event()
        """Set when no client is accepted any more, and the requests of all have ended."""

    async def serve(self, listener: socket.socket | None = None) -> None:
        """Accept clients until `stop`, a signal, or the idle time.

        A service passes the socket it listens on, and has opened its own runtime.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                tasks.start_soon(self._watch)
                if listener is None:
                    # First, because a hook waits for an answer for a short time only: a socket
                    # that accepts and does not answer costs each hook that time, and its own
                    # runtime as well.
                    await self._warm_up()
                    listener = open_socket(self._home)
                listener.setblocking(False)
                with listener, anyio.CancelScope() as self._accepting:
                    await self._accept_all(listener, tasks)
                # Clients that come now find no supervisor and act by themselves.
                self._note_drained()
                await self.drained.wait()
                if self._service is not None:
                    await anyio.sleep_forever()  # its requests need the runtimes until `stop`
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._sandboxes.close()
                await anyio.to_thread.run_sync(self.cache.close)

    async def _accept_all(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                line, _address = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # Most likely no descriptor is left; the live sandboxes go on.
                _log.warning("accept failed: %s", error)
                await anyio.sleep(_RETRY_S)
                continue
            tasks.start_soon(self._accept, line)

    def drain(self) -> None:
        """Accept no more clients; `serve` returns when the requests under way have ended, or
        inside a service when `stop` is called."""
        if self._accepting is not None:
            self._accepting.cancel()

    def _note_drained(self) -> None:
        if self._accepting is not None and self._accepting.cancel_called and not self._busy:
            self.drained.set()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            try:
                await self._sandboxes.end_overdue()
            except Exception:  # noqa: BLE001  # the other sandboxes live on
                _log.exception("a sandbox did not end cleanly")
            idle_s = time.monotonic() - self._used_at
            is_needed = self._busy or self._sandboxes.count
            is_idle = not is_needed and (self._is_leaving or idle_s > _IDLE_S)
            is_idle = is_idle and self._service is None
            if is_idle or not self._owns_home():
                self.stop()

    def _owns_home(self) -> bool:
        """False where the state folder was removed or replaced by another of the same name."""
        try:
            return os.path.samestat(os.stat(self._home), self._home_status)
        except OSError:
            return False

    async def _warm_up(self) -> None:
        """Open the default runtime and load the rules of its guard; an error is reported to the
        client that needs it."""
        with suppress(CellwallError):
            async with self.cache.lease(None, None, shaping(os.environ)) as app:
                await anyio.to_thread.run_sync(app.load_guard)

    def stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _accept(self, line: socket.socket) -> None:
        # Defence in depth: the folder is already accessible to this user alone.
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        if uid != os.geteuid():
            line.close()
            return
        line.setblocking(False)
        self._busy += 1
        try:
            async with await anyio.abc.UNIXSocketStream.from_socket(line) as stream:
                await self._answer(Conversation(stream, pid))
        finally:
            self._busy -= 1
            self._used_at = time.monotonic()
            self._note_drained()

    async def _answer(self, client: Conversation) -> None:
        request = await client.read()
        if request is None:
            return
        message, blob = request
        try:
            version = message.get("version")
            if not isinstance(version, str):
                raise BadInput(UNKNOWN_REQUEST)
            if version != cellwall.__version__ and message.get("do") not in _FOR_ALL_VERSIONS:
                # Cellwall was upgraded: this supervisor ends once it is idle, and the client runs
                # the action itself.
                self._is_leaving = True
                await client.send({"stale": cellwall.__version__})
                if self._busy == 1 and not self._sandboxes.count and self._service is None:
                    self.stop()
                return
            await self._dispatch(client, message, blob)
        except CellwallError as error:
            await client.send({"error": _error_json(error)})
        except (AttributeError, KeyError, TypeError, ValueError):
            unknown = BadInput(UNKNOWN_REQUEST)
            await client.send({"error": _error_json(unknown)})
        except Exception as error:  # noqa: BLE001  # reported, logged, survived
            # A bug in one request must not end the sandboxes of other clients.
            _log.exception("a request failed")
            failed = SandboxFailed(
                "the supervisor failed on this request",
                hint="Try again; if it persists, run with CELLWALL_SUPERVISOR=off and report it.",
                code="CW-INTERNAL",
                detail=repr(error),
            )
            await client.send({"error": _error_json(failed)})

    async def _dispatch(
        self, client: Conversation, message: Mapping[str, Any], blob: bytes
    ) -> None:
        match message.get("do"):
            case "single":
                await single_request(client, self.cache, message)
            case "hook":
                await hook_request(client, self.cache, message, blob)
            case "status":
                await client.send(await self._status())
            case "metrics":
                text, _kind = await anyio.to_thread.run_sync(metrics_text)
                await client.send({"metrics": True}, text)
            case "stop":
                await self._stop(client, is_only_idle=message.get("only_idle") is True)
            case "logs" | "kill" if self._service is not None and self._service.has(
                str(message.get("id"))
            ):
                await _operate(client, self._service, message)
            case _:
                await self._sandboxes.dispatch(client, message, blob)

    async def _status(self) -> dict[str, Json]:
        service = self._service
        hosted = [] if service is None else await service.describe()
        return {
            "pid": os.getpid(),
            "sandboxes": [*self._sandboxes.describe(), *hosted],
            "home": self._home,
            "service": None if service is None else service.address,
        }

    async def _stop(self, client: Conversation, *, is_only_idle: bool) -> None:
        """End the supervisor; for a service that starts, only one without work."""
        if self._service is not None:
            raise BadInput(
                f"the supervisor is part of the service in process {os.getpid()}",
                hint="Stop the service instead: send SIGTERM to that process, or use systemctl.",
                code="CW-SUPERVISOR-SERVES",
            )
        # No await between this check and `stop`, so no client can begin in between.
        if is_only_idle and (self._busy > 1 or self._sandboxes.count):
            await client.send({"stopped": False})
            return
        self.stop()
        with anyio.CancelScope(shield=True):
            await client.send({"stopped": True})


async def _operate(
    client: Conversation, service: HostedService, message: Mapping[str, Any]
) -> None:
    """The operator's view of the service's sandboxes: the account that runs the service can read
    and end them all, as it could by reading the process."""
    name = str(message["id"])
    if message["do"] == "logs":
        await client.send({"log": True}, service.log(name))
        return
    await service.kill(name)
    await client.send({"killed": name})


def _error_json(error: CellwallError) -> dict[str, Any]:
    return {**ErrorInfo.of(error).to_json(), "kind": error_kind(error)}


def lock_home(home: str) -> int | None:
    """The lock that the supervisor of this folder holds; None if another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(os.path.join(home, "supervisor.lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def open_socket(home: str) -> socket.socket:
    """The listening socket; the caller holds the lock."""
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(SUPERVISOR_SOCKET, dir_fd=folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is created with mode 0600
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
        finally:
            os.umask(before)
        listener.listen(128)
    finally:
        os.close(folder)
    return listener


async def _serve(supervisor: Supervisor) -> None:
    async with anyio.create_task_group() as tasks:

        async def watch_signals() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
                async for _number in received:
                    supervisor.stop()

        tasks.start_soon(watch_signals)
        await supervisor.serve()
        tasks.cancel_scope.cancel()


def main() -> int:
    """Serve until stopped."""
    home = state_home(os.environ)
    os.umask(0o077)
    # Each live cell needs a few descriptors.
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log_to_file(os.path.join(home, "supervisor.log"), os.environ)
    if lock_home(home) is None:
        return 0  # another supervisor serves this folder
    anyio.run(_serve, Supervisor(home))
    return 0


if __name__ == "__main__":
    sys.exit(main())
