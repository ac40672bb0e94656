"""A program in a live cell whose standard input and output another program's protocol uses.

Read and written on the event loop, without a thread in between: a protocol of small messages waits
for each of them. Nothing is read ahead, so a program that floods its output blocks on its own pipe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
import anyio.lowlevel

from cellwall.core.descriptor_reader import DescriptorReader
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import RunResult, Usage
from cellwall.core.tool_servers import ServerPipe
from cellwall.sandbox.linux.channels import write_pipe
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell
from cellwall.sandbox.linux.run_results import start_failure

_CHUNK_BYTES = 65_536
_KEPT_ERROR_BYTES = 16 * 1024
_ERROR_BYTES_PER_S = 4 * 1024 * 1024
_END_WITHIN_S = 10.0


class CarriedProcess:
    """Implements `ServerPipe`. One reader and one writer at a time."""

    def __init__(self, cell: LiveCell, task: CellTask) -> None:
        self._cell = cell
        self._task = task
        self._errors = bytearray()
        self._output = DescriptorReader(task.channels.stdout)
        self._waiting: set[anyio.CancelScope] = set()
        self._ended_by_itself = False

    async def serve(self, hold: Callable[[ServerPipe], Awaitable[None]]) -> RunResult:
        """Carry the pipes until `hold` returns; then end the program with all it has started."""
        problem: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch)
                tasks.start_soon(self._keep_errors)
                try:
                    await hold(self)
                except Exception as error:  # noqa: BLE001  # raised below, not as a group
                    problem = error
                tasks.cancel_scope.cancel()
        finally:
            self._output.close()
            with anyio.CancelScope(shield=True):
                await self._end()
        match self._task.words:
            case ["noexec", _tag, number]:
                raise start_failure(int(number)) from problem
        if problem is not None:
            raise problem
        return self._result()

    async def receive(self) -> bytes:
        # Attack: a flood without a pause would keep the event loop from all other tasks. Each
        # chunk is one of its callbacks.
        if not self._task.is_ended:
            chunk = await self._output.read()  # nothing at the end of the program as well
            if chunk or not self._task.is_ended:
                return chunk
        # A process that the program left behind may still hold the pipe.
        await anyio.lowlevel.checkpoint()
        with suppress(BlockingIOError):
            return self._output.take() or os.read(self._task.channels.stdout, _CHUNK_BYTES)
        return b""

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            stdin = self._open_stdin()
            try:
                rest = rest[write_pipe(stdin, rest) :]
            except BlockingIOError:
                with self._until_end():
                    await anyio.wait_writable(stdin)

    def send_now(self, data: bytes) -> int:
        try:
            return write_pipe(self._open_stdin(), data)
        except BlockingIOError:
            return 0

    def _open_stdin(self) -> int:
        stdin = self._task.channels.stdin
        if stdin is None or self._task.is_ended:
            raise BrokenPipeError
        return stdin

    def errors(self) -> bytes:
        return bytes(self._errors)

    @contextmanager
    def _until_end(self) -> Iterator[None]:
        """A wait for room in the pipe ends with the program."""
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    async def _watch(self) -> None:
        """Only init is believed about the end of the program."""
        await self._handle_until_end()
        self._output.wake()
        for scope in list(self._waiting):
            scope.cancel()

    async def _handle_until_end(self) -> None:
        while self._task.handle_message():
            await anyio.wait_readable(self._task.channels.status.fileno())

    async def _keep_errors(self) -> None:
        stderr = self._task.channels.stderr
        if stderr is None:
            return
        while True:
            try:
                chunk = os.read(stderr, _CHUNK_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(stderr)
                continue
            if not chunk:
                return
            self._errors += chunk
            del self._errors[:-_KEPT_ERROR_BYTES]
            # A flood waits in the program's own pipe and costs little here.
            await anyio.sleep(len(chunk) / _ERROR_BYTES_PER_S)

    async def _end(self) -> None:
        self._ended_by_itself = self._task.is_ended
        if not self._task.is_ended:
            self._cell.parts.init.send("end", self._task.tag)
            with anyio.move_on_after(_END_WITHIN_S):
                await self._handle_until_end()
        self._task.close()

    def _result(self) -> RunResult:
        code, limit, cpu_s, peak = None, None, 0.0, 0
        match self._task.words:
            case ["exit", _tag, kind, number, word, cpu_us, peak_kib]:
                if self._ended_by_itself:
                    code = int(number) + (128 if kind == "signal" else 0)
                limit = None if word == "-" else LimitName(word)
                cpu_s, peak = int(cpu_us) / 1e6, int(peak_kib) * 1024
        wall_s = time.monotonic() - self._task.started
        return RunResult(
            exit_code=code,
            stderr=bytes(self._errors),
            limit=limit,
            usage=Usage(wall_s=wall_s, cpu_s=cpu_s, memory_peak=peak),
            path=self._cell.parts.path,
        )
