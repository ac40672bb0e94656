"""The descriptors between a cell and its supervisor."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass

CHANNEL_FD_INSIDE = 3
MOST_WORD_BYTES = 256


@dataclass(slots=True)
class Outside:
    """Our ends."""

    status: socket.socket
    """Init's, and init's alone: what it says is believed."""
    stdout: int
    stderr: int
    channel: socket.socket
    """The interpreter's, and the code's: nothing on it is believed."""
    stdin: int | None

    def say(self, *words: str | int, descriptors: tuple[int, ...] = ()) -> None:
        """A word to init; a cell that is already gone is found by whoever waits for its end."""
        with suppress(OSError):
            socket.send_fds(self.status, [" ".join(map(str, words)).encode()], descriptors)

    def heard(self) -> list[str] | None:
        """Init's next word if there is one; empty when it is gone."""
        try:
            return self.status.recv(MOST_WORD_BYTES).decode("ascii", "replace").split()
        except BlockingIOError:
            return None
        except OSError:
            return []

    def close_stdin(self) -> None:
        if self.stdin is not None:
            with suppress(OSError):
                os.close(self.stdin)
            self.stdin = None


class Channels:
    """The pipes of one cell. It gets one end of each, the supervisor the other."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        wants_stdin: bool,
        owner: int | None,
        channel: socket.SocketKind = socket.SOCK_STREAM,
    ) -> None:
        self._stack = stack
        self._owner = owner
        status, self.status_inside = self._pair(socket.SOCK_SEQPACKET)
        line, line_inside = self._pair(channel)
        out_r, out_w = self._pipe()
        err_r, err_w = self._pipe()
        self.inside = {1: out_w, 2: err_w, CHANNEL_FD_INSIDE: line_inside}
        stdin_w: int | None = None
        if wants_stdin:
            self.inside[0], stdin_w = os.pipe2(os.O_CLOEXEC)
            self._give(self.inside[0])
            os.set_blocking(stdin_w, False)
        else:
            self.inside[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._open_inside = {self.status_inside, *self.inside.values()}
        stack.callback(self.close_inside)
        self.outside = Outside(status, out_r, err_r, line, stdin_w)
        stack.callback(self.outside.close_stdin)

    def _pair(self, kind: socket.SocketKind) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.setblocking(False)
        self._stack.callback(ours.close)
        return ours, theirs.detach()

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

    def close_status_inside(self) -> None:
        """The same for init's alone; the program is still to come."""
        self._open_inside.remove(self.status_inside)
        os.close(self.status_inside)
