"""Watches one run from outside until it ends, and never longer than its limits allow.

Only two voices are believed: init's on the status socket and the keeper's on its line. What comes
over the program's own descriptors is output, and is bounded.
"""

from __future__ import annotations

import json
import math
import os
import time
from types import TracebackType
from typing import Literal

import anyio
import anyio.abc

from holdfast.core.errors import BadInput, HoldfastError, SandboxFailed, WorkspaceError
from holdfast.core.limits import LimitName
from holdfast.core.plain import plain
from holdfast.core.ports import WorkspaceLease
from holdfast.core.types import Action, Json, OutputSink, RunResult, Usage
from holdfast.sandbox.native import cgroups
from holdfast.sandbox.native.channels import Outside
from holdfast.sandbox.native.keeper import Keeper

_CHUNK_BYTES = 65_536
_WATCH_EVERY_S = 0.05
_TEARDOWN_S = 20.0
_MOST_RESULT_VALUES = 200_000


class Watch:
    """The supervisor's side of one run."""

    def __init__(
        self,
        action: Action,
        keeper: Keeper,
        channels: Outside,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        *,
        started: float,
    ) -> None:
        self._action = action
        self._keeper = keeper
        self._channels = channels
        self._workspace = workspace
        self._sink = sink
        self._started = started
        self._streams: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._seen_bytes = 0
        self._result = bytearray()
        self._limit: LimitName | None = None
        self._status: list[str] = []
        self._failure: HoldfastError | None = None
        self._sink_error: Exception | None = None
        self._group: cgroups.Group | None = None
        self._gone = False

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whatever happened, cancellation included: nothing of the run stays (ISO-8).
        with anyio.CancelScope(shield=True), anyio.move_on_after(_TEARDOWN_S):
            if not self._gone:
                self._keeper.kill()
                self._keeper.release()
                while await self._keeper.frame():
                    continue
        self._keeper.close()

    @property
    def is_gone(self) -> bool:
        """The keeper said that nothing of the run is left."""
        return self._gone

    async def group_in_scope(self) -> cgroups.Group:
        """In a user's scope the keeper must first be there to make its group beside it."""
        there = False
        try:
            with anyio.move_on_after(_TEARDOWN_S):
                there = await self._keeper.frame() == ["hello"]
        finally:
            if not there:
                self._keeper.abandon()
        if not there:
            raise self._keeper.failure("systemd-scope")
        return cgroups.group_in_scope(self._keeper.pid)

    async def until_end(self, group: cgroups.Group | None, *, max_result_bytes: int) -> RunResult:
        self._group = group
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, "stdout", self._channels.stdout)
            tasks.start_soon(self._pump, "stderr", self._channels.stderr)
            if self._channels.result is not None:
                tasks.start_soon(self._collect_result, self._channels.result, max_result_bytes)
            if self._channels.stdin is not None:
                tasks.start_soon(self._feed, self._channels.stdin)
            await self._until_ended_or_limit()
        wall_s = time.monotonic() - self._started
        await self._read_status()
        if self._limit is None and not self._workspace.bounded_by_kernel:
            # A writer quicker than the watch.
            self._limit = None if await self._has_room() else LimitName.DISK
        counters = group.counters() if group else cgroups.Counters()
        self._keeper.release()
        await self._until_gone()
        if self._sink_error is not None:
            raise self._sink_error
        return self._conclude(counters, wall_s)

    def _hit(self, limit: LimitName) -> None:
        if self._limit is None:
            self._limit = limit
        self._keeper.kill()

    async def _until_ended(self) -> None:
        while True:
            frame = await self._keeper.frame()
            match frame:
                case ["hello"]:
                    continue
                case ["fail", step, *rest]:
                    self._failure = self._keeper.failure(" ".join([step, *rest]))
                case _:  # "ended", or the keeper itself is gone
                    return

    async def _until_gone(self) -> None:
        while True:
            match await self._keeper.frame():
                case ["gone", left]:
                    self._gone = True
                    if left != "0":
                        raise SandboxFailed(
                            "a process of the run could not be ended",
                            mend="It hangs inside the kernel; look at the host's storage.",
                            code="HF-LEFTOVER",
                        )
                    return
                case []:
                    self._gone = True
                    return

    async def _pump(self, name: Literal["stdout", "stderr"], descriptor: int) -> None:
        kept = self._streams[name]
        most = self._action.limits.output_bytes
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(descriptor)
                continue
            if not chunk:
                return
            room = most - self._seen_bytes
            self._seen_bytes += len(chunk)
            if room < len(chunk):
                self._hit(LimitName.OUTPUT)
                chunk = chunk[: max(0, room)]
            if chunk:
                kept += chunk
                self._deliver(name, chunk)

    def _deliver(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        """A listener that fails ends the run; its own error is what the caller gets."""
        if self._sink is None:
            return
        try:
            self._sink(name, chunk)
        except Exception as error:  # noqa: BLE001  # whatever the caller's own code raises
            self._sink, self._sink_error = None, error
            self._keeper.kill()

    async def _collect_result(self, descriptor: int, most: int) -> None:
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(descriptor)
                continue
            if not chunk:
                return
            if len(self._result) <= most:
                self._result += chunk
            if len(self._result) > most:
                self._hit(LimitName.OUTPUT)

    async def _feed(self, descriptor: int) -> None:
        view = memoryview(self._action.stdin or b"")
        try:
            while view:
                try:
                    view = view[os.write(descriptor, view) :]
                except BlockingIOError:
                    await anyio.wait_writable(descriptor)
        except OSError:  # the program closed its input or ended: its right
            pass
        finally:
            self._channels.close_stdin()

    async def _until_ended_or_limit(self) -> None:
        """Wait, and look now and then at what the kernel counts but does not stop by itself."""
        deadline = self._started + self._action.limits.wall_s
        next_walk = math.inf if self._workspace.bounded_by_kernel else 0.0
        while self._limit is None:
            pause_s = min(_WATCH_EVERY_S, deadline - time.monotonic())
            with anyio.move_on_after(max(0.0, pause_s)):
                await self._until_ended()
                return
            now = time.monotonic()
            limit = LimitName.WALL if now >= deadline else None
            if self._group is not None:
                limit = _limit_of(self._group.counters(), self._action) or limit
            if limit is None and now >= next_walk:
                limit = None if await self._has_room() else LimitName.DISK
                next_walk = now + 10 * (time.monotonic() - now)  # a tenth of one core at most
            if limit is not None:
                self._hit(limit)
        await self._until_ended()

    async def _has_room(self) -> bool:
        limits = self._action.limits
        return await anyio.to_thread.run_sync(self._workspace.has_room, limits)

    async def _read_status(self) -> None:
        """Init sends one word before it ends, so it is already here, or will never be."""
        try:
            self._status = self._channels.status.recv(256).decode("ascii", "replace").split()
        except OSError:
            self._status = []

    def _conclude(self, counters: cgroups.Counters, wall_s: float) -> RunResult:
        status = self._status
        cpu_s, peak = 0.0, 0
        exit_code: int | None = None
        match status:
            case ["exit", kind, number, limit, cpu_us, peak_kib]:
                exit_code = int(number) + (128 if kind == "signal" else 0)
                cpu_s, peak = int(cpu_us) / 1e6, int(peak_kib) * 1024
                if limit != "-" and self._limit is None:
                    self._limit = LimitName(limit)
            case ["noexec", number]:
                raise _not_started(int(number))
            case ["fail", "protect-open", *_]:
                raise WorkspaceError(
                    "the workspace changed while it was made ready",
                    mend="Another program or run is moving its files about; try again.",
                    code="HF-WORKSPACE-CHANGED",
                )
            case ["fail", step, *rest]:
                raise self._keeper.failure(" ".join([step, *rest]))
        limit_name = self._limit or _limit_of(counters, self._action)
        if exit_code is None and limit_name is None:
            raise self._failure or self._keeper.failure("ended-without-a-word")
        usage = Usage(
            wall_s=wall_s,
            cpu_s=counters.cpu_s if counters.cpu_s is not None else cpu_s,
            memory_peak=counters.memory_peak if counters.memory_peak is not None else peak,
            io_bytes=counters.io_bytes,
        )
        report = _parse_report(bytes(self._result))
        results = report.get("results")
        text = report.get("text")
        return RunResult(
            exit_code=exit_code,
            stdout=bytes(self._streams["stdout"]),
            stderr=bytes(self._streams["stderr"]),
            truncated=limit_name is LimitName.OUTPUT,
            limit=limit_name,
            value=report.get("value"),
            text=text if isinstance(text, str) else None,
            results=tuple(results) if isinstance(results, list) else (),
            code_error=report.get("error"),
            usage=usage,
        )


def _limit_of(counters: cgroups.Counters, action: Action) -> LimitName | None:
    if counters.out_of_memory:
        return LimitName.MEMORY
    if counters.forks_refused:
        return LimitName.PROCESSES
    if counters.cpu_s is not None and counters.cpu_s > action.limits.cpu_s:
        return LimitName.CPU
    return None


def _parse_report(text: bytes) -> dict[str, Json]:
    """The code's own words about itself: JSON or nothing, whatever it tries (never unpickled)."""
    # A few bytes of text can become a hundred in memory: `{},{},{},…`.
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_RESULT_VALUES:
        return {}
    try:
        report = plain(json.loads(text)) if text else {}
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _not_started(number: int) -> BadInput:
    match number:
        case 2:
            return BadInput(
                "no such program inside the sandbox",
                mend="Programs of the host's /usr are there; check the name, or give the directory "
                "that holds it as the workspace.",
                code="HF-COMMAND-NOT-FOUND",
            )
        case 13:
            return BadInput(
                "the program may not be executed",
                mend="Check that the file is executable for everybody (chmod a+rx).",
                code="HF-COMMAND-NOT-EXECUTABLE",
            )
        case 7:
            return BadInput(
                "the arguments are too long for the kernel",
                mend="Give long data through a file or standard input.",
                code="HF-ARGUMENTS-TOO-LONG",
            )
        case _:
            return BadInput(
                f"the kernel could not start the program ({os.strerror(number)})",
                mend="Check that the file is a program for this machine.",
                code="HF-COMMAND-NOT-STARTED",
            )
