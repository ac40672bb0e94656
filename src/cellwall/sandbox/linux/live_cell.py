"""A cell that lives on between actions: its files, processes and interpreter are still there.

Init starts what it is told to, each task with a line of its own; the interpreter is one of them.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import anyio

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.frames import BadFrame, FrameReader
from cellwall.core.limits import LimitName, Limits
from cellwall.sandbox.linux import cell_plan, run_cgroup
from cellwall.sandbox.linux.channels import Channels, Line, Outside
from cellwall.sandbox.linux.run_io import Traffic
from cellwall.sandbox.linux.shim import memory_file
from cellwall.sandbox.linux.usage_sampler import Measured

_MAX_WORDS_WAITING = 4
_GRACE_S = 1.0
"""So long may an interpreter take to answer an interrupt before its state is given up."""
_LOOK_EVERY_S = 0.01
_READ_BYTES = 65_536
_MAX_READS = 64
# Code or processes that broke one of these are not to be trusted to stop when asked.
_ENDS_ALL = frozenset({LimitName.MEMORY, LimitName.PROCESSES, LimitName.CPU, LimitName.DISK})


@dataclass(frozen=True, slots=True)
class Body:
    """What a live cell is made of, warm or cold."""

    path: str
    line: Line
    meter: run_cgroup.Group | Measured | None
    """What tells the use of the cell."""
    owner: int | None
    """The host uid of what runs inside, where Cellwall was started as root."""
    interpreter: tuple[str, ...]
    """How to start one; empty where init can fork one."""
    limits: Limits
    failure: Callable[[str], CellwallError]
    close: Callable[[], None]
    skills: tuple[str, ...] = ()
    """Digests of those that it holds, which can be shown to no cell that already lives."""
    view: int | None = None
    """A mount of its copy-on-write layers for the file API; whoever opened the cell closes it."""


class Task:
    """Something init has started, and our ends of it."""

    def __init__(
        self, tag: int, channels: Outside, close: Callable[[], None], *, started: float
    ) -> None:
        self.tag = tag
        self.channels = channels
        self.started = started
        self.pid: int | None = None
        """Its number inside, as init says."""
        self.words: list[str] = []
        self.rested: str | None = None
        self._close = close

    @property
    def is_ended(self) -> bool:
        return bool(self.words)

    def hear(self) -> bool:
        """Take in init's next word; says whether more may come."""
        self.understand(self.channels.status.heard())
        return not self.is_ended

    def understand(self, words: list[str] | None) -> None:
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

    def __init__(self, body: Body, *, max_result_bytes: int) -> None:
        self.body = body
        self._max_result_bytes = max_result_bytes
        self._tags = itertools.count(1)
        self._interpreter: Interpreter | None = None
        self.turn = threading.Lock()
        """An interpreter does one thing at a time."""

    def is_alive(self) -> bool:
        """Nothing is ever said on the main line of a cell that lives."""
        return self.body.line.heard() is None

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        wants_stdin: bool,
        terminal: tuple[int, int] | None = None,
    ) -> Task:
        """Have init start a program."""
        plan = cell_plan.task_plan(argv, env, cwd=cwd, terminal=terminal)
        with ExitStack() as stack:
            descriptor = memory_file("cellwall-task", plan)
            stack.callback(os.close, descriptor)
            return self._ask("run", [descriptor], wants_stdin=wants_stdin, is_interpreter=False)

    def _ask(
        self, verb: str, first: Sequence[int], *, wants_stdin: bool, is_interpreter: bool
    ) -> Task:
        tag = next(self._tags)
        with ExitStack() as stack:
            ends = Channels(
                stack,
                wants_stdin=wants_stdin,
                owner=self.body.owner,
                has_channel=is_interpreter,
            )
            given = [ends.inside[number] for number in sorted(ends.inside)]
            self.body.line.say(verb, tag, descriptors=[*first, ends.status.inside, *given])
            ends.close_inside()
            ends.status.close_inside()
            kept = stack.pop_all()
        return Task(tag, ends.outside, kept.close, started=time.monotonic())

    def interpreter(self, env: Mapping[str, str]) -> Interpreter:
        """The one there is, or a new one. Only by whoever has the turn."""
        found = self._interpreter
        if found is not None:
            for _ in range(_MAX_WORDS_WAITING):
                found.task.hear()
            found.is_lost = found.is_lost or found.task.is_ended
        if found is None or found.is_lost:
            if found is not None:
                found.task.close()
            if self.body.interpreter:
                plan = cell_plan.task_plan(
                    self.body.interpreter, env, cwd="/workspace", terminal=None
                )
                descriptor = memory_file("cellwall-task", plan)
                try:
                    task = self._ask("run", [descriptor], wants_stdin=False, is_interpreter=True)
                finally:
                    os.close(descriptor)
            else:
                task = self._ask("fork", [], wants_stdin=False, is_interpreter=True)
            reader = FrameReader(max_frame_bytes=self._max_result_bytes, has_blobs=False)
            found = self._interpreter = Interpreter(task, reader)
        return found

    def counters(self) -> run_cgroup.Counters:
        meter = self.body.meter
        return meter.counters() if meter else run_cgroup.Counters()

    def pids(self) -> list[int]:
        return self.body.meter.pids() if self.body.meter else []

    def close(self) -> None:
        """End it and everything in it."""
        if self._interpreter is not None:
            self._interpreter.task.close()
        self.body.close()


class Interpreter:
    """A Python whose variables live on."""

    def __init__(self, task: Task, reader: FrameReader) -> None:
        self.task = task
        self.reader = reader
        self.count = 0
        self.is_lost = False


class _LiveRun:
    """What runs of both kinds have in common; see `Running` in watch.py."""

    def __init__(self, cell: LiveCell, task: Task) -> None:
        self._cell = cell
        self._task = task
        self._before = cell.counters()

    @property
    def channels(self) -> Outside:
        return self._task.channels

    def voice(self) -> int:
        return self._task.channels.status.fileno()

    def likely_end(self) -> int:
        channel = self._task.channels.channel
        return self.voice() if channel is None else channel.fileno()

    def hear(self) -> bool:
        return self._task.hear()

    def goes_on(self) -> None:
        self._cell.body.line.say("go")

    def counters(self) -> run_cgroup.Counters:
        """What the cell has used since the run began."""
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

    async def _heard(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough() and self._task.hear():
            if not is_enough():
                await anyio.wait_readable(self.voice())


class CommandRun(_LiveRun):
    """A program in a live cell, waited for."""

    def is_ended(self, traffic: Traffic) -> bool:  # noqa: ARG002  # init's word alone counts
        return self._task.is_ended

    def kill(self, limit: LimitName | None = None) -> None:
        line = self._cell.body.line
        line.say("stop") if limit in _ENDS_ALL else line.say("end", self._task.tag)

    async def until_gone(self) -> None:
        self._task.close()

    async def abandon(self) -> None:
        self.kill()
        await self._heard(lambda: self._task.is_ended)
        self._task.close()

    def last_words(self) -> list[str]:
        return [] if self._task.words == ["gone"] else self._task.words


class CodeRun(_LiveRun):
    """A piece of code in the interpreter of a live cell."""

    def __init__(self, cell: LiveCell, interpreter: Interpreter) -> None:
        super().__init__(cell, interpreter.task)
        self._interpreter = interpreter
        self._asked_at: float | None = None
        self._report_exit: int | None = None
        interpreter.count += 1
        self.number = interpreter.count
        interpreter.task.rested = None

    def is_ended(self, traffic: Traffic) -> bool:
        if traffic.report is not None and traffic.report.get("done") == self.number:
            code = traffic.report.get("exit")
            self._report_exit = code if type(code) is int and 0 <= code <= 255 else 1
            return True
        if traffic.is_garbled or traffic.is_channel_closed:
            # Whoever writes nonsense to the channel, or closes it, has cut itself off.
            self._interpreter.is_lost = True
            self._cell.body.line.say("end", self._task.tag)
        return self._task.is_ended

    def kill(self, limit: LimitName | None = None) -> None:
        line, tag, now = self._cell.body.line, self._task.tag, time.monotonic()
        if limit in _ENDS_ALL:
            line.say("stop")
        elif self._asked_at is None:
            self._asked_at = now
            line.say("signal", tag, 2)
        elif now - self._asked_at > _GRACE_S:
            line.say("end", tag)

    def interrupt(self) -> None:
        self._cell.body.line.say("signal", self._task.tag, 2)

    async def until_gone(self) -> None:
        """The interpreter stays; init looks once more whether a file system is full."""
        if not self._task.is_ended and not self._interpreter.is_lost:
            self._cell.body.line.say("rest", self._task.tag)
            await self._heard(lambda: self._task.rested is not None)
        self._interpreter.is_lost = self._interpreter.is_lost or self._task.is_ended

    async def abandon(self) -> None:
        """Cancelled: interrupted like a key press, and given up only if that does not help."""
        self.interrupt()
        with anyio.move_on_after(_GRACE_S), suppress(BadFrame, OSError):
            if await self._is_answered():
                return
        self._interpreter.is_lost = True
        self._cell.body.line.say("end", self._task.tag)
        await self._heard(lambda: self._task.is_ended)

    async def _is_answered(self) -> bool:
        channel = self._task.channels.channel
        while channel is not None and not self._task.is_ended:
            # Code that waits until somebody reads what it prints would not hear us.
            self._discard_output()
            with anyio.move_on_after(_LOOK_EVERY_S):
                await anyio.wait_readable(channel)
            try:
                chunk = channel.read(_READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                return False
            for frame in self._interpreter.reader.feed(chunk):
                if frame.message.get("done") == self.number:
                    # All that it has printed, the traceback of its interrupt included, is in the
                    # pipes by now, and the next call reads from them.
                    self._discard_output()
                    return True
        return False

    def _discard_output(self) -> None:
        channels = self._task.channels
        for pipe in (channels.stdout, channels.stderr):
            for _ in range(_MAX_READS):  # a thread of the code may print for ever
                try:
                    if pipe is None or not os.read(pipe, _READ_BYTES):
                        break
                except BlockingIOError:
                    break

    def last_words(self) -> list[str]:
        if self._task.is_ended:
            return [] if self._task.words == ["gone"] else self._task.words
        code = 0 if self._report_exit is None else self._report_exit
        return ["exit", str(self._task.tag), "code", str(code), self._task.rested or "-", "0", "0"]

    @property
    def state(self) -> Literal["kept", "lost"]:
        return "lost" if self._interpreter.is_lost else "kept"
