"""A cell that stays alive between actions, with its files, processes and interpreter.

Init starts tasks on request, each with a status socket of its own; the interpreter is a task, too.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import anyio

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.core.files import CELL_ROOTS, SECOND_HOME, Watching
from cellwall.core.forks import call_in_child
from cellwall.core.frames import FrameReader
from cellwall.core.limits import LimitName, Limits
from cellwall.core.types import RunCode
from cellwall.core.users_inside import no_second_user
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.languages import Program
from cellwall.sandbox.linux import cell_plan, run_cgroup
from cellwall.sandbox.linux.channels import CellPipes, InitSocket, SupervisorEnds, ready_to_read
from cellwall.sandbox.linux.counter_files import RecentGroups
from cellwall.sandbox.linux.outer_wall import SecondUser
from cellwall.sandbox.linux.outside_processes import memory_file

_MAX_PENDING_MESSAGES = 4
_MAX_INTERPRETERS = 16
"""Each holds five descriptors of the supervisor."""
_DESCRIPTOR_WITHIN_S = 20.0
_ENDS_WITHIN_S = 10.0
OBEYS_WITHIN_S = 15.0
"""Of an init in a machine; sooner than its run counts as stuck (run_ending.py)."""
_recent_groups = RecentGroups()
call_in_child(_recent_groups.forget_parent)


@dataclass(frozen=True, slots=True)
class LiveCellParts:
    """The parts of a live cell, warm or cold."""

    path: str
    init: InitSocket
    meter: run_cgroup.Meter | None
    """Measures the resource usage of the cell."""
    owner: int | None
    """The host uid of the cell's processes, if Cellwall was started as root."""
    interpreter: tuple[str, ...]
    """The command of a new Python; empty if init can fork one."""
    limits: Limits
    failure: Callable[[str], CellwallError]
    close: Callable[[], None]
    skills: tuple[str, ...] = ()
    """Digests of the skills in the cell; a live cell cannot be given others."""
    second: SecondUser | None = None
    has_terminals: bool = True
    """Init can hand a terminal to the supervisor: not from another kernel."""
    kill: Callable[[], None] | None = None
    """Ends a cell whose init runs on a kernel of its own, and so may not do as it is told."""
    view: int | None = None
    """A mount of its copy-on-write layers for the file API; the caller of the factory closes it."""

    def owner_of(self, root: str) -> int | None:
        """The host uid as which the file API acts in a memory directory."""
        return self.second.uid if root == SECOND_HOME and self.second is not None else self.owner


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

    def handle_pending(self) -> None:
        """Handle init's messages that are here already."""
        for _ in range(_MAX_PENDING_MESSAGES):
            words = self.channels.status.receive()
            if words is None:
                return
            self.handle_words(words)

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
        self._interpreters: dict[str, LiveInterpreter] = {}
        self._is_closed = False
        self.watchers: weakref.WeakSet[Watching] = weakref.WeakSet()
        """Watches of its memory directories, which end with the cell."""
        # Nothing was started yet: the only process of a group without bubblewrap is init.
        first = self.pids() if parts.path == "warm" else []
        self._init_pid = first[0] if len(first) == 1 else None
        self._told_at = self._told_first = float("-inf")
        self.ended_for: tuple[LimitName, float] | None = None
        """The limit because of which all processes were ended, and when."""
        self.turn = threading.Lock()
        """Held while an interpreter runs code: one piece at a time."""

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
        as_second: bool = False,
    ) -> CellTask:
        """Ask init to start a program."""
        owner = self.parts.owner
        if terminal is not None and not self.parts.has_terminals:
            raise BadInput(
                "programs in a virtual machine have no terminal",
                hint='Start it without one, or use sandbox.backend = "native".',
                code="CW-BACKEND-TERMINAL",
            )
        if as_second:
            # The session was made without a second user: never the first one in its place.
            if self.parts.second is None:
                raise no_second_user()
            owner = self.parts.second.uid
        plan = cell_plan.task_plan(argv, env, cwd=cwd, terminal=terminal, as_second=as_second)
        with closing_fd(memory_file("cellwall-task", plan)) as plan_fd:
            return self._start_task(
                "run",
                [plan_fd],
                wants_stdin=wants_stdin,
                is_interpreter=is_interpreter,
                owner=owner,
            )

    def _start_task(
        self,
        verb: str,
        first: Sequence[int],
        *,
        wants_stdin: bool,
        is_interpreter: bool,
        owner: int | None,
    ) -> CellTask:
        tag = next(self._tags)
        with ExitStack() as stack:
            ends = CellPipes(
                stack,
                wants_stdin=wants_stdin,
                owner=owner,
                has_channel=is_interpreter,
            )
            inside = [ends.inside[number] for number in sorted(ends.inside)]
            self.parts.init.send(verb, tag, descriptors=[*first, ends.status.inside, *inside])
            ends.close_inside()
            ends.status.close_inside()
            open_ends = stack.pop_all()
        return CellTask(tag, ends.outside, open_ends.close, started=time.monotonic())

    async def wait_for_lost(self) -> None:
        """Until interpreters that are being ended have ended: their processes count against the
        limit, and might leave no room for a new interpreter."""
        lost = [each for each in self._interpreters.values() if each.is_lost]
        if not lost:
            return
        with anyio.move_on_after(_ENDS_WITHIN_S):
            for interpreter in lost:
                task = interpreter.task
                while not task.is_ended and task.handle_message():
                    if not task.is_ended:
                        await anyio.wait_readable(task.channels.status.fileno())

    def interpreter(
        self, env: Mapping[str, str], program: Program, operation: RunCode
    ) -> LiveInterpreter:
        """The current interpreter, or a new one. The caller holds `turn`.

        One Python serves all contexts. A context of another language is a process of its own: its
        interpreter has one set of variables.
        """
        key = "" if program.is_forked else f"{operation.language} {operation.context}"
        interpreter = self._interpreters.get(key)
        if interpreter is not None:
            interpreter.task.handle_pending()
            interpreter.is_lost = interpreter.is_lost or interpreter.task.is_ended
        if interpreter is None or interpreter.is_lost:
            if interpreter is not None:
                interpreter.task.close()
                del self._interpreters[key]
            if len(self._interpreters) >= _MAX_INTERPRETERS:
                raise BadInput(
                    f"a sandbox has at most {_MAX_INTERPRETERS} interpreters at once",
                    hint="Use fewer contexts of JavaScript and TypeScript, or another sandbox.",
                    code="CW-TOO-MANY-CONTEXTS",
                )
            interpreter = self._start_interpreter(key, env, program)
            self._interpreters[key] = interpreter
        return interpreter

    def _start_interpreter(
        self, key: str, env: Mapping[str, str], program: Program
    ) -> LiveInterpreter:
        if program.is_forked and not self.parts.interpreter:
            task = self._start_task(
                "fork", [], wants_stdin=False, is_interpreter=True, owner=self.parts.owner
            )
        else:
            argv = self.parts.interpreter if program.is_forked else program.argv
            task = self.start(argv, env, cwd="/workspace", wants_stdin=False, is_interpreter=True)
        reader = FrameReader(max_frame_bytes=self._max_result_bytes, has_blobs=False)
        return LiveInterpreter(key, task, reader, stops_when_interrupted=program.is_forked)

    def open_root(self, path: str) -> int:
        """A descriptor of a memory directory of the cell; the caller closes it. May block."""
        return self._take_descriptor("root", CELL_ROOTS.index(path))

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
                hint="Its engine may keep them to itself, as gVisor and a virtual machine do; "
                "otherwise try again.",
                code="CW-SANDBOX-CLOSED",
            )
        return descriptor

    def counters(self) -> run_cgroup.Counters:
        meter = self.parts.meter
        return meter.counters() if meter else run_cgroup.Counters()

    def counters_before_run(self) -> run_cgroup.Counters:
        """Those of a cell that will be asked for them soon again."""
        meter = self.parts.meter
        if isinstance(meter, run_cgroup.RunCgroup) and not self._is_closed:
            _recent_groups.keep(meter)
        return self.counters()

    def cpu_s(self) -> float | None:
        """Of all processes since the cell was made; None if the cell is gone or not measured."""
        return self.parts.meter.cpu_s() if self.parts.meter else None

    def memory_bytes(self) -> int | None:
        """Of all processes now; None without a cgroup."""
        meter = self.parts.meter
        return None if meter is None else meter.memory_bytes()

    def pids(self) -> list[int]:
        return self.parts.meter.pids() if self.parts.meter else []

    def code_pids(self) -> list[int]:
        """Without init, as far as it is known: init holds no file that code has made, and its pid
        is used again only after the end of the cell."""
        return [pid for pid in self.pids() if pid != self._init_pid]

    def end_processes(self, limit: LimitName | None = None) -> None:
        """End every process but init; the cell stays. Its interpreters count as lost at once: init
        tells their ends later, and code that was sent to one meanwhile would end with it.

        `limit`: which they have exceeded.
        """
        if limit is not None:
            self.ended_for = limit, time.monotonic()
        for interpreter in list(self._interpreters.values()):
            interpreter.is_lost = True
        self.parts.init.send("stop")
        self.insist()

    def insist(self) -> None:
        """Called again and again while something that was told to end goes on.

        Attack: code that has taken over the kernel of a machine goes on past its limits. The
        machine then ends.
        """
        now = time.monotonic()
        if now - self._told_at > OBEYS_WITHIN_S:
            self._told_first = now
        self._told_at = now
        if self.parts.kill is not None and now - self._told_first >= OBEYS_WITHIN_S:
            self.parts.kill()

    def close(self) -> None:
        """End the cell and every process in it."""
        for watcher in list(self.watchers):
            watcher.stop()
        for interpreter in self._interpreters.values():
            interpreter.task.close()
        self._is_closed = True
        if isinstance(self.parts.meter, run_cgroup.RunCgroup):
            _recent_groups.drop(self.parts.meter)
        self.parts.close()


class LiveInterpreter:
    """An interpreter that keeps its variables between runs."""

    def __init__(
        self, key: str, task: CellTask, reader: FrameReader, *, stops_when_interrupted: bool
    ) -> None:
        self.key = key
        """Equal for an interpreter and the one that replaces it."""
        self.task = task
        self.reader = reader
        self.stops_when_interrupted = stops_when_interrupted
        """Python's code does, whatever it is doing; V8 handles no signal while it computes."""
        self.count = 0
        self.is_lost = False
