"""The live cells of a runtime, one for each session that has run something."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import anyio

from cellwall.core.errors import BadInput, SkillRefused
from cellwall.core.files import FileOperation, Watching, memory_root
from cellwall.core.languages import canonical
from cellwall.core.outcomes import RunResult
from cellwall.core.port_connections import ConnectPort
from cellwall.core.sandbox_ports import LiveUsage
from cellwall.core.tool_servers import RunServer
from cellwall.core.types import Action, Json, ProcessOperation, RunCode, RunCommand
from cellwall.sandbox import languages
from cellwall.sandbox.files.merged_view import MergedViews, sandbox_ended
from cellwall.sandbox.linux import jobs
from cellwall.sandbox.linux.background import BackgroundProcess, OutputReader
from cellwall.sandbox.linux.carried_process import CarriedProcess
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell
from cellwall.sandbox.linux.live_cell_factory import CellFactory, LiveCellFactory, skill_digests
from cellwall.sandbox.linux.live_runs import CodeRun, CommandRun
from cellwall.sandbox.linux.live_session import (
    LiveSession,
    acquire,
    exceeds_limits,
    wait_for,
    wait_for_terminal,
)
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.port_connections import hold_connection
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.run_ledger import RunLedger

_MAX_ENDED_PROCESSES = 256
_BEHIND_DEADLINE_MS = 100
_UNUSED_S = 30.0
"""A model takes about as long to write its first code. An unused cell holds a few MB."""


class LiveSessions:
    """`run` and `steer` may be called by many tasks and threads at once."""

    def __init__(
        self,
        settings: NativeSettings,
        layers: HostLayers,
        ledger: RunLedger,
        pool: Pool,
        factory: CellFactory | None = None,
    ) -> None:
        self._settings, self._pool = settings, pool
        self._cell_factory = factory or LiveCellFactory(settings, layers, ledger, pool)
        self.views = MergedViews(self._cell_factory.open_view)
        self._lock = threading.Lock()
        self._sessions: dict[str, LiveSession] = {}
        self._reader = OutputReader()
        pool.on_tick(self._check_idle_cells)

    @property
    def count(self) -> int:
        """Live sandboxes that have not ended."""
        return len(self._sessions)

    # --- running

    async def run(self, request: CellRunRequest) -> RunResult:
        action = request.action
        session = self._session(action)
        session.workspace = request.workspace
        cell = await self._cell_of(session, request)
        match action.operation:
            case RunCommand(background=True) as operation:
                argv, script = jobs.live_command(operation.argv)
                process = self._start_background(session, cell, request, operation, argv)
                await wait_for_terminal(process, operation)
                if script:  # saved at once, before any input of the caller
                    await anyio.to_thread.run_sync(process.write, script)
                if action.stdin is not None:
                    process.feed(action.stdin)
                return RunResult(exit_code=None, path=cell.parts.path, payload=process.info())
            case RunServer() as operation:
                task = cell.start(
                    operation.argv, _environment(request), cwd="/workspace", wants_stdin=True
                )
                return await CarriedProcess(cell, task).serve(operation.hold)
            case FileOperation() as operation:
                work = partial(self._operate, cell, operation, action)
                payload = await anyio.to_thread.run_sync(work)
                return RunResult(exit_code=None, path=cell.parts.path, payload=payload)
            case RunCode() as operation if not _keeps_state(action, operation):
                program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
                env = _environment(request, program)
                if program.is_interpreter:
                    # The standard input of an interpreter that lives on cannot be replaced.
                    task = cell.start(
                        program.argv, env, cwd="/workspace", wants_stdin=True, is_interpreter=True
                    )
                    frame = jobs.interpreter_request(program, code, action)
                    return await self._run_task(session, cell, task, request, action.stdin, frame)
                argv = jobs.command_for(program, code)
                task = cell.start(argv, env, cwd="/workspace", wants_stdin=True)
                stdin = code + (action.stdin or b"")
                return await self._run_task(session, cell, task, request, stdin)
            case RunCommand(argv) as operation:
                argv, script = jobs.live_command(argv)
                given = script + (action.stdin or b"") if script else action.stdin
                env = _environment(request)
                task = cell.start(
                    argv,
                    env,
                    cwd=operation.cwd,
                    wants_stdin=given is not None,
                    as_second=jobs.is_second(action),
                )
                return await self._run_task(session, cell, task, request, given)
            case RunCode() as operation:
                return await self._run_code(session, cell, request, operation)
            case _:
                raise BadInput("only commands and code run in a sandbox")

    async def open_early(self, request: CellRunRequest) -> None:
        """Open the cell of a session and start its interpreter before the first action."""
        session = self._session(request.action)
        session.workspace = request.workspace
        # As in `_cell_of`: a call meanwhile waits for the lock of the session, and finds the cell.
        await anyio.to_thread.run_sync(partial(self._open, session, request, is_early=True))

    def _operate(self, cell: LiveCell, operation: FileOperation, action: Action) -> object:
        """The file API on a directory in the memory of the cell."""
        from cellwall.sandbox.files.cell_memory import operate_on_memory  # noqa: PLC0415  # few use it

        root = memory_root(operation.path, second_user=action.second_user)
        if root is None:
            raise BadInput("the files of a workspace are reached without its cell")
        result = operate_on_memory(
            cell.open_root(root),
            operation,
            inside=root,
            owner=cell.parts.owner_of(root),
            limits=action.limits,
            rules=self._settings.file_rules,
        )
        if operation.name == "watch":
            cell.watchers.add(cast("Watching", result))  # the port's meaning of "watch"
        return result

    async def _run_task(
        self,
        session: LiveSession,
        cell: LiveCell,
        task: CellTask,
        request: CellRunRequest,
        stdin: bytes | None,
        frame: tuple[Mapping[str, Json], bytes] | None = None,
    ) -> RunResult:
        with session.monitored():
            async with RunMonitor(request, CommandRun(cell, task), stdin=stdin) as monitor:
                result = await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes, frame=frame
                )
        return replace(result, path=cell.parts.path)

    async def _run_code(
        self, session: LiveSession, cell: LiveCell, request: CellRunRequest, operation: RunCode
    ) -> RunResult:
        action = request.action
        await acquire(cell.turn)
        try:
            program, _ = jobs.program_of(action, only_deno=self._settings.only_deno)
            lasting = (
                replace(request, action=replace(action, brief={})) if action.brief else request
            )
            env = _environment(lasting, program)
            await cell.wait_for_lost()
            interpreter = cell.interpreter(env, program, operation)
            is_first = interpreter.count == 0
            run = session.running = CodeRun(cell, interpreter)
            stdin = action.stdin or b""
            message: dict[str, Json] = {
                "code": run.number,
                "base": env if is_first and program.is_forked else {},
                "env": dict(action.brief),
                "stdin": None if action.stdin is None else len(stdin),
                "tools": list(action.tools),
                "context": operation.context,
                "paths": jobs.package_paths(action) if is_first and cell.parts.interpreter else [],
                "language": jobs.language_of(action),
                "wall_ms": _left_ms(request),
            }
            with session.monitored():
                async with RunMonitor(request, run) as monitor:
                    result = await monitor.until_end(
                        max_result_bytes=self._settings.max_result_bytes,
                        frame=(message, stdin + operation.code),
                        reader=interpreter.reader,
                    )
            # Ended between two calls, by a limit that its threads exceeded, or with its whole cell.
            was_lost = is_first and interpreter.key in session.told_kept
            if run.state == "kept":
                session.told_kept.add(interpreter.key)
            else:
                session.told_kept.discard(interpreter.key)
            state = "lost" if was_lost else run.state
            return replace(result, path=cell.parts.path, state=state)
        finally:
            session.running = None
            cell.turn.release()

    def _start_background(
        self,
        session: LiveSession,
        cell: LiveCell,
        request: CellRunRequest,
        operation: RunCommand,
        argv: tuple[str, ...],
    ) -> BackgroundProcess:
        task = cell.start(
            argv,
            _environment(request),
            cwd=operation.cwd,
            wants_stdin=True,
            terminal=operation.terminal,
            as_second=jobs.is_second(request.action),
        )
        keep_bytes = request.action.limits.output_bytes
        process = BackgroundProcess(cell, task, operation.argv, keep_bytes=keep_bytes)
        with session.lock:
            for old in list(session.processes)[:-_MAX_ENDED_PROCESSES]:
                if session.processes[old].ended.is_set():
                    del session.processes[old]
            session.processes[process.id] = process
        self._reader.add(process)
        return process

    # --- steering

    async def steer(self, action: Action) -> RunResult:
        operation = action.operation
        if isinstance(operation, ConnectPort):
            return await hold_connection(self._session(action), operation)
        assert isinstance(operation, ProcessOperation)  # noqa: S101  # by the contract of the port
        return await self._steer_process(self._session(action), action, operation)

    @staticmethod
    async def _steer_process(
        session: LiveSession, action: Action, operation: ProcessOperation
    ) -> RunResult:
        if operation.name == "list":
            processes = tuple(process.info() for process in session.processes.values())
            return RunResult(exit_code=None, payload=processes)
        if operation.name == "interrupt":
            running = session.running
            if running is not None:
                running.interrupt()
            return RunResult(exit_code=None, payload=running is not None)
        process = session.processes.get(operation.process)
        if process is None:
            raise BadInput(
                f"no process {operation.process} was started here",
                hint="`commands.list()` names the processes of this sandbox.",
                code="CW-NO-PROCESS",
            )
        match operation.name:
            case "wait":
                await wait_for(process.ended, action.limits.wall_s)
                return process.result()
            case "read":
                return process.result()
            case "follow":
                await wait_for(process.has_news, action.limits.wall_s)
                return process.result()
            case "write":
                write = partial(process.write, operation.data, action.limits.wall_s)
                await anyio.to_thread.run_sync(write, abandon_on_cancel=True)
            case "close_stdin":
                process.close_stdin()
            case "resize":
                process.resize(*operation.size)
            case "signal":
                process.signal(operation.number)
        return RunResult(exit_code=None, payload=process.info())

    def _check_idle_cells(self) -> None:
        """Limits also bind processes that run between calls, when no monitor checks them."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            self._close_unused(session, now=time.monotonic())
            cell = session.cell
            if cell is None or session.monitors:
                continue
            try:
                is_over = exceeds_limits(session, cell)
            except OSError:  # the cell is ending, or cannot be checked: end it in both cases
                is_over = True
            if is_over:
                cell.end_processes()

    # --- cells

    @staticmethod
    def _close_unused(session: LiveSession, *, now: float) -> None:
        cell = session.take_unused_cell(now=now)
        if cell is not None:
            cell.close()

    def close_unused(self, session_id: str) -> None:
        """End a cell that was opened early, if no action has used it."""
        session = self._find(session_id)
        if session is not None:
            self._close_unused(session, now=float("inf"))

    def _session(self, action: Action) -> LiveSession:
        assert action.session_id is not None  # noqa: S101  # only sessions have live cells
        with self._lock:
            return self._sessions.setdefault(action.session_id, LiveSession())

    async def _cell_of(self, session: LiveSession, request: CellRunRequest) -> LiveCell:
        cell = session.use_cell()
        if cell is None or not cell.is_alive():
            # The thread is not cancelled: it completes the cell, and the next call finds it.
            cell = await anyio.to_thread.run_sync(partial(self._open, session, request))
        if cell.parts.skills != skill_digests(request.skills):
            # A skill in the cell was removed or replaced since: the session must not go on with an
            # unapproved skill, and the record must not name another one (SKL-1).
            raise SkillRefused(
                "the skills of this sandbox were changed since it began",
                hint="Create a new sandbox.",
                code="CW-SKILL-CHANGED",
            )
        return cell

    def _open(
        self, session: LiveSession, request: CellRunRequest, *, is_early: bool = False
    ) -> LiveCell:
        action = request.action
        with session.lock:
            cell = session.cell if is_early else session.use_cell()
            if cell is not None:
                if cell.is_alive():
                    return cell
                dead = session.take_cell()
                if dead is not None:
                    dead.close()
            if session.is_ended:
                raise sandbox_ended()
            assert action.session_id is not None  # noqa: S101  # as in `_session`
            with self.views.replacing(action.session_id) as put_view:
                parts = self._cell_factory.open(
                    action, request.mount, request.skills, request.network
                )
                if parts.view is not None:
                    put_view(parts.view)
            cell = LiveCell(parts, max_result_bytes=self._settings.max_result_bytes)
            if is_early:
                try:
                    self._start_early(cell, request)
                except BaseException:
                    cell.close()
                    raise
            session.put_cell(cell, unused_until=time.monotonic() + _UNUSED_S if is_early else None)
            session.uncharged = UnchargedMemory(cell.pids, parts.limits)
            self._pool.stay_awake()
            return cell

    def _start_early(self, cell: LiveCell, request: CellRunRequest) -> None:
        """Start the interpreter that the first code would start. No other task has the cell yet,
        so `turn` need not be held."""
        operation = request.action.operation
        assert isinstance(operation, RunCode)  # noqa: S101  # by the caller
        program, _ = jobs.program_of(request.action, only_deno=self._settings.only_deno)
        cell.interpreter(_environment(request, program), program, operation)

    def _find(self, session_id: str) -> LiveSession | None:
        with self._lock:
            return self._sessions.get(session_id)

    def cell_of(self, session_id: str) -> LiveCell | None:
        """The cell of a session, if there is one that lives."""
        session = self._find(session_id)
        cell = None if session is None else session.cell
        return cell if cell is not None and cell.is_alive() else None

    def close_cell(self, session_id: str) -> None:
        """End every process of a live sandbox, and wait; the next run gets a new cell."""
        session = self._find(session_id)
        if session is not None:
            with session.lock:
                cell = session.take_cell()
            if cell is not None:
                cell.close()

    def usage(self, session_id: str, *, with_memory: bool) -> LiveUsage:
        session = self._find(session_id)
        if session is None:
            return LiveUsage()
        # A copy: a thread may start another process meanwhile.
        processes = list(session.processes.values())
        running = frozenset(each.id for each in processes if not each.ended.is_set())
        cell = session.cell if with_memory else None
        return LiveUsage(session.cpu_s(), running, None if cell is None else cell.memory_bytes())

    def halt(self, session_id: str) -> None:
        """End every process of a live sandbox; its files stay, and the next run gets a new cell."""
        session = self._find(session_id)
        cell = None if session is None else session.cell
        if cell is not None:
            cell.end_processes()

    def end(self, session_id: str) -> None:
        """End a live sandbox and every process in it."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is None:
            return
        with session.lock:
            session.is_ended = True
            cell = session.take_cell()
        if cell is not None:
            cell.close()


def _keeps_state(action: Action, operation: RunCode) -> bool:
    """Whether an interpreter that lives on runs this code. Only Python can be given new input."""
    language = canonical(operation.language)
    return language == "python" or (language in languages.STATEFUL and action.stdin is None)


def _left_ms(request: CellRunRequest) -> int:
    """The time after which V8 ends the code itself, a moment behind the monitor's deadline."""
    left_s = request.started + request.action.limits.wall_s - time.monotonic()
    return max(1, int(left_s * 1000)) + _BEHIND_DEADLINE_MS


def _environment(
    request: CellRunRequest, program: languages.Program | None = None
) -> dict[str, str]:
    return dict(jobs.environment(request.action, program, request.mount))
