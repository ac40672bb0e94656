"""What a caller does with the programs of a live session: read, write, wait, resize, signal."""

from __future__ import annotations

from functools import partial

import anyio

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import RunResult
from cellwall.core.types import Action, ProcessOperation
from cellwall.sandbox.linux.live_session import LiveSession, wait_for


async def steer_process(
    session: LiveSession, action: Action, operation: ProcessOperation
) -> RunResult:
    """Carry out one operation on the background programs of a session, or on its code."""
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
