"""Shows a run: the program's output, by a thread of its own, then notes or JSON.

The thread exists because a write can block for as long as the reader likes (`| less`, Ctrl-S). The
event loop handles limits and signals and must never wait for a reader. The queue is bounded by the
run's output limit.
"""

# ruff: noqa: PLC0415  # late imports: a run in a warm supervisor takes less time than these modules

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from cellwall.interfaces import REFUSED
from cellwall.interfaces.terminal import STREAMS, Stream, TerminalFilter, is_terminal, write_all

_QUIET_BEFORE_SPINNER_S = 1.0
_FRAME_S = 0.1
_FRAMES = "|/-\\"
_ERASE = b"\r\x1b[K"
_COLOUR_RESET = b"\x1b[0m"


class OutputRelay:
    """Copies a program's output to our own streams, with a spinner while the program is silent.

    `over` is a descriptor that becomes readable when everything is written after `close`, or when
    a stream cannot be written to any more; `failure` is then the reason.
    """

    def __init__(self, *, spinner: bool) -> None:
        self.failure: OSError | None = None
        self.over, self._over_writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._chunks: queue.SimpleQueue[tuple[Stream, bytes] | None] = queue.SimpleQueue()
        self._filters: dict[Stream, TerminalFilter] = {
            name: TerminalFilter(colours=True) for name in STREAMS if is_terminal(name)
        }
        self._spins = spinner and is_terminal("stderr") and os.environ.get("TERM") != "dumb"
        self._started = self._quiet_since = time.monotonic()
        self._spinner_shown = False
        self._mid_line = False
        self._is_stderr_mid_line = False
        self._hushed = False
        self._drawing = threading.Lock()
        # A daemon: a reader that never reads must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def send(self, stream: Stream, data: bytes) -> None:
        """Queue output; never blocks."""
        self._chunks.put((stream, data))

    def close(self) -> None:
        """End of output; `over` becomes readable when everything is written."""
        self._chunks.put(None)

    def end_line(self) -> None:
        """Start a new line where the program's last line on that stream is unfinished."""
        is_open = self._mid_line if "stderr" in self._filters else self._is_stderr_mid_line
        if is_open:
            with suppress(OSError):
                write_all(2, b"\n")

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """No spinner while a person is asked on the same terminal."""
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
        write_all(STREAMS[stream], data)
        self._quiet_since = time.monotonic()
        text = data.removesuffix(_COLOUR_RESET)
        if text and stream in self._filters:
            self._mid_line = not text.endswith(b"\n")
        if text and stream == "stderr":
            self._is_stderr_mid_line = not text.endswith(b"\n")

    def _spin(self) -> None:
        now = time.monotonic()
        # In the middle of a line the spinner would overwrite the program's output.
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


class RunRenderer:
    """Shows one run; runs in this process and runs in the supervisor share it.

    Light: a run in a warm supervisor takes less time than most imports, so the modules that only
    an error or a note needs are imported then.
    """

    def __init__(self, *, as_json: bool, relays: bool = True) -> None:
        self._as_json = as_json
        self.relay = OutputRelay(spinner=True) if relays and not as_json else None

    @property
    def sink(self) -> Callable[[Stream, bytes], None] | None:
        """Takes the program's output as it comes; None where the result is shown as a whole."""
        return None if self.relay is None else self.relay.send

    def hush(self) -> AbstractContextManager[None]:
        """No spinner while a person is asked on the same terminal."""
        return nullcontext() if self.relay is None else self.relay.hushed()

    def output_failure(self) -> int | None:
        """The exit code where our own output could not be written; None: it was written."""
        failure = None if self.relay is None else self.relay.failure
        if failure is None:
            return None
        if isinstance(failure, BrokenPipeError):
            return 128 + signal.SIGPIPE  # as every tool before `| head`
        from cellwall.interfaces.cli.output import UNWRITABLE, print_error

        print_error(UNWRITABLE, as_json=False)
        return REFUSED

    def show_json(self, line: bytes) -> None:
        from cellwall.interfaces.cli.output import print_bytes

        print_bytes(line)

    def show_notes(self, notes: Sequence[str]) -> None:
        if not notes:
            return
        from cellwall.interfaces.cli.output import say

        if self.relay is not None:
            self.relay.end_line()
        for note in notes:
            say(note)

    def show_stopped(self, number: signal.Signals, workspace_id: str | None) -> int:
        """A signal ended the run; returns the exit code that says so."""
        from cellwall.core.outcomes import ErrorInfo
        from cellwall.interfaces.cli.output import print_json
        from cellwall.interfaces.outcome_text import failed, kept_line

        message = f"the run was ended by {number.name}; nothing of it is left"
        if self._as_json:
            error = ErrorInfo("CW-INTERRUPTED", message)
            print_json(failed(error, workspace_id=workspace_id).to_json())
        else:
            kept = [] if workspace_id is None else [kept_line(workspace_id)]
            self.show_notes([message, *kept])
        return 128 + number
