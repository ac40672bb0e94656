"""What the actions of a session do in its live cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import anyio

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation, Watching, memory_root
from cellwall.core.languages import canonical
from cellwall.core.outcomes import RunResult
from cellwall.core.tool_servers import RunServer
from cellwall.core.types import Action, Json, RunCode, RunCommand
from cellwall.sandbox import languages
from cellwall.sandbox.linux import jobs
from cellwall.sandbox.linux.background import BackgroundProcess, OutputReader
from cellwall.sandbox.linux.carried_process import CarriedProcess
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.layers import NativeSettings
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell
from cellwall.sandbox.linux.live_runs import CodeRun, CommandRun
from cellwall.sandbox.linux.live_session import LiveSession, acquire, wait_for_terminal
from cellwall.sandbox.linux.run_monitor import RunMonitor

__all__ = ["CellActions", "environment_of"]
_MAX_ENDED_PROCESSES = 256
_BEHIND_DEADLINE_MS = 100


class CellActions:
    """Called by many tasks and threads at once."""

    def __init__(self, settings: NativeSettings) -> None:
        self._settings = settings
        self._reader = OutputReader()

    async def run(self, session: LiveSession, cell: LiveCell, request: CellRunRequest) -> RunResult:
        action = request.action
        match action.operation:
            case RunCommand(background=True) as operation:
                argv, script = jobs.live_command(action, operation.argv)
                process = self._start_background(session, cell, request, operation, argv)
                await wait_for_terminal(process, operation)
                if script:  # saved at once, before any input of the caller
                    await anyio.to_thread.run_sync(process.write, script)
                if action.stdin is not None:
                    process.feed(action.stdin)
                return RunResult(exit_code=None, path=cell.parts.path, payload=process.info())
            case RunServer() as operation:
                task = cell.start(
                    operation.argv, environment_of(request), cwd="/workspace", wants_stdin=True
                )
                return await CarriedProcess(cell, task).serve(operation.hold)
            case FileOperation() as operation:
                work = partial(self._operate, cell, operation, action)
                payload = await anyio.to_thread.run_sync(work)
                return RunResult(exit_code=None, path=cell.parts.path, payload=payload)
            case RunCode() as operation if not _keeps_state(action, operation):
                program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
                env = environment_of(request, program)
                if program.is_interpreter:
                    # The standard input of an interpreter that lives on cannot be replaced.
                    start = partial(
                        cell.start,
                        program.argv,
                        env,
                        cwd="/workspace",
                        wants_stdin=True,
                        is_interpreter=True,
                    )
                    frame = jobs.interpreter_request(program, code, action)
                    return await self._run_task(session, cell, start, request, action.stdin, frame)
                argv = jobs.command_for(program, code)
                start = partial(cell.start, argv, env, cwd="/workspace", wants_stdin=True)
                stdin = code + (action.stdin or b"")
                return await self._run_task(session, cell, start, request, stdin)
            case RunCommand(argv) as operation:
                argv, script = jobs.live_command(action, argv)
                given = script + (action.stdin or b"") if script else action.stdin
                env = environment_of(request)
                start = partial(
                    cell.start,
                    argv,
                    env,
                    cwd=operation.cwd,
                    wants_stdin=given is not None,
                    as_second=jobs.is_second(action),
                )
                return await self._run_task(session, cell, start, request, given)
            case RunCode() as operation:
                return await self._run_code(session, cell, request, operation)
            case _:
                raise BadInput("only commands and code run in a sandbox")

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
        start: Callable[[], CellTask],
        request: CellRunRequest,
        stdin: bytes | None,
        frame: tuple[Mapping[str, Json], bytes] | None = None,
    ) -> RunResult:
        before = cell.counters_before_run()
        run = CommandRun(cell, start(), before)
        with session.monitored():
            async with RunMonitor(request, run, stdin=stdin) as monitor:
                return await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=frame,
                    path=cell.parts.path,
                )

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
            env = environment_of(lasting, program)
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
                        path=cell.parts.path,
                    )
            # Ended between two calls, by a limit that its threads exceeded, or with its whole cell.
            was_lost = is_first and interpreter.key in session.told_kept
            if run.state == "kept":
                session.told_kept.add(interpreter.key)
            else:
                session.told_kept.discard(interpreter.key)
            return replace(result, state="lost") if was_lost else result
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
            environment_of(request),
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


def _keeps_state(action: Action, operation: RunCode) -> bool:
    """Whether an interpreter that lives on runs this code. Only Python can be given new input."""
    language = canonical(operation.language)
    return language == "python" or (language in languages.STATEFUL and action.stdin is None)


def _left_ms(request: CellRunRequest) -> int:
    """The time after which V8 ends the code itself, a moment behind the monitor's deadline."""
    left_s = request.started + request.action.limits.wall_s - time.monotonic()
    return max(1, int(left_s * 1000)) + _BEHIND_DEADLINE_MS


def environment_of(
    request: CellRunRequest, program: languages.Program | None = None
) -> dict[str, str]:
    """The variables of one action in its cell."""
    return dict(jobs.environment(request.action, program, request.mount))
