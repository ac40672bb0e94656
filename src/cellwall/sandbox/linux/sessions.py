"""The live cells of a house, one for each session that has run something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from cellwall.core.errors import BadInput, SkillRefused
from cellwall.core.languages import canonical
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import (
    Action,
    Json,
    OutputSink,
    ProcessOperation,
    RunCode,
    RunCommand,
    WorkspaceMount,
)
from cellwall.sandbox import languages
from cellwall.sandbox.files.merged_view import MergedViews
from cellwall.sandbox.linux import jobs
from cellwall.sandbox.linux.background import Program, Reader
from cellwall.sandbox.linux.bodies import Bodies, digests
from cellwall.sandbox.linux.holdings import unlinked_files
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.live import CodeRun, CommandRun, LiveCell, Task
from cellwall.sandbox.linux.measured import Measured
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.uncharged import UnchargedMemory
from cellwall.sandbox.linux.watch import Watch
from cellwall.sandbox.run_ledger import RunLedger

_MAX_PROGRAMS_REMEMBERED = 256
_HANDED_OVER_WITHIN_S = 20.0


@dataclass(slots=True)
class _Session:
    """One live sandbox."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    cell: LiveCell | None = None
    programs: dict[int, Program] = field(default_factory=dict)
    running: CodeRun | None = None
    workspace: WorkspaceLease | None = None
    look_at: float = 0.0
    uncharged: UnchargedMemory | None = None
    watches: int = 0
    """Runs under way: each looks for itself, and can tell which limit it was."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    is_ended: bool = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        with self.counting:  # not `lock`, which is held while a cell is made
            self.watches += 1
        try:
            yield
        finally:
            with self.counting:
                self.watches -= 1


class Sessions:
    """`run` and `steer` may be called by many tasks and threads at once."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings, self._pool = settings, pool
        self._bodies = Bodies(settings, layers, ledger, pool)
        self.views = MergedViews(self._bodies.view)
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._reader = Reader()
        pool.on_tick(self._look_around)

    # --- running

    async def run(
        self,
        action: Action,
        *,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None = None,
        skills: Sequence[Skill] = (),
        network: CellNetwork | None = None,
    ) -> RunResult:
        started = time.monotonic()
        session = self._session(action)
        session.workspace = workspace
        cell = await self._cell_of(session, action, workspace, skills, network)
        match action.operation:
            case RunCommand(background=True) as operation:
                started_program = self._start(session, cell, action, operation, workspace)
                await _until_handed_over(started_program, operation.terminal is not None)
                if action.stdin is not None:
                    started_program.feed(action.stdin)
                return RunResult(
                    exit_code=None, path=cell.body.path, payload=started_program.info()
                )
            case RunCode() as operation if canonical(operation.language) != "python":
                program, code = jobs.program_of(action)
                env = _environment(action, workspace, program)
                task = cell.start(
                    jobs.command_for(program, code), env, cwd="/workspace", wants_stdin=True
                )
                stdin: bytes | None = code + (action.stdin or b"")
                over = partial(Watch, action, workspace=workspace, started=started, stdin=stdin)
                return await self._watched(session, cell, task, over, sink)
            case RunCommand() as operation:
                task = cell.start(
                    operation.argv,
                    _environment(action, workspace),
                    cwd=operation.cwd,
                    wants_stdin=action.stdin is not None,
                )
                stdin = action.stdin
                over = partial(Watch, action, workspace=workspace, started=started, stdin=stdin)
                return await self._watched(session, cell, task, over, sink)
            case RunCode():
                over = partial(Watch, workspace=workspace, started=started, tools=tools)
                return await self._run_code(session, cell, action, workspace, sink, over)
            case _:
                raise BadInput("only commands and code run in a sandbox")

    async def _watched(
        self,
        session: _Session,
        cell: LiveCell,
        task: Task,
        watch_over: Callable[[CommandRun], Watch],
        sink: OutputSink | None,
    ) -> RunResult:
        with session.watched():
            async with watch_over(CommandRun(cell, task)) as watch:
                result = await watch.until_end(
                    sink=sink, max_result_bytes=self._settings.max_result_bytes
                )
        return replace(result, path=cell.body.path)

    async def _run_code(
        self,
        session: _Session,
        cell: LiveCell,
        action: Action,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        watch_over: Callable[[Action, CodeRun], Watch],
    ) -> RunResult:
        assert isinstance(action.operation, RunCode)  # noqa: S101  # by the caller
        await _acquire(cell.turn)
        try:
            env = _environment(replace(action, brief={}), workspace)
            interpreter = cell.interpreter(env)
            is_first = interpreter.count == 0
            run = session.running = CodeRun(cell, interpreter)
            stdin = action.stdin or b""
            request: dict[str, Json] = {
                "code": run.number,
                "base": env if is_first else {},
                "env": dict(action.brief),
                "stdin": None if action.stdin is None else len(stdin),
                "tools": list(action.tools),
                "paths": jobs.package_paths(action) if is_first and cell.body.interpreter else [],
            }
            with session.watched():
                async with watch_over(action, run) as watch:
                    result = await watch.until_end(
                        sink=sink,
                        max_result_bytes=self._settings.max_result_bytes,
                        request=(request, stdin + action.operation.code),
                        reader=interpreter.reader,
                    )
            return replace(result, path=cell.body.path, state=run.state)
        finally:
            session.running = None
            cell.turn.release()

    def _start(
        self,
        session: _Session,
        cell: LiveCell,
        action: Action,
        operation: RunCommand,
        workspace: WorkspaceLease,
    ) -> Program:
        task = cell.start(
            operation.argv,
            _environment(action, workspace),
            cwd=operation.cwd,
            wants_stdin=True,
            terminal=operation.terminal,
        )
        program = Program(cell, task, operation.argv, keep_bytes=action.limits.output_bytes)
        with session.lock:
            for old in list(session.programs)[:-_MAX_PROGRAMS_REMEMBERED]:
                if session.programs[old].ended.is_set():
                    del session.programs[old]
            session.programs[program.id] = program
        self._reader.add(program)
        return program

    # --- steering

    async def steer(self, action: Action) -> RunResult:
        operation = action.operation
        assert isinstance(operation, ProcessOperation)  # noqa: S101  # by the port's meaning
        session = self._session(action)
        if operation.name == "list":
            programs = tuple(program.info() for program in session.programs.values())
            return RunResult(exit_code=None, payload=programs)
        if operation.name == "interrupt":
            running = session.running
            if running is not None:
                running.interrupt()
            return RunResult(exit_code=None, payload=running is not None)
        program = session.programs.get(operation.process)
        if program is None:
            raise BadInput(
                f"no process {operation.process} was started here",
                hint="`commands.list()` tells which there are.",
                code="CW-NO-PROCESS",
            )
        match operation.name:
            case "wait":
                await _wait(program.ended, action.limits.wall_s)
                return program.result()
            case "read":
                return program.result()
            case "follow":
                await _wait(program.has_news, action.limits.wall_s)
                return program.result()
            case "write":
                write = partial(program.write, operation.data, action.limits.wall_s)
                await anyio.to_thread.run_sync(write, abandon_on_cancel=True)
            case "close_stdin":
                program.close_stdin()
            case "resize":
                program.resize(*operation.size)
            case "signal":
                program.signal(operation.number)
        return RunResult(exit_code=None, payload=program.info())

    def _look_around(self) -> None:
        """What runs between calls is bound by these limits, too; nobody else would look."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            cell = session.cell
            if cell is None or session.watches:
                continue
            try:
                is_over = _goes_too_far(session, cell)
            except OSError:  # it ends right now, or cannot be looked at: both end it
                is_over = True
            if is_over:
                cell.body.line.say("stop")

    # --- cells

    def _session(self, action: Action) -> _Session:
        assert action.session_id is not None  # noqa: S101  # only sessions have live cells
        with self._lock:
            return self._sessions.setdefault(action.session_id, _Session())

    async def _cell_of(
        self,
        session: _Session,
        action: Action,
        workspace: WorkspaceLease,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCell:
        cell = session.cell
        if cell is None or not cell.is_alive():
            # Shielded by the thread: a cell half made is finished, and found by the next call.
            opening = partial(self._open, session, action, workspace.mount, skills, network)
            cell = await anyio.to_thread.run_sync(opening)
        if cell.body.skills != digests(skills):
            # What it holds was removed or replaced since: it must not go on with something that
            # is not approved any more, and the record must not name another one (SKL-1).
            raise SkillRefused(
                "the skills of this sandbox were changed since it began",
                hint="Create a new sandbox.",
                code="CW-SKILL-CHANGED",
            )
        return cell

    def _open(
        self,
        session: _Session,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCell:
        with session.lock:
            if session.cell is not None:
                if session.cell.is_alive():
                    return session.cell
                session.cell.close()
                session.cell = None
            if session.is_ended:
                raise BadInput(
                    "the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED"
                )
            assert action.session_id is not None  # noqa: S101  # as in `_session`
            with self.views.replacing(action.session_id) as put_view:
                body = self._bodies.open(action, mount, skills, network)
                if body.view is not None:
                    put_view(body.view)
            session.cell = LiveCell(body, max_result_bytes=self._settings.max_result_bytes)
            session.uncharged = UnchargedMemory(session.cell.pids, body.limits)
            self._pool.stay_awake()
            return session.cell

    def end(self, session_id: str) -> None:
        """End a live sandbox and everything in it."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is None:
            return
        with session.lock:
            session.is_ended = True
            cell, session.cell = session.cell, None
        if cell is not None:
            cell.close()


def _environment(
    action: Action, workspace: WorkspaceLease, program: languages.Program | None = None
) -> dict[str, str]:
    home = "/workspace" if workspace.mount.home else "/tmp"
    return dict(jobs.environment(action, program, home=home))


def _goes_too_far(session: _Session, cell: LiveCell) -> bool:
    now, workspace, limits = time.monotonic(), session.workspace, cell.body.limits
    uncharged = session.uncharged
    # A cgroup enforces the memory limit at any time; a measurement has to be made.
    if isinstance(cell.body.meter, Measured) and cell.counters().out_of_memory:
        return True
    if uncharged is not None and uncharged.is_due() and uncharged.is_too_much():
        return True
    if workspace is None or workspace.bounded_by_kernel:
        return False
    if now < session.look_at and not workspace.is_filling(limits):
        return False
    has_room = workspace.has_room(limits, unlinked_files(cell.pids))
    # A hundredth of one core at most, for each.
    session.look_at = now + 100 * (time.monotonic() - now)
    return not has_room


async def _acquire(lock: threading.Lock) -> None:
    """Without blocking the event loop, and without leaving it locked when cancelled."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110  # threads have loops of their own
        await anyio.sleep(0.001)


async def _until_handed_over(program: Program, has_terminal: bool) -> None:  # noqa: FBT001  # one caller
    """A terminal is init's to hand over; input before that would have nowhere to go."""
    with anyio.move_on_after(_HANDED_OVER_WITHIN_S):
        while has_terminal and program.terminal is None and not program.ended.is_set():  # noqa: ASYNC110  # set by a thread
            await anyio.sleep(0.001)


async def _wait(event: threading.Event, timeout_s: float) -> None:
    with anyio.move_on_after(timeout_s):
        while not event.is_set():
            await anyio.to_thread.run_sync(partial(event.wait, 0.5), abandon_on_cancel=True)
