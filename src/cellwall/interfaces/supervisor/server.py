"""The supervisor: a per-user process in which templates stay warm and sandboxes live long.

Its socket lies in the user's own state folder, mode 0600, and every caller's uid is asked of the
kernel. It is one more interface: each request becomes an `Action`, the runtime's steps judge, run
and record it. If it dies, every cell dies with it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc

import cellwall
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, error_kind
from cellwall.core.frames import BadFrame, FrameReader, encode
from cellwall.core.home import SUPERVISOR_SOCKET, shaping
from cellwall.core.outcomes import ErrorInfo
from cellwall.core.types import Json
from cellwall.interfaces.supervisor.live_sandboxes import Residents
from cellwall.interfaces.supervisor.one_shot import answer_hook, run_typed
from cellwall.interfaces.supervisor.runtime_cache import Houses

_MAX_FRAME_BYTES = 128 * 1024 * 1024
_IDLE_S = 900.0
_LOOK_EVERY_S = 1.0
_RETRY_S = 0.1
_FOR_ALL_VERSIONS = frozenset({"status", "stop"})
_log = logging.getLogger("cellwall.supervisor")
_CREDENTIALS = struct.Struct("3i")


class Conversation:
    """One client's request and everything said about it."""

    def __init__(self, stream: anyio.abc.ByteStream, pid: int = 0) -> None:
        self._stream = stream
        self.pid = pid
        """The client's process, by the kernel's word."""
        self._reader = FrameReader(max_frame_bytes=_MAX_FRAME_BYTES)
        self._frames: list[tuple[Mapping[str, Any], bytes]] = []
        self._sending = anyio.Lock()

    async def read(self) -> tuple[Mapping[str, Any], bytes] | None:
        """The next frame; None when the client is gone or talks nonsense."""
        while not self._frames:
            try:
                chunk = await self._stream.receive(1 << 18)
                self._frames += [(frame.message, frame.blob) for frame in self._reader.feed(chunk)]
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return None
            except BadFrame:
                return None
        return self._frames.pop(0)

    async def send(self, message: Mapping[str, Json], blob: bytes = b"") -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._sending:
                await self._stream.send(encode(message, blob))


class Supervisor:
    """Serves until it is told to stop, or nobody has needed it for a while."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._home_status = os.stat(home)
        self._houses = Houses()
        self._residents = Residents(self._houses)
        self._used_at = time.monotonic()
        self._busy = 0
        self._is_leaving = False
        self._scope: anyio.CancelScope | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Until `stop`, a signal, or idleness."""
        listener.setblocking(False)
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                tasks.start_soon(self._watch)
                tasks.start_soon(self._warm_up)
                while True:
                    await anyio.wait_readable(listener)
                    try:
                        line, _address = listener.accept()
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        # No descriptor left, most likely: who lives here goes on living.
                        _log.warning("a client could not be received: %s", error)
                        await anyio.sleep(_RETRY_S)
                        continue
                    tasks.start_soon(self._greet, line)
        finally:
            with anyio.CancelScope(shield=True):
                await self._residents.close()
                await anyio.to_thread.run_sync(self._houses.close)

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            try:
                await self._residents.end_overdue()
            except Exception:  # noqa: BLE001  # the others live on
                _log.exception("a sandbox could not be ended in order")
            idle_s = time.monotonic() - self._used_at
            is_needed = self._busy or self._residents.count
            is_idle = not is_needed and (self._is_leaving or idle_s > _IDLE_S)
            if is_idle or not self._is_at_home():
                self.stop()

    def _is_at_home(self) -> bool:
        """Another folder of that name, made by whoever came later, is not ours."""
        try:
            return os.path.samestat(os.stat(self._home), self._home_status)
        except OSError:
            return False

    async def _warm_up(self) -> None:
        """The runtime most clients will ask for; why it cannot be is told to whoever asks."""
        with suppress(CellwallError):
            house = await anyio.to_thread.run_sync(
                self._houses.take, None, None, shaping(os.environ)
            )
            self._houses.give_back(house)

    def stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _greet(self, line: socket.socket) -> None:
        # The folder is the user's alone already; this is the second lock on the same door.
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

    async def _answer(self, talk: Conversation) -> None:
        asked = await talk.read()
        if asked is None:
            return
        message, blob = asked
        try:
            version = message.get("version")
            if not isinstance(version, str):
                raise BadInput("the supervisor was asked for something it does not know")
            if version != cellwall.__version__ and message.get("do") not in _FOR_ALL_VERSIONS:
                # An upgrade: the old one makes room once nobody needs it, the caller goes on
                # without it.
                self._is_leaving = True
                await talk.send({"stale": cellwall.__version__})
                if self._busy == 1 and not self._residents.count:
                    self.stop()
                return
            await self._dispatch(talk, message, blob)
        except CellwallError as error:
            await talk.send({"error": _told(error)})
        except (AttributeError, KeyError, TypeError, ValueError):
            unknown = BadInput("the supervisor was asked for something it does not know")
            await talk.send({"error": _told(unknown)})
        except Exception as error:  # noqa: BLE001  # told, logged, survived
            # A bug met by one client must not end the sandboxes of the others.
            _log.exception("a request failed")
            failed = SandboxFailed(
                "the supervisor failed at this request",
                hint="Try again; if it stays so, run with CELLWALL_SUPERVISOR=off and report it.",
                code="CW-INTERNAL",
                detail=repr(error),
            )
            await talk.send({"error": _told(failed)})

    async def _dispatch(self, talk: Conversation, message: Mapping[str, Any], blob: bytes) -> None:
        match message.get("do"):
            case "run":
                await run_typed(talk, self._houses, message, blob)
            case "hook":
                await answer_hook(talk, self._houses, message, blob)
            case "status":
                await talk.send(
                    {"pid": os.getpid(), "sandboxes": self._residents.listed(), "home": self._home}
                )
            case "stop":
                await talk.send({"stopped": True})
                self.stop()
            case _:
                await self._residents.dispatch(talk, message, blob)


def _told(error: CellwallError) -> dict[str, Any]:
    return {**ErrorInfo.of(error).to_json(), "kind": error_kind(error)}


def listen(home: str) -> tuple[socket.socket, int] | None:
    """The socket and the lock; None if another supervisor serves this folder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(os.path.join(home, "supervisor.lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(SUPERVISOR_SOCKET, dir_fd=folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is born 0600
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
        finally:
            os.umask(before)
        listener.listen(128)
    finally:
        os.close(folder)
    return listener, lock
