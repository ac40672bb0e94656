"""The command line's connection to the supervisor.

Only little of the standard library: a warm run takes less time than most imports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cellwall.core.errors import CellwallError, make_error
from cellwall.core.home import SUPERVISOR_SOCKET, open_private

_MAX_FRAME_BYTES = 256 * 1024 * 1024


class SupervisorConnection:
    """A blocking connection for one request."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        text = json.dumps(message).encode("ascii")
        self._socket.sendall(
            len(text).to_bytes(4, "big") + len(blob).to_bytes(4, "big") + text + blob
        )

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the supervisor has disconnected."""
        head = self._take(8)
        if head is None:
            return None
        sizes = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if sum(sizes) > _MAX_FRAME_BYTES:
            return None
        text, blob = self._take(sizes[0]), self._take(sizes[1])
        if text is None or blob is None:
            return None
        message = json.loads(text)
        return (message, blob) if isinstance(message, dict) else None

    def _take(self, count: int) -> bytes | None:
        # The buffer keeps what was read if a signal handler interrupts.
        while len(self._buffer) < count:
            chunk = self._socket.recv(1 << 18)
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
            self._socket.shutdown(socket.SHUT_RDWR)

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


def connect(environ: Mapping[str, str]) -> SupervisorConnection | None:
    """A connection to the supervisor of this user and state folder, if one runs."""
    folder = open_private(environ)
    if folder is None:
        return None
    try:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By descriptor: the path of a socket is limited to 107 bytes.
            connected.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
        except OSError:
            connected.close()
            return None
        return SupervisorConnection(connected)
    finally:
        os.close(folder)
