"""The person's side of a terminal that a program of ours is on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from cellwall.sandbox.linux.channels import ready_to_read
from interfaces import prepared_program

DEADLINE_S = 60.0


class Screen:
    """What is shown, and what is typed."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.terminal = terminal
        self.seen = ""

    def until(self, pattern: str) -> str:
        """What has been shown when this appears."""
        deadline = time.monotonic() + DEADLINE_S
        while re.search(pattern, self.seen) is None:
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.seen
            if ready_to_read(self.terminal, timeout_s=left_s):
                self._look()
        return self.seen

    def look_to_the_end(self, *, within_s: float) -> None:
        """All that is shown until nobody is on the terminal any more, or nothing comes."""
        with suppress(OSError):
            while ready_to_read(self.terminal, timeout_s=within_s) and self._look():
                pass

    def _look(self) -> bytes:
        part = os.read(self.terminal, 65_536)
        self.seen += part.decode().replace("\r\n", "\n")
        return part

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())


Anything = TypeVar("Anything")
AnyScreen = TypeVar("AnyScreen", bound=Screen)


@contextmanager
def on_terminal(
    words: Sequence[str], screen: type[AnyScreen], *, columns: int = 80, **changes: Any
) -> Iterator[AnyScreen]:
    """A program that has a session of its own; `changes` are for `Popen`."""
    with _shown_on_terminal(subprocess.Popen, words, screen, columns, changes) as shown:
        yield shown


@contextmanager
def cellwall_on_terminal(
    words: Sequence[str], screen: type[AnyScreen], *, columns: int = 80, **changes: Any
) -> Iterator[AnyScreen]:
    """The same for `cellwall` with these words, as a fork of the prepared program."""
    popen = prepared_program.Popen
    with _shown_on_terminal(popen, words, screen, columns, changes) as shown:
        yield shown


@contextmanager
def _shown_on_terminal(
    popen: Callable[..., subprocess.Popen[bytes]],
    words: Sequence[str],
    screen: type[AnyScreen],
    columns: int,
    changes: Mapping[str, Any],
) -> Iterator[AnyScreen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = popen(words, start_new_session=True, **{**streams, **changes})
    os.close(theirs)
    try:
        yield screen(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def confirmed(
    words: Sequence[str], *, says: str | None = None, env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[bytes]:
    """How a command ends that a person at a terminal of their own types and confirms.

    `words` are for the program `cellwall`, and `says` is typed in place of the word that the
    command shows. What the terminal shows is `stderr`.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with (
        tempfile.TemporaryFile() as out,
        prepared_program.Popen(
            words, stdin=theirs, stdout=out, stderr=theirs, env=env, on_terminal=True
        ) as process,
    ):
        os.close(theirs)
        screen, is_typed = Screen(process, ours), 0
        try:
            with suppress(OSError):  # nobody is on the terminal any more
                while ready_to_read(ours, timeout_s=DEADLINE_S) and screen._look():
                    words_shown = re.findall(r"Type (\w{5}) to do so .*: ", screen.seen)
                    for word in words_shown[is_typed:]:
                        screen.type(f"{word if says is None else says}\n")
                        is_typed += 1
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
            os.close(ours)
        out.seek(0)
        return subprocess.CompletedProcess([*words], code, out.read(), screen.seen.encode())


@contextmanager
def in_thread(work: Callable[[], Anything]) -> Iterator[list[Anything]]:
    """Does something beside the block; at its end the list holds what came of it."""
    found: list[Anything] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    yield found
    thread.join(DEADLINE_S)
    assert found, "it has not ended"
