"""The command line's end of the line to the supervisor.

Only the standard library, and little of it: a warm run takes less time than most imports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cellwall.core.home import SUPERVISOR_SOCKET, open_private

_MAX_FRAME_BYTES = 256 * 1024 * 1024


class Link:
    """A blocking connection; one request each."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._buffer = bytearray()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        text = json.dumps(message).encode("ascii")
        self._line.sendall(
            len(text).to_bytes(4, "big") + len(blob).to_bytes(4, "big") + text + blob
        )

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the supervisor is gone."""
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
        # What was read stays in the buffer should an interrupt come in between.
        while len(self._buffer) < count:
            chunk = self._line.recv(1 << 18)
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
        return self._line.fileno()

    def shut(self) -> None:
        """Nothing is said or heard any more; also in the middle of a frame."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._line.close()


def connect(environ: Mapping[str, str]) -> Link | None:
    """A line to the supervisor of this user and state folder, if one runs."""
    folder = open_private(environ)
    if folder is None:
        return None
    try:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By descriptor: a socket's name may have 107 bytes only, a folder's more.
            line.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
        except OSError:
            line.close()
            return None
        return Link(line)
    finally:
        os.close(folder)
