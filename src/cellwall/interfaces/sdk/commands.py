"""Programs in a sandbox, in the foreground or background, and their results."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, Unpack, overload

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.text import to_bytes
from cellwall.core.types import OutputSink, ProcessInfo, ProcessOperation, RunCommand
from cellwall.core.users_inside import NO_USER, parse_user
from cellwall.interfaces.output_files import OutputSpool, run_into_file
from cellwall.interfaces.sdk.execution import Execution, TextSink, argv_of, text_sink

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.hosts import CallOptions, Host

ROWS, COLUMNS = 24, 80


class AsyncCommands:
    """Programs in a sandbox."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[False] = False,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
        stdin: bytes | str | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
        output_file: str | BinaryIO | None = None,
    ) -> Execution: ...

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> AsyncProcess: ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: bool = False,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
        stdin: bytes | str | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
        output_file: str | BinaryIO | None = None,
    ) -> Execution | AsyncProcess:
        """Run a command: a string by the shell, a list directly.

        With `background` the result is a process that runs until it ends, is killed, or the sandbox
        ends. With `output_file`, a path in the sandbox or a binary file of the caller, that file
        gets all output, redacted, up to the limit of a file's size; the result has the beginning
        and the end, `output_bytes` in all. The `user` is `sandbox`, or `root` in a sandbox with a
        second user; any other raises `BadInput` (`CW-NO-USER`).
        """
        operation = RunCommand(
            argv_of(command), cwd=cwd, background=background, user=parse_user(user)
        )
        if background:
            return await self._start(operation, envs, stdin)
        data = None if stdin is None else to_bytes(stdin, what="standard input")
        perform = partial(self._perform, operation, timeout=timeout, envs=envs, stdin=data)
        heard = text_sink(on_stdout, on_stderr)
        if output_file is None:
            return Execution.of(await perform(sink=heard))

        async def run(keep: OutputSink) -> Outcome:
            return await perform(sink=both_sinks(keep, heard), spills=True)

        if not isinstance(output_file, str):
            return Execution.of(await run(file_sink(output_file)))
        with OutputSpool() as spool:
            return Execution.of(
                await run_into_file(self._host.perform, run, path=output_file, spool=spool)
            )

    async def _perform(self, operation: RunCommand, **options: Unpack[CallOptions]) -> Outcome:
        """As an unknown name, a user that this sandbox lacks is an error of the caller."""
        outcome = await self._host.perform(operation, **options)
        if outcome.error is not None and outcome.error.code == NO_USER:
            raise outcome.error.to_exception()
        return outcome

    async def terminal(
        self,
        command: str | Sequence[str] = ("/bin/sh", "-i"),
        *,
        rows: int = ROWS,
        columns: int = COLUMNS,
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
    ) -> AsyncProcess:
        """Start a program in the background on a terminal of its own: a shell, an editor."""
        operation = RunCommand(
            argv_of(command),
            cwd=cwd,
            background=True,
            terminal=(rows, columns),
            user=parse_user(user),
        )
        return await self._start(operation, {"TERM": "xterm-256color", **(envs or {})}, None)

    async def _start(
        self, operation: RunCommand, envs: Mapping[str, str] | None, stdin: bytes | str | None
    ) -> AsyncProcess:
        data = None if stdin is None else to_bytes(stdin, what="standard input")
        outcome = await self._host.perform(operation, envs=envs, stdin=data)
        return AsyncProcess(self._host, _info(outcome))

    async def list(self) -> Sequence[ProcessInfo]:
        """The background programs, including ended ones."""
        outcome = _raise_for_error(await self._host.perform(ProcessOperation("list")))
        return tuple(outcome.payload)

    async def connect(self, process: int) -> AsyncProcess:
        """A program that was started before, by its id."""
        for info in await self.list():
            if info.id == process:
                return AsyncProcess(self._host, info)
        raise CellwallError(
            f"no background process {process}",
            hint="`commands.list()` lists them.",
            code="CW-NO-PROCESS",
        )

    async def kill(self, process: int) -> None:
        """End a background program and all its children."""
        operation = ProcessOperation("signal", process, number=signals.SIGKILL)
        _raise_for_error(await self._host.perform(operation))


class AsyncProcess:
    """A program in the background of a sandbox."""

    def __init__(self, host: Host, info: ProcessInfo) -> None:
        self._host = host
        self.id = info.id
        self.command = info.command

    async def info(self) -> ProcessInfo:
        for info in await AsyncCommands(self._host).list():
            if info.id == self.id:
                return info
        raise CellwallError("the sandbox does not know this process any more", code="CW-NO-PROCESS")

    async def wait(self, timeout: float | None = None) -> Execution:
        """Wait until the program ends or the time is over; returns the unread output.

        `exit_code` is None if it still runs.
        """
        operation = ProcessOperation("wait", self.id)
        return await self._read(operation, timeout)

    async def read(self) -> Execution:
        """The output since the last read, without waiting."""
        operation = ProcessOperation("read", self.id)
        return await self._read(operation)

    async def follow(self, timeout: float | None = None) -> Execution:
        """The output since the last read; waits for output or the end of the program."""
        operation = ProcessOperation("follow", self.id)
        return await self._read(operation, timeout)

    async def _read(self, operation: ProcessOperation, timeout: float | None = None) -> Execution:
        outcome = await self._host.perform(operation, timeout=timeout)
        return Execution.of(_raise_for_error(outcome))

    async def send_stdin(self, data: str | bytes) -> None:
        await self._do(ProcessOperation("write", self.id, to_bytes(data, what="standard input")))

    async def close_stdin(self) -> None:
        await self._do(ProcessOperation("close_stdin", self.id))

    async def send_signal(self, number: int) -> None:
        await self._do(ProcessOperation("signal", self.id, number=number))

    async def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal."""
        await self._do(ProcessOperation("resize", self.id, size=(rows, columns)))

    async def kill(self) -> None:
        """End the program and all its children."""
        await self.send_signal(signals.SIGKILL)

    async def _do(self, operation: ProcessOperation) -> None:
        _raise_for_error(await self._host.perform(operation))


def _raise_for_error(outcome: Outcome) -> Outcome:
    if outcome.error is not None:
        raise outcome.error.to_exception()
    return outcome


def _info(outcome: Outcome) -> ProcessInfo:
    info = _raise_for_error(outcome).payload
    assert isinstance(info, ProcessInfo)  # noqa: S101  # guaranteed by the port
    return info


def file_sink(target: BinaryIO) -> OutputSink:
    """Writes both streams to a file of the caller, as they come."""

    def deliver(_name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        target.write(chunk)

    return deliver


def both_sinks(first: OutputSink, second: OutputSink | None) -> OutputSink:
    """A sink that passes each chunk on to both."""
    if second is None:
        return first

    def deliver(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        first(name, chunk)
        second(name, chunk)

    return deliver
