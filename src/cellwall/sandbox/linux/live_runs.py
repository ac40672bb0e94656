"""Runs in a live cell, as their monitor sees them: a program, or a piece of code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGKILL
from typing import Literal

import anyio

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.frames import BadFrame
from cellwall.core.limits import LimitName
from cellwall.sandbox.linux import run_cgroup
from cellwall.sandbox.linux.channels import SupervisorEnds
from cellwall.sandbox.linux.live_cell import OBEYS_WITHIN_S, CellTask, LiveCell, LiveInterpreter
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import MonitoredRun
from cellwall.sandbox.linux.run_serving import wait_readable_soon

_GRACE_S = 1.0
"""An interpreter that does not answer an interrupt within this time loses its state."""
_POLL_EVERY_S = 0.01
_READ_BYTES = 65_536
_MAX_READS = 64
# Code that exceeded one of these limits is not trusted to stop when interrupted.
_ENDS_ALL = frozenset({LimitName.MEMORY, LimitName.PROCESSES, LimitName.CPU, LimitName.DISK})


class _LiveRun(MonitoredRun):
    """The common part of both kinds of runs."""

    def __init__(self, cell: LiveCell, task: CellTask, before: run_cgroup.Counters) -> None:
        """`before`: the counters of the cell before the program was started. Read afterwards, they
        would hide a limit that a short program has reached at once."""
        self._cell = cell
        self._task = task
        self._before = before
        self._began = time.monotonic()

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

    def ended_for(self) -> LimitName | None:
        ended = self._cell.ended_for
        was_killed = self._task.words[2:4] == ["signal", str(int(SIGKILL))]
        return ended[0] if ended is not None and was_killed and ended[1] >= self._began else None

    def counters(self) -> run_cgroup.Counters:
        """Usage of the cell since the run began."""
        return self._cell.counters().since(self._before)

    def pids(self) -> list[int]:
        return self._cell.pids()

    def code_pids(self) -> list[int]:
        return self._cell.code_pids()

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
                await wait_readable_soon(self.status_fd())


class CommandRun(_LiveRun):
    """A program in a live cell whose end the caller waits for."""

    def is_ended(self, run_io: RunIO) -> bool:  # noqa: ARG002  # only init is believed
        return self._task.is_ended

    def kill(self, limit: LimitName | None = None) -> None:
        if limit in _ENDS_ALL:
            self._cell.end_processes(limit)
        else:
            self._cell.parts.init.send("end", self._task.tag)
            self._cell.insist()

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
        super().__init__(cell, interpreter.task, cell.counters_before_run())
        self._interpreter = interpreter
        self._interrupted_at: float | None = None
        self._awaits_rest = False
        self._must_end = False
        """A caller's interrupt ends the interpreter if its code does not stop."""
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
        elif self._must_end and self._is_overdue():
            self._must_end = False
            self._cell.parts.init.send("end", self._task.tag)
        return self._task.is_ended

    def _is_overdue(self) -> bool:
        return (
            self._interrupted_at is not None and time.monotonic() - self._interrupted_at > _GRACE_S
        )

    def kill(self, limit: LimitName | None = None) -> None:
        init, tag, now = self._cell.parts.init, self._task.tag, time.monotonic()
        if limit in _ENDS_ALL:
            self._cell.end_processes(limit)
        elif self._interrupted_at is None:
            self._interrupted_at = now
            init.send("signal", tag, 2)
        elif self._is_overdue():
            init.send("end", tag)
            self._cell.insist()

    def interrupt(self) -> None:
        self._cell.parts.init.send("signal", self._task.tag, 2)
        if not self._interpreter.stops_when_interrupted:
            self._interrupted_at = self._interrupted_at or time.monotonic()
            self._must_end = True

    def begin_release(self) -> bool:
        """The interpreter stays; init checks once more whether a file system is full."""
        self._awaits_rest = not self._task.is_ended and not self._interpreter.is_lost
        if self._awaits_rest:
            self._cell.parts.init.send("rest", self._task.tag)
        return self._awaits_rest

    async def wait_gone(self) -> None:
        if self._awaits_rest:
            kill = self._cell.parts.kill
            with anyio.move_on_after(None if kill is None else OBEYS_WITHIN_S) as wait:
                await self._handle_until(lambda: self._task.rested is not None)
            if wait.cancelled_caught and kill is not None:
                kill()
                self._interpreter.is_lost = True
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
