"""`process.Process` of envd: programs, their input, signals and terminals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.routing import Route

from cellwall.core.errors import BadInput, NotFound
from cellwall.core.types import TERMINAL_SHELL, ProcessInfo, ProcessOperation, RunCommand
from cellwall.interfaces.e2b.access import SandboxAccess
from cellwall.interfaces.e2b.bodies import (
    Empty,
    InputEvent,
    InputRequest,
    ProcessRequest,
    ProcessSelector,
    SignalRequest,
    StartRequest,
    UpdateRequest,
    parse,
)
from cellwall.interfaces.e2b.callers import Message
from cellwall.interfaces.e2b.connect_rpc import client_stream, method_routes, server_stream, unary
from cellwall.interfaces.e2b.paths import WORKSPACE, absolute
from cellwall.interfaces.e2b.processes import StreamedProcess

MANY_PROCESSES = 256
"""Of one sandbox, after which those are forgotten that have ended."""
_LOGIN_SHELL = ("/bin/bash", "-i", "-l")
"""What `pty.create` starts: the terminal of the service, which rules name as `Terminal`."""


async def start(
    access: SandboxAccess, body: StartRequest, deadline: float | None
) -> AsyncIterator[Message]:
    """Start a program and stream its output; the program outlives the connection."""
    process = await _start(access, body)
    if deadline is not None:
        principal = await access.principal()
        access.state.tasks.start_soon(process.kill_at, access.sandbox, principal, deadline)
    async for event in process.events(access, deadline=deadline):
        yield event


async def _start(access: SandboxAccess, body: StartRequest) -> StreamedProcess:
    config = body.process
    cwd = config.cwd or WORKSPACE
    argv = (config.cmd, *config.args)
    operation = RunCommand(
        TERMINAL_SHELL if body.pty is not None and argv == _LOGIN_SHELL else argv,
        cwd=cwd if cwd.startswith("/") else absolute(cwd),
        background=True,
        terminal=None if body.pty is None else (body.pty.size.rows, body.pty.size.cols),
        user=access.user,
    )
    outcome = await access.perform(
        operation,
        envs=config.envs if body.pty is None else {"TERM": "xterm-256color", **config.envs},
        # Without standard input the program reads its end at once.
        stdin=None if body.stdin or body.pty is not None else b"",
    )
    assert isinstance(outcome.payload, ProcessInfo)  # noqa: S101  # of a background program
    process = StreamedProcess(outcome.payload, tag=body.tag, has_terminal=body.pty is not None)
    known = access.facts.processes
    for name in [name for name, each in known.items() if each.is_ended]:
        del known[name]
    known[process.id] = process
    if len(known) > MANY_PROCESSES:
        # Attack: programs whose clients leave at once, so that no client reads their ends.
        running = {info.id for info in await _running(access)}
        for name in known.keys() - running:
            known.pop(name).forget()
    return process


async def connect(
    access: SandboxAccess, body: ProcessRequest, deadline: float | None
) -> AsyncIterator[Message]:
    """Stream the output of a running program from now on."""
    process = await _find(access, body.process)
    async for event in process.events(access, deadline=deadline):
        yield event


async def list_processes(access: SandboxAccess, _: Empty) -> Message:
    """The running ones."""
    known = access.facts.processes
    found = []
    for info in await _running(access):
        config = {"cmd": info.command[0], "args": list(info.command[1:])}
        entry: dict[str, Any] = {"config": config, "pid": info.id}
        if info.id in known and known[info.id].tag is not None:
            entry["tag"] = known[info.id].tag
        found.append(entry)
    return {"processes": found}


async def send_input(access: SandboxAccess, body: InputRequest) -> Message:
    """Bytes for the program or its terminal."""
    process = await _find(access, body.process)
    await access.perform(ProcessOperation("write", process.id, body.input.data))
    return {}


async def stream_input(access: SandboxAccess, messages: AsyncIterator[bytes]) -> Message:
    """The first message names the program, the others bring its input."""
    process: StreamedProcess | None = None
    async for message in messages:
        event = parse(InputEvent, message)
        if event.start is not None:
            process = await _find(access, event.start.process)
        elif event.data is not None:
            if process is None:
                raise BadInput("the first message of the stream names no process")
            await access.perform(ProcessOperation("write", process.id, event.data.input.data))
    return {}


async def close_stdin(access: SandboxAccess, body: ProcessRequest) -> Message:
    """The program reads the end of its input."""
    process = await _find(access, body.process)
    await access.perform(ProcessOperation("close_stdin", process.id))
    return {}


async def send_signal(access: SandboxAccess, body: SignalRequest) -> Message:
    """SIGKILL also ends what the program has started."""
    process = await _find(access, body.process)
    await access.perform(ProcessOperation("signal", process.id, number=body.number))
    return {}


async def update(access: SandboxAccess, body: UpdateRequest) -> Message:
    """A new size of the terminal."""
    process = await _find(access, body.process)
    if body.pty is not None:
        size = (body.pty.size.rows, body.pty.size.cols)
        await access.perform(ProcessOperation("resize", process.id, size=size))
    return {}


async def _running(access: SandboxAccess) -> list[ProcessInfo]:
    found: list[ProcessInfo] = (await access.perform(ProcessOperation("list"))).payload
    return [info for info in found if info.is_running]


async def _find(access: SandboxAccess, wanted: ProcessSelector) -> StreamedProcess:
    """A running program, also one that another interface has started."""
    known = access.facts.processes
    for info in await _running(access):
        mine = known.get(info.id) or StreamedProcess(info, tag=None, has_terminal=False)
        is_tagged = mine.tag is not None and mine.tag == wanted.tag
        if info.id == wanted.pid or (wanted.pid is None and is_tagged):
            return known.setdefault(info.id, mine)
    raise NotFound("no such process is running", hint="`commands.list()` lists the processes.")


def process_routes() -> list[Route]:
    """Below the prefix of the endpoints."""
    methods = {
        "Start": server_stream(StartRequest, start),
        "Connect": server_stream(ProcessRequest, connect),
        "List": unary(Empty, list_processes),
        "SendInput": unary(InputRequest, send_input),
        "StreamInput": client_stream(stream_input),
        "CloseStdin": unary(ProcessRequest, close_stdin),
        "SendSignal": unary(SignalRequest, send_signal),
        "Update": unary(UpdateRequest, update),
    }
    return method_routes("process.Process", methods)
