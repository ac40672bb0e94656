"""The kernel's pipes, through which bulk data goes from socket to socket without a copy here."""

from __future__ import annotations

import fcntl
import os

PIPE_BYTES = 1024 * 1024
_COPY_BYTES = 256 * 1024
_MAX_PIPES = 48
"""The kernel lets one user have 64 MiB of pipes and makes all others tiny."""
_MAX_SPARE = 8


class Pipes:
    """The pipes of one loop: few, large, used again, and never one with something left in it."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []
        self._made = 0
        self.buffer = memoryview(bytearray(_COPY_BYTES))
        """For those without a pipe; used only within one callback, so one for all."""

    def take(self) -> tuple[int, int] | None:
        if self._spare:
            return self._spare.pop()
        if self._made >= _MAX_PIPES:
            return None
        try:
            ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        self._made += 1
        try:
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            self._drop(ends)
            return None
        return ends

    def give_back(self, ends: tuple[int, int], *, is_empty: bool) -> None:
        # Left-over bytes would be sent to another connection's peer.
        if is_empty and len(self._spare) < _MAX_SPARE:
            self._spare.append(ends)
        else:
            self._drop(ends)

    def _drop(self, ends: tuple[int, int]) -> None:
        self._made -= 1
        os.close(ends[0])
        os.close(ends[1])

    def close(self) -> None:
        while self._spare:
            self._drop(self._spare.pop())
