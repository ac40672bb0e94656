"""The descriptors between a run and its supervisor."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass

RESULT_FD_INSIDE = 3


@dataclass(slots=True)
class Outside:
    """Our ends."""

    status: socket.socket
    stdout: int
    stderr: int
    result: int
    stdin: int | None

    def say_go(self) -> None:
        """Init waits for this; a cell that is already gone is found by the watch."""
        with suppress(OSError):
            self.status.send(b"g")

    def close_stdin(self) -> None:
        if self.stdin is not None:
            with suppress(OSError):
                os.close(self.stdin)
            self.stdin = None


class Channels:
    """The pipes of one run. The program gets one end of each, the supervisor the other."""

    def __init__(self, stack: ExitStack, *, wants_stdin: bool, owner: int | None) -> None:
        self._stack = stack
        self._owner = owner
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        stack.callback(ours.close)
        self._open_inside = {theirs.detach()}
        (self.status_inside,) = self._open_inside
        out_r, out_w = self._pipe()
        err_r, err_w = self._pipe()
        result_r, result_w = self._pipe()
        self.inside = {1: out_w, 2: err_w, RESULT_FD_INSIDE: result_w}
        stdin_w: int | None = None
        if wants_stdin:
            self.inside[0], stdin_w = os.pipe2(os.O_CLOEXEC)
            self._give(self.inside[0])
            os.set_blocking(stdin_w, False)
        else:
            self.inside[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._open_inside |= set(self.inside.values())
        stack.callback(self.close_inside)
        self.outside = Outside(ours, out_r, err_r, result_r, stdin_w)
        stack.callback(self.outside.close_stdin)

    def _pipe(self) -> tuple[int, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        self._stack.callback(os.close, reading)
        self._give(writing)
        return reading, writing

    def _give(self, pipe: int) -> None:
        """A root supervisor's pipe belongs to root, and `echo > /dev/stderr` opens it anew."""
        if self._owner is not None:
            os.fchown(pipe, self._owner, self._owner)

    def close_inside(self) -> None:
        """Only the cell holds these from now on, so that their end is the program's end."""
        while self._open_inside:
            os.close(self._open_inside.pop())
