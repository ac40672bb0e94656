"""Carries a program's output to our own streams, by a thread of its own.

The thread exists because a write can block for as long as the reader likes (`| less`, Ctrl-S). The
event loop has limits and signals to look after and must never wait for a reader. What waits is
bounded by the run's output limit.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from cellwall.interfaces.terminal import TerminalFilter

Stream = Literal["stdout", "stderr"]

_NUMBERS: dict[Stream, int] = {"stdout": 1, "stderr": 2}
_QUIET_BEFORE_SPINNER_S = 1.0
_FRAME_S = 0.1
_FRAMES = "|/-\\"
_ERASE = b"\r\x1b[K"
_COLOUR_RESET = b"\x1b[0m"


def write_all(number: int, data: bytes) -> None:
    """Every byte, however the kernel cuts it."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:  # whoever shares the pipe or terminal with us has set O_NONBLOCK
            select.select([], [number], [])


def is_terminal(stream: Stream) -> bool:
    """Whether a person's terminal is there."""
    return os.isatty(_NUMBERS[stream])


class Relay:
    """Carries a program's output to our own streams, and shows that it still works.

    `over` is a descriptor that becomes readable when everything was written after `close`, or when
    a stream can no longer be written to; `failure` is then the reason.
    """

    def __init__(self, *, spinner: bool) -> None:
        self.failure: OSError | None = None
        self.over, self._over_writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._chunks: queue.SimpleQueue[tuple[Stream, bytes] | None] = queue.SimpleQueue()
        self._filters: dict[Stream, TerminalFilter] = {
            name: TerminalFilter(colours=True) for name in _NUMBERS if is_terminal(name)
        }
        self._spins = spinner and is_terminal("stderr") and os.environ.get("TERM") != "dumb"
        self._started = self._quiet_since = time.monotonic()
        self._spinner_shown = False
        self._mid_line = False
        self._is_stderr_mid_line = False
        self._hushed = False
        self._drawing = threading.Lock()
        # A daemon: a reader that never reads must not keep us from ending.
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def send(self, stream: Stream, data: bytes) -> None:
        """Never blocks; the sink of the runtime."""
        self._chunks.put((stream, data))

    def close(self) -> None:
        """No more is sent; `over` becomes readable when all was written."""
        self._chunks.put(None)

    def end_line(self) -> None:
        """Before a line of ours, where the program's last one on that stream has no end."""
        is_open = self._mid_line if "stderr" in self._filters else self._is_stderr_mid_line
        if is_open:
            with suppress(OSError):
                write_all(2, b"\n")

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """No spinner while a person is asked something on the same terminal."""
        with self._drawing:
            self._hushed = True
            self._erase()
        try:
            yield
        finally:
            self._quiet_since = time.monotonic()
            self._hushed = False

    def _work(self) -> None:
        try:
            while (chunk := self._next()) is not None:
                stream, data = chunk
                clean = self._filters.get(stream)
                self._write(stream, clean.feed(data) if clean else data)
            for name, clean in self._filters.items():
                self._write(name, clean.finish())
            self._erase()
        except OSError as error:
            self.failure = error
        os.write(self._over_writing, b"o")

    def _next(self) -> tuple[Stream, bytes] | None:
        while True:
            try:
                return self._chunks.get(timeout=_FRAME_S if self._spins else None)
            except queue.Empty:
                self._spin()

    def _write(self, stream: Stream, data: bytes) -> None:
        if not data:
            return
        self._erase()
        write_all(_NUMBERS[stream], data)
        self._quiet_since = time.monotonic()
        text = data.removesuffix(_COLOUR_RESET)
        if text and stream in self._filters:
            self._mid_line = not text.endswith(b"\n")
        if text and stream == "stderr":
            self._is_stderr_mid_line = not text.endswith(b"\n")

    def _spin(self) -> None:
        now = time.monotonic()
        # In the middle of a line it would overwrite what the program wrote there.
        if self._mid_line or now - self._quiet_since < _QUIET_BEFORE_SPINNER_S:
            return
        elapsed_s = now - self._started
        frame = _FRAMES[int(elapsed_s / _FRAME_S) % len(_FRAMES)]
        with self._drawing:
            if not self._hushed:
                write_all(2, f"\r{frame} {elapsed_s:.0f} s\x1b[K".encode())
                self._spinner_shown = True

    def _erase(self) -> None:
        if self._spinner_shown:
            write_all(2, _ERASE)
            self._spinner_shown = False
