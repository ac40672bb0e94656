"""Background processes of live cells: their output is kept, bounded, until the caller reads it.

One thread reads for all of them, so that a server that logs never blocks on a full pipe. Output
beyond the bound is dropped from the front, as in a rotating log.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import selectors
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from cellwall.core.errors import BadInput
from cellwall.core.forks import forget_in_child
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import NOT_STARTED, Finding, RunResult, Usage
from cellwall.core.types import ProcessInfo
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.linux.channels import write_pipe
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell
from cellwall.sandbox.linux.run_results import start_failure

_CHUNK_BYTES = 65_536
_MAX_LEFT_CHUNKS = 16
_WRITE_WITHIN_S = 30.0
_LOOK_EVERY_MS = 100
_SIGNALS = range(1, 65)


class BackgroundProcess:
    """One background process."""

    def __init__(
        self, cell: LiveCell, task: CellTask, command: tuple[str, ...], *, keep_bytes: int
    ) -> None:
        self._cell = cell
        self._task = task
        self._command = command
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._started_s = time.time()
        self._is_cut = False
        self.terminal: int | None = None
        self.ended = threading.Event()
        self.has_news = threading.Event()
        """Set when there is unread output, or the process has ended."""

    @property
    def id(self) -> int:
        return self._task.tag

    def info(self) -> ProcessInfo:
        running = not self.ended.is_set()
        code = None if running else self._exit_code()
        task = self._task
        return ProcessInfo(task.tag, task.pid, self._command, self._started_s, running, code)

    def _exit_code(self) -> int | None:
        match self._task.words:
            case ["exit", _tag, kind, number, *_]:
                return int(number) + (128 if kind == "signal" else 0)
            case ["noexec", *_]:
                return 127
            case _:
                return None

    def read_output(self, name: Literal["stdout", "stderr"], descriptor: int) -> bool:
        """Keep the next output; False at its end, BlockingIOError if there is none now."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            raise
        except OSError:  # EIO: the last process has closed the terminal
            return False
        with self._lock:
            kept = self._kept[name]
            kept += chunk
            if len(kept) > self._keep_bytes:
                self._is_cut = True
                del kept[: len(kept) - self._keep_bytes]
            self.has_news.set()
        return bool(chunk)

    def result(self) -> RunResult:
        """Output since the last call; the exit code once the process has ended."""
        with self._lock:
            out, err = (bytes(self._kept[name]) for name in ("stdout", "stderr"))
            self._kept = {"stdout": bytearray(), "stderr": bytearray()}
            is_cut, self._is_cut = self._is_cut, False
            if not self.ended.is_set():
                self.has_news.clear()
        limit, cpu_s, peak = None, 0.0, 0
        findings: tuple[Finding, ...] = ()
        match self._task.words:
            case ["exit", _tag, _kind, _number, word, cpu_us, peak_kib]:
                limit = None if word == "-" else LimitName(word)
                cpu_s, peak = int(cpu_us) / 1e6, int(peak_kib) * 1024
            case ["noexec", _tag, number]:
                reason = start_failure(int(number))
                message = f"{reason.message}. {reason.hint}"
                findings = (Finding(NOT_STARTED, "low", message, rule=reason.code),)
        info = self.info()
        wall_s = time.monotonic() - self._task.started
        return RunResult(
            exit_code=info.exit_code,
            stdout=out,
            stderr=err,
            truncated=is_cut,
            limit=limit,
            usage=Usage(wall_s=wall_s, cpu_s=cpu_s, memory_peak=peak),
            findings=findings,
            path=self._cell.parts.path,
            payload=info,
        )

    def write(self, data: bytes, timeout_s: float = _WRITE_WITHIN_S) -> None:
        """All of it, unless the process has closed its input, has ended, or does not read."""
        with self._lock:
            target = self.terminal if self.terminal is not None else self._task.channels.stdin
            if target is None or self.ended.is_set():
                raise _no_input()
            # A duplicate: the reader closes the original at the end, and its number may be reused.
            target = os.dup(target)
        view, deadline = memoryview(data), time.monotonic() + timeout_s
        with closing_fd(target):
            while view:
                try:
                    view = view[write_pipe(target, view) :]
                except BlockingIOError:
                    self._wait_for_reader(target, deadline)
                except OSError as error:
                    raise _no_input() from error

    def feed(self, data: bytes) -> None:
        """Write all of its input in a thread, as fast as the process reads."""

        def work() -> None:
            with suppress(BadInput):  # the process ended or closed its input early
                self.write(data, math.inf)
                self.close_stdin()

        threading.Thread(target=work, name="cellwall-feeder", daemon=True).start()

    def _wait_for_reader(self, target: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(target, select.POLLOUT)
        while not poll.poll(_LOOK_EVERY_MS):
            if self.ended.is_set():
                raise _no_input()
            if time.monotonic() >= deadline:
                raise BadInput(
                    "the process did not read its input in time",
                    hint="Send less at once, or give a longer timeout.",
                    code="CW-STDIN-SLOW",
                )

    def close_stdin(self) -> None:
        if self.terminal is not None:
            self.write(b"\x04")  # Ctrl-D
            return
        with self._lock:
            self._task.channels.close_stdin()

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal is None:
            raise BadInput("this process has no terminal", code="CW-NO-TERMINAL")
        with self._lock, suppress(OSError):
            if self.ended.is_set():
                return
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def signal(self, number: int) -> None:
        if number not in _SIGNALS:
            raise BadInput(f"there is no signal {number}", code="CW-BAD-SIGNAL")
        if self.ended.is_set():
            return
        init = self._cell.parts.init
        if number == 9:
            init.send("end", self._task.tag)  # with every process it has started
        else:
            init.send("signal", self._task.tag, number)

    # --- for the thread that reads

    def sources(self) -> dict[int, Literal["stdout", "stderr"]]:
        """The descriptors of its output, and the stream of each; a terminal is one stream."""
        channels = self._task.channels
        streams: dict[int, Literal["stdout", "stderr"]] = {channels.stdout: "stdout"}
        if channels.stderr is not None:
            streams[channels.stderr] = "stderr"
        if self.terminal is not None:
            streams[self.terminal] = "stdout"
        return streams

    def status_fd(self) -> int:
        return self._task.channels.status.fileno()

    def handle_message(self) -> int | None:
        """Handle init's message; returns the terminal if init has sent one."""
        words, handed = self._task.channels.status.receive_with_descriptor()
        if handed is not None:
            self.terminal = handed
            os.set_blocking(handed, False)
            return handed
        self._task.handle_words(words)
        return None

    @property
    def is_over(self) -> bool:
        return self._task.is_ended

    def close(self) -> None:
        with self._lock:
            self.ended.set()
            self.has_news.set()
            self._task.close()
            if self.terminal is not None:
                with suppress(OSError):
                    os.close(self.terminal)


def _no_input() -> BadInput:
    return BadInput(
        "the process takes no input",
        hint="Start it with an open standard input, and write while it runs.",
        code="CW-NO-STDIN",
    )


class OutputReader:
    """The thread that reads the output of all background processes of a runtime."""

    def __init__(self) -> None:
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """In a forked child the thread does not exist, and the selector is the parent's."""
        self._selector: selectors.BaseSelector | None = None
        self._lock = threading.Lock()
        self._wake = (-1, -1)

    def add(self, process: BackgroundProcess) -> None:
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._selector.register(self._wake[0], selectors.EVENT_READ, None)
                threading.Thread(
                    target=self._work, args=(self._selector,), name="cellwall-reader", daemon=True
                ).start()
            for descriptor, name in process.sources().items():
                self._register(descriptor, partial(process.read_output, name, descriptor))
            self._register(process.status_fd(), partial(self._handle_message, process))
            with suppress(BlockingIOError):
                os.write(self._wake[1], b".")

    def _register(self, descriptor: int, handler: Callable[[], bool]) -> None:
        """Call `handler` when `descriptor` is ready; it returns whether more may come."""
        assert self._selector is not None  # noqa: S101  # made before anything is added
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _handle_message(self, process: BackgroundProcess) -> bool:
        terminal = process.handle_message()
        if terminal is not None:
            self._register(terminal, partial(process.read_output, "stdout", terminal))
        if process.is_over:
            self._finish(process)
        return not process.is_over

    def _work(self, selector: selectors.BaseSelector) -> None:
        while True:
            for key, _events in selector.select():
                if key.data is None:
                    with suppress(BlockingIOError):
                        os.read(key.fd, 4096)
                    continue
                if selector.get_map().get(key.fd) is not key:
                    continue  # closed earlier in this round; its number may be reused
                is_over = False
                with suppress(BlockingIOError):  # spurious wake-up
                    is_over = not key.data()
                # An ended process is already unregistered, and its number may be reused by the
                # next one: unregistering that would leave its output unread for ever.
                if is_over and selector.get_map().get(key.fd) is key:
                    with suppress(KeyError, ValueError):
                        selector.unregister(key.fd)

    def _finish(self, process: BackgroundProcess) -> None:
        """After the end of a process: read the remaining output, and close its descriptors."""
        assert self._selector is not None  # noqa: S101  # it was added
        with suppress(KeyError, ValueError):
            self._selector.unregister(process.status_fd())
        for descriptor, name in process.sources().items():
            with suppress(KeyError, ValueError, BlockingIOError):
                self._selector.unregister(descriptor)
                # At most what a pipe can hold: another writer may write without end.
                for _ in range(_MAX_LEFT_CHUNKS):
                    if not process.read_output(name, descriptor):
                        break
        process.close()
