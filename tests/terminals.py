"""The person's side of a terminal that a program of ours is on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from cellwall.sandbox.native.waiting import ready_to_read

DEADLINE_S = 60.0


class Screen:
    """What is shown, and what is typed."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.seen = ""

    def until(self, pattern: str) -> str:
        """What has been shown when this appears."""
        deadline = time.monotonic() + DEADLINE_S
        while re.search(pattern, self.seen) is None:
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.seen
            if ready_to_read(self._terminal, timeout_s=left_s):
                self._look()
        return self.seen

    def look_to_the_end(self, *, within_s: float) -> None:
        """All that is shown until nobody is on the terminal any more, or nothing comes."""
        with suppress(OSError):
            while ready_to_read(self._terminal, timeout_s=within_s) and self._look():
                pass

    def _look(self) -> bytes:
        part = os.read(self._terminal, 65_536)
        self.seen += part.decode().replace("\r\n", "\n")
        return part

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())


AnyScreen = TypeVar("AnyScreen", bound=Screen)


@contextmanager
def on_terminal(
    words: Sequence[str], screen: type[AnyScreen], *, columns: int = 80, **changes: Any
) -> Iterator[AnyScreen]:
    """A program that has a session of its own; `changes` are for `Popen`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(words, start_new_session=True, **{**streams, **changes})
    os.close(theirs)
    try:
        yield screen(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def answered(words: Sequence[str], answer: bytes) -> tuple[int, bytes]:
    """How a program ends that asks on standard input, and what it has said about it."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(ours, answer)
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    return process.returncode, errors
