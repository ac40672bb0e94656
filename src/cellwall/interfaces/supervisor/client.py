"""A client's connection to the supervisor.

Only little of the standard library: a warm run takes less time than most imports.
"""

from __future__ import annotations

import _socket  # `socket` takes longer to import than a run takes
import json
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cellwall.core.errors import CellwallError, make_error
from cellwall.core.home import SUPERVISOR_SOCKET, open_private

_MAX_FRAME_BYTES = 2 * 1024 * 1024 * 1024
"""More than the largest output limit, so that every outcome fits."""
_TAKES_WITHIN_S = 5.0
_ENDS_WITHIN_S = 60.0
_CREDENTIALS = struct.Struct("3i")


class SupervisorConnection:
    """A blocking connection for one request."""

    def __init__(self, connected: _socket.socket, pid: int = 0) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self.pid = pid
        """The supervisor's process id; 0 where this process cannot see it."""
        self._has_begun = False

    def begin(self, message: Mapping[str, Any], data: bytes) -> bool:
        """Send a request to run something; False if the supervisor did not take it.

        The data follows the supervisor's word that it takes the run. A supervisor that hangs, that
        ends at this moment or that is of another version has then begun nothing, and never will:
        the caller can run the action itself without running it twice.
        """
        deadline = time.monotonic() + _TAKES_WITHIN_S
        self._socket.settimeout(_TAKES_WITHIN_S)
        try:
            self.send(message)
            answer = self.read()
            if answer is None or "taken" not in answer[0]:
                return False
            self._has_begun = True
            self.send({"do": "go"}, data)
            self._socket.settimeout(None)
        except OSError as error:  # an incomplete frame begins nothing
            if error.errno is None and time.monotonic() < deadline:
                raise  # by a handler of the caller's signals, such as `TimeoutError` at SIGALRM
            return False
        return True

    def end(self) -> None:
        """End the run, if it has begun, and wait until nothing of it is left."""
        if not self._has_begun:
            return
        with suppress(OSError):
            self._socket.shutdown(_socket.SHUT_WR)  # which is the word to stop
            self._socket.settimeout(_ENDS_WITHIN_S)
            while self._socket.recv(1 << 18):
                pass

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        text = json.dumps(message).encode("ascii")
        self._socket.sendall(
            len(text).to_bytes(4, "big") + len(blob).to_bytes(4, "big") + text + blob,
            _socket.MSG_NOSIGNAL,  # SIGPIPE ends a caller that has its default action
        )

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the supervisor has disconnected, or sends nonsense."""
        head = self._take(8)
        if head is None:
            return None
        sizes = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if sum(sizes) > _MAX_FRAME_BYTES:
            return None
        text, blob = self._take(sizes[0]), self._take(sizes[1])
        if text is None or blob is None:
            return None
        try:
            message = json.loads(text)
        except ValueError:
            return None
        return (message, blob) if isinstance(message, dict) else None

    def _take(self, count: int) -> bytes | None:
        # The buffer keeps what was read if a signal handler interrupts.
        while len(self._buffer) < count:
            try:
                chunk = self._socket.recv(1 << 18)
            except ConnectionError:  # killed with a frame of ours unread
                return None
            if not chunk:
                return None
            self._buffer += chunk
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    @property
    def has_buffered(self) -> bool:
        return bool(self._buffer)

    def fileno(self) -> int:
        return self._socket.fileno()

    def shut(self) -> None:
        """Shut both directions down; also in the middle of a frame."""
        with suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def raise_for_error(answer: Mapping[str, Any]) -> None:
    """Raise the error that the supervisor answered with, if any."""
    if "error" in answer:
        error = answer["error"] if isinstance(answer["error"], dict) else {}
        kind, message, hint, code = (
            str(error.get(key, "")) for key in ("kind", "message", "hint", "code")
        )
        raise make_error(kind, message or "the supervisor failed", hint=hint, code=code)
    if "stale" in answer:
        raise CellwallError(
            "the supervisor belongs to another version of Cellwall",
            hint="Stop it with `cellwall supervisor stop`; its sandboxes end with it.",
            code="CW-SUPERVISOR-STALE",
        )


def is_text(value: object) -> bool:
    """Whether frames can carry the value: file names that are not UTF-8 cannot be sent."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_switched_off(environ: Mapping[str, str]) -> bool:
    """Whether the user wants every action in the process that asks for it."""
    return environ.get("CELLWALL_SUPERVISOR") == "off"


def connect(environ: Mapping[str, str]) -> SupervisorConnection | None:
    """A connection to the supervisor of this user and state folder, if one runs."""
    folder = open_private(environ)
    if folder is None:
        return None
    try:
        connected = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connected.settimeout(_TAKES_WITHIN_S)  # a full queue of clients is an error at once
            # By descriptor: the path of a socket is limited to 107 bytes.
            connected.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
            # Defence in depth: only this user can make a socket in the folder.
            raw = connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            connected.close()
            return None
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        if uid != os.geteuid():
            connected.close()
            return None
        connected.settimeout(None)
        return SupervisorConnection(connected, pid)
    finally:
        os.close(folder)
