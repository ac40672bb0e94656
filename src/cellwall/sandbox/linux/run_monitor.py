"""Watches one run from outside until it ends, and never longer than its limits allow.

Only init's voice and the keeper's are believed. What comes over the program's own descriptors is
output, and is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

import anyio
import anyio.abc

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.frames import FrameReader
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import ToolCaller, WorkspaceLease
from cellwall.core.types import Action, Json, OutputSink
from cellwall.sandbox.linux import run_cgroup
from cellwall.sandbox.linux.channels import Outside
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.run_io import Traffic
from cellwall.sandbox.linux.run_result import conclude, limit_of
from cellwall.sandbox.linux.unlinked_files import find_unlinked_files

_WATCH_EVERY_S = 0.05
_MOMENT_S = 0.004
_MAX_CALLS = 16  # of the host's tools, by one run at once
TEARDOWN_S = 20.0


class Running(Protocol):
    """What can be watched: a cold cell, a warm one, or one task of a live one."""

    @property
    def channels(self) -> Outside: ...

    def voice(self) -> int:
        """The descriptor on which its end is told."""

    def likely_end(self) -> int:
        """The descriptor on which a short run's end is noticed first."""

    def hear(self) -> bool:
        """Take in what was told, and say whether more may come."""

    def is_ended(self, traffic: Traffic) -> bool: ...

    def goes_on(self) -> None:
        """It is no short run: whoever looks at what fills up inside should begin to."""

    def counters(self) -> run_cgroup.Counters:
        """What the kernel counted for this run alone."""

    def pids(self) -> list[int]:
        """Everything that runs in the cell, by its numbers outside."""

    def kill(self, limit: LimitName | None = None) -> None:
        """End it, for this limit; said again and again until it has ended."""

    async def until_gone(self) -> None:
        """After the end: let go of it, and return when nothing of the run is left."""

    async def abandon(self) -> None:
        """The run is of no interest any more: end it, leave nothing. Must not raise."""

    def last_words(self) -> list[str]: ...

    def failure(self, step: str) -> CellwallError: ...


class Watch:
    """The supervisor's side of one run."""

    def __init__(
        self,
        action: Action,
        running: Running,
        workspace: WorkspaceLease,
        *,
        started: float,
        stdin: bytes | None = None,
        tools: ToolCaller | None = None,
    ) -> None:
        self._action = action
        self._running = running
        self._workspace = workspace
        self._started = started
        self._stdin = stdin
        self._tools = tools
        self._limit: LimitName | None = None
        self._is_finished = False
        self._answering = 0
        self._uncharged: UnchargedMemory | None = None
        self._next_walk = self._next_walk_if_filling = 0.0

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whatever happened, cancellation included: nothing of the run stays (ISO-8).
        if not self._is_finished:
            with anyio.CancelScope(shield=True), anyio.move_on_after(TEARDOWN_S):
                await self._running.abandon()

    async def until_end(
        self,
        *,
        sink: OutputSink | None,
        max_result_bytes: int,
        request: tuple[Mapping[str, Json], bytes] | None = None,
        reader: FrameReader | None = None,
    ) -> RunResult:
        """`request` is what an interpreter is told to run; `reader` outlives one run of it."""
        limits = self._action.limits
        with Traffic(
            self._running.channels,
            stdin=self._stdin,
            sink=sink,
            max_output_bytes=limits.output_bytes,
            reader=reader or FrameReader(max_frame_bytes=max_result_bytes, has_blobs=False),
        ) as traffic:
            traffic.serve_when_ready(self._running.voice(), self._running.hear)
            if request is not None:
                traffic.tell(*request)
            if self._tools is None:
                await self._serve_until_ended(traffic)
            else:
                async with anyio.create_task_group() as calls:
                    await self._serve_until_ended(traffic, calls)
                    calls.cancel_scope.cancel()
            traffic.drain()
        wall_s = time.monotonic() - self._started
        if self._limit is None and traffic.is_too_much:
            self._limit = LimitName.OUTPUT
        if self._limit is None and not await self._has_room():
            self._limit = LimitName.DISK  # a writer quicker than the watch
        counters = self._running.counters()
        await self._running.until_gone()
        self._is_finished = True
        if traffic.sink_error is not None:
            raise traffic.sink_error
        return conclude(
            self._running.last_words(),
            limit=self._limit or limit_of(counters, limits),
            counters=counters,
            traffic=traffic,
            wall_s=wall_s,
            failure=self._running.failure,
        )

    async def _serve_until_ended(
        self, traffic: Traffic, calls: anyio.abc.TaskGroup | None = None
    ) -> None:
        """Serve, and look now and then at what the kernel counts but does not stop by itself."""
        limits = self._action.limits
        deadline = self._started + limits.wall_s
        is_ending = False
        if not traffic.is_listened_to:
            # Most runs are over in a moment. Each word that woke us before their end would take a
            # processor from them; what they say meanwhile waits in its pipes.
            with anyio.move_on_after(min(_MOMENT_S, limits.wall_s)):
                await anyio.wait_readable(self._running.likely_end())
            traffic.serve()
        if not self._running.is_ended(traffic):
            self._running.goes_on()
            self._uncharged = UnchargedMemory(self._running.pids, limits)
        next_look = 0.0
        while not self._running.is_ended(traffic):
            pause_s = min(_WATCH_EVERY_S, deadline - time.monotonic())
            with anyio.move_on_after(max(0.0, pause_s)):
                await anyio.wait_readable(traffic)
            traffic.serve()
            while calls is not None and traffic.calls and traffic.is_read and self._is_free():
                self._answering += 1
                calls.start_soon(self._answer, traffic, traffic.calls.pop(0))
            now = time.monotonic()
            if is_ending:
                if now >= deadline:
                    raise stuck()
                self._running.kill(self._limit)
                continue
            limit = LimitName.OUTPUT if traffic.is_too_much else None
            if now >= deadline:
                limit = limit or LimitName.WALL
            # By the clock: a program that never stops to print is looked at, too.
            if limit is None and now >= next_look:
                limit = limit_of(self._running.counters(), limits)
                next_look = time.monotonic() + _WATCH_EVERY_S
            if limit is None:
                limit = await self._uncounted_limit(now)
            if limit is not None or traffic.sink_error is not None:
                self._limit, is_ending = limit, True
                self._running.kill(limit)
                deadline = now + TEARDOWN_S

    def _is_free(self) -> bool:
        return self._answering < _MAX_CALLS

    async def _answer(self, traffic: Traffic, call: Mapping[str, Json]) -> None:
        assert self._tools is not None  # noqa: S101  # only then are calls answered
        try:
            answer = await self._tools(call)
            traffic.tell({"answer": call.get("call"), **answer})
        finally:
            self._answering -= 1

    async def _uncounted_limit(self, now: float) -> LimitName | None:
        """What neither the cgroup nor a file system of the cell's own counts (LIM-6)."""
        uncharged, workspace = self._uncharged, self._workspace
        if (
            uncharged is not None
            and uncharged.is_due()
            and await anyio.to_thread.run_sync(uncharged.is_too_much)
        ):
            return LimitName.MEMORY
        if workspace.bounded_by_kernel:
            return None
        # Sooner where the disk shrinks: a long walk must not leave a quick writer much time.
        is_sooner = now >= self._next_walk_if_filling and workspace.is_filling(self._action.limits)
        if now < self._next_walk and not is_sooner:
            return None
        has_room = await self._has_room()
        spent_s = time.monotonic() - now
        self._next_walk = now + 10 * spent_s  # a tenth of one core at most
        self._next_walk_if_filling = now + 2 * spent_s
        return None if has_room else LimitName.DISK

    async def _has_room(self) -> bool:
        if self._workspace.bounded_by_kernel:
            return True
        return await anyio.to_thread.run_sync(self._look_at_disk)

    def _look_at_disk(self) -> bool:
        unlinked = find_unlinked_files(self._running.pids)
        return self._workspace.has_room(self._action.limits, unlinked)


def stuck() -> SandboxFailed:
    """The kernel does not let a process die."""
    return SandboxFailed(
        "a process of the run could not be ended",
        hint="It hangs inside the kernel; look at the host's storage.",
        code="CW-LEFTOVER",
    )
