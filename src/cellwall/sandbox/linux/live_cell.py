"""A cell that stays alive between actions, with its files, processes and interpreter.

Init starts tasks on request, each with a status socket of its own; the interpreter is a task, too.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import anyio

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.files import MEMORY_ROOTS, Watching
from cellwall.core.frames import BadFrame, FrameReader
from cellwall.core.limits import LimitName, Limits
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.linux import cell_plan, run_cgroup
from cellwall.sandbox.linux.channels import CellPipes, InitSocket, SupervisorEnds, ready_to_read
from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.proc_usage import UsageSampler
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import MonitoredRun

_MAX_PENDING_MESSAGES = 4
_GRACE_S = 1.0
"""An interpreter that does not answer an interrupt within this time loses its state."""
_POLL_EVERY_S = 0.01
_DESCRIPTOR_WITHIN_S = 20.0
_READ_BYTES = 65_536
_MAX_READS = 64
# Code that exceeded one of these limits is not trusted to stop when interrupted.
_ENDS_ALL = frozenset({LimitName.MEMORY, LimitName.PROCESSES, LimitName.CPU, LimitName.DISK})


@dataclass(frozen=True, slots=True)
class LiveCellParts:
    """The parts of a live cell, warm or cold."""

    path: str
    init: InitSocket
    meter: run_cgroup.RunCgroup | UsageSampler | None
    """Measures the resource usage of the cell."""
    owner: int | None
    """The host uid of the cell's processes, if Cellwall was started as root."""
    interpreter: tuple[str, ...]
    """The command of a new interpreter; empty if init can fork one."""
    limits: Limits
    failure: Callable[[str], CellwallError]
    close: Callable[[], None]
    skills: tuple[str, ...] = ()
    """Digests of the skills in the cell; a live cell cannot be given others."""
    view: int | None = None
    """A mount of its copy-on-write layers for the file API; the caller of the factory closes it."""


class CellTask:
    """A process that init has started, and our ends of its pipes."""

    def __init__(
        self, tag: int, channels: SupervisorEnds, close: Callable[[], None], *, started: float
    ) -> None:
        self.tag = tag
        self.channels = channels
        self.started = started
        self.pid: int | None = None
        """Inside the cell, as init reports it."""
        self.words: list[str] = []
        self.rested: str | None = None
        self._close = close

    @property
    def is_ended(self) -> bool:
        return bool(self.words)

    def handle_message(self) -> bool:
        """Handle init's next message; returns whether more may come."""
        self.handle_words(self.channels.status.receive())
        return not self.is_ended

    def handle_words(self, words: list[str] | None) -> None:
        match words:
            case ["exit", *_] | ["noexec", *_]:
                self.words = words
            case []:
                self.words = self.words or ["gone"]
            case ["started", _tag, pid]:
                self.pid = int(pid)
            case ["rest", limit]:
                self.rested = limit
            case _:
                pass

    def close(self) -> None:
        self._close()


class LiveCell:
    """May be used by several tasks and threads at once."""

    def __init__(self, parts: LiveCellParts, *, max_result_bytes: int) -> None:
        self.parts = parts
        self._max_result_bytes = max_result_bytes
        self._tags = itertools.count(1)
        self._interpreter: LiveInterpreter | None = None
        self.watchers: weakref.WeakSet[Watching] = weakref.WeakSet()
        """Watches of its memory directories, which end with the cell."""
        self.turn = threading.Lock()
        """Held while the interpreter runs code: it runs one piece at a time."""

    def is_alive(self) -> bool:
        """Init sends nothing on the cell's own socket before the end of the cell."""
        return self.parts.init.receive() is None

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        wants_stdin: bool,
        terminal: tuple[int, int] | None = None,
        is_interpreter: bool = False,
    ) -> CellTask:
        """Ask init to start a program."""
        plan = cell_plan.task_plan(argv, env, cwd=cwd, terminal=terminal)
        with closing_fd(memory_file("cellwall-task", plan)) as plan_fd:
            return self._start_task(
                "run", [plan_fd], wants_stdin=wants_stdin, is_interpreter=is_interpreter
            )

    def _start_task(
        self, verb: str, first: Sequence[int], *, wants_stdin: bool, is_interpreter: bool
    ) -> CellTask:
        tag = next(self._tags)
        with ExitStack() as stack:
            ends = CellPipes(
                stack,
                wants_stdin=wants_stdin,
                owner=self.parts.owner,
                has_channel=is_interpreter,
            )
            inside = [ends.inside[number] for number in sorted(ends.inside)]
            self.parts.init.send(verb, tag, descriptors=[*first, ends.status.inside, *inside])
            ends.close_inside()
            ends.status.close_inside()
            open_ends = stack.pop_all()
        return CellTask(tag, ends.outside, open_ends.close, started=time.monotonic())

    def interpreter(self, env: Mapping[str, str]) -> LiveInterpreter:
        """The current interpreter, or a new one. The caller holds `turn`."""
        interpreter = self._interpreter
        if interpreter is not None:
            for _ in range(_MAX_PENDING_MESSAGES):
                interpreter.task.handle_message()
            interpreter.is_lost = interpreter.is_lost or interpreter.task.is_ended
        if interpreter is None or interpreter.is_lost:
            if interpreter is not None:
                interpreter.task.close()
            if self.parts.interpreter:
                argv = self.parts.interpreter
                task = self.start(
                    argv, env, cwd="/workspace", wants_stdin=False, is_interpreter=True
                )
            else:
                task = self._start_task("fork", [], wants_stdin=False, is_interpreter=True)
            reader = FrameReader(max_frame_bytes=self._max_result_bytes, has_blobs=False)
            interpreter = self._interpreter = LiveInterpreter(task, reader)
        return interpreter

    def open_root(self, path: str) -> int:
        """A descriptor of a memory directory of the cell; the caller closes it. May block."""
        return self._take_descriptor("root", MEMORY_ROOTS.index(path))

    def dial(self, port: int, *, family: Literal[4, 6]) -> int:
        """A connection to a port of the cell's loopback that is made or under way. May block."""
        return self._take_descriptor("dial", port, family)

    def _take_descriptor(self, *words: str | int) -> int:
        """A descriptor that init opens; it comes on a socket that only init gets."""
        line = InitSocket()
        try:
            self.parts.init.send(*words, descriptors=[line.inside])
            line.close_inside()
            descriptor = None
            if ready_to_read(line, timeout_s=_DESCRIPTOR_WITHIN_S):
                _words, descriptor = line.receive_with_descriptor()
        finally:
            line.close()
        if descriptor is None:
            raise SandboxFailed(
                "the sandbox gave no access to its files or its network",
                hint="Its engine may keep them to itself, as gVisor does; otherwise try again.",
                code="CW-SANDBOX-CLOSED",
            )
        return descriptor

    def counters(self) -> run_cgroup.Counters:
        meter = self.parts.meter
        return meter.counters() if meter else run_cgroup.Counters()

    def cpu_s(self) -> float | None:
        """Of all processes since the cell was made; None if the cell is gone or not measured."""
        return self.parts.meter.cpu_s() if self.parts.meter else None

    def memory_bytes(self) -> int | None:
        """Of all processes now; None without a cgroup."""
        meter = self.parts.meter
        return meter.memory_bytes() if isinstance(meter, run_cgroup.RunCgroup) else None

    def pids(self) -> list[int]:
        return self.parts.meter.pids() if self.parts.meter else []

    def close(self) -> None:
        """End the cell and every process in it."""
        for watcher in list(self.watchers):
            watcher.stop()
        if self._interpreter is not None:
            self._interpreter.task.close()
        self.parts.close()


class LiveInterpreter:
    """A Python interpreter that keeps its variables between runs."""

    def __init__(self, task: CellTask, reader: FrameReader) -> None:
        self.task = task
        self.reader = reader
        self.count = 0
        self.is_lost = False


class _LiveRun(MonitoredRun):
    """The common part of both kinds of runs."""

    def __init__(self, cell: LiveCell, task: CellTask) -> None:
        self._cell = cell
        self._task = task
        self._before = cell.counters()

    @property
    def channels(self) -> SupervisorEnds:
        return self._task.channels

    def status_fd(self) -> int:
        return self._task.channels.status.fileno()

    def early_end_fd(self) -> int:
        channel = self._task.channels.channel
        return self.status_fd() if channel is None else channel.fileno()

    def handle_message(self) -> bool:
        return self._task.handle_message()

    def begin_watching(self) -> None:
        self._cell.parts.init.send("go")

    def counters(self) -> run_cgroup.Counters:
        """Usage of the cell since the run began."""
        return self._cell.counters().since(self._before)

    def pids(self) -> list[int]:
        return self._cell.pids()

    def failure(self, step: str) -> CellwallError:
        return SandboxFailed(
            "the sandbox ended while this ran",
            hint="Run it again; files that were written are still there.",
            code="CW-SANDBOX-GONE",
            detail=step,
        )

    async def _handle_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough() and self._task.handle_message():
            if not is_enough():
                await anyio.wait_readable(self.status_fd())


class CommandRun(_LiveRun):
    """A program in a live cell whose end the caller waits for."""

    def is_ended(self, run_io: RunIO) -> bool:  # noqa: ARG002  # only init is believed
        return self._task.is_ended

    def kill(self, limit: LimitName | None = None) -> None:
        init = self._cell.parts.init
        init.send("stop") if limit in _ENDS_ALL else init.send("end", self._task.tag)

    async def wait_gone(self) -> None:
        self._task.close()

    async def abandon(self) -> None:
        self.kill()
        await self._handle_until(lambda: self._task.is_ended)
        self._task.close()

    def exit_words(self) -> list[str]:
        return [] if self._task.words == ["gone"] else self._task.words


class CodeRun(_LiveRun):
    """A piece of code in the interpreter of a live cell."""

    def __init__(self, cell: LiveCell, interpreter: LiveInterpreter) -> None:
        super().__init__(cell, interpreter.task)
        self._interpreter = interpreter
        self._interrupted_at: float | None = None
        self._report_exit: int | None = None
        interpreter.count += 1
        self.number = interpreter.count
        interpreter.task.rested = None

    def is_ended(self, run_io: RunIO) -> bool:
        if run_io.report is not None and run_io.report.get("done") == self.number:
            code = run_io.report.get("exit")
            self._report_exit = code if type(code) is int and 0 <= code <= 255 else 1
            return True
        if run_io.is_malformed or run_io.is_channel_closed:
            # Code that writes malformed frames, or closes the pipe, can get no more results.
            self._interpreter.is_lost = True
            self._cell.parts.init.send("end", self._task.tag)
        return self._task.is_ended

    def kill(self, limit: LimitName | None = None) -> None:
        init, tag, now = self._cell.parts.init, self._task.tag, time.monotonic()
        if limit in _ENDS_ALL:
            init.send("stop")
        elif self._interrupted_at is None:
            self._interrupted_at = now
            init.send("signal", tag, 2)
        elif now - self._interrupted_at > _GRACE_S:
            init.send("end", tag)

    def interrupt(self) -> None:
        self._cell.parts.init.send("signal", self._task.tag, 2)

    async def wait_gone(self) -> None:
        """The interpreter stays; init checks once more whether a file system is full."""
        if not self._task.is_ended and not self._interpreter.is_lost:
            self._cell.parts.init.send("rest", self._task.tag)
            await self._handle_until(lambda: self._task.rested is not None)
        self._interpreter.is_lost = self._interpreter.is_lost or self._task.is_ended

    async def abandon(self) -> None:
        """Cancelled: send SIGINT; end the interpreter only if it does not return."""
        self.interrupt()
        with anyio.move_on_after(_GRACE_S), suppress(BadFrame, OSError):
            if await self._is_answered():
                return
        self._interpreter.is_lost = True
        self._cell.parts.init.send("end", self._task.tag)
        await self._handle_until(lambda: self._task.is_ended)

    async def _is_answered(self) -> bool:
        channel = self._task.channels.channel
        while channel is not None and not self._task.is_ended:
            # Code that blocks on a full output pipe would not handle the signal.
            self._discard_output()
            with anyio.move_on_after(_POLL_EVERY_S):
                await anyio.wait_readable(channel)
            try:
                chunk = channel.read(_READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                return False
            for frame in self._interpreter.reader.feed(chunk):
                if frame.message.get("done") == self.number:
                    # Its output, the traceback of the interrupt included, is in the pipes by now,
                    # and the next run would read it.
                    self._discard_output()
                    return True
        return False

    def _discard_output(self) -> None:
        channels = self._task.channels
        for pipe in (channels.stdout, channels.stderr):
            for _ in range(_MAX_READS):  # a thread of the code may print without end
                try:
                    if pipe is None or not os.read(pipe, _READ_BYTES):
                        break
                except BlockingIOError:
                    break

    def exit_words(self) -> list[str]:
        if self._task.is_ended:
            return [] if self._task.words == ["gone"] else self._task.words
        code = 0 if self._report_exit is None else self._report_exit
        return ["exit", str(self._task.tag), "code", str(code), self._task.rested or "-", "0", "0"]

    @property
    def state(self) -> Literal["kept", "lost"]:
        return "lost" if self._interpreter.is_lost else "kept"
