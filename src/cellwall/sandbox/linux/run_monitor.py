"""Watches one run from outside until it ends, within its limits.

Only init and the shim are believed. Bytes from the program's own descriptors are output, and are
bounded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, Protocol

import anyio
import anyio.abc

from cellwall.core.errors import CellwallError
from cellwall.core.frames import FrameReader
from cellwall.core.limits import LimitName
from cellwall.core.one_call_loops import HELD_UP_S
from cellwall.core.outcomes import RunResult
from cellwall.core.types import Json
from cellwall.sandbox.linux import run_cgroup
from cellwall.sandbox.linux.channels import SupervisorEnds
from cellwall.sandbox.linux.disk_room import has_room
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.run_ending import EndingPatience, life_signs
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_results import build_result, exceeded_limit, unkillable_process
from cellwall.sandbox.linux.run_serving import serve_for, wait_readable_for

_WATCH_EVERY_S = 0.05
_SHORT_RUN_S = HELD_UP_S
_MESSAGES_OF_A_RUN = 3
"""Init's: that the cell is ready, that the program was started, and its end."""
_FIRST_WALK_S = 0.25
_MAX_CALLS = 16  # concurrent calls of host tools by one run
TEARDOWN_S = 20.0


class MonitoredRun(Protocol):
    """A cold cell, a warm cell, or one task of a live cell."""

    @property
    def channels(self) -> SupervisorEnds: ...

    def status_fd(self) -> int:
        """The descriptor on which the end is reported."""

    def early_end_fd(self) -> int:
        """The descriptor that becomes readable first when a short run ends."""
        return self.status_fd()

    def handle_message(self) -> bool:
        """Handle the next message on `status_fd`; returns whether more may come."""

    def is_ended(self, run_io: RunIO) -> bool: ...

    def begin_watching(self) -> None:
        """The run is not short: init begins to check its file systems."""

    def begin_release(self) -> bool:
        """The run has ended: ask for what `wait_gone` waits for, while its usage is counted.
        Returns whether there is anything."""
        return False

    def counters(self) -> run_cgroup.Counters:
        """Resource usage of this run alone."""

    def pids(self) -> list[int]:
        """Every process of the cell, by its pid outside."""

    def code_pids(self) -> list[int]:
        """The processes that may hold files of the code: all of them, or all but init."""
        return self.pids()

    def kill(self, limit: LimitName | None = None) -> None:
        """End the run because of this limit; repeated until the run has ended."""

    async def wait_gone(self) -> None:
        """After the end: release the run, and return when no process of it is left."""

    async def abandon(self) -> None:
        """Cancelled: end the run and leave nothing. Must not raise."""

    def ended_for(self) -> LimitName | None:
        """The limit because of which all processes of the cell were ended from outside this run."""
        return None

    def exit_words(self) -> list[str]:
        """Init's report of the end, see cell/init.c; empty if there is none."""

    def failure(self, step: str) -> CellwallError: ...

    @property
    def state(self) -> Literal["kept", "lost"] | None:
        """After `wait_gone`: whether a live interpreter has kept its variables."""
        return None


class RunMonitor:
    """The supervisor's side of one run."""

    def __init__(
        self, request: CellRunRequest, run: MonitoredRun, *, stdin: bytes | None = None
    ) -> None:
        self._run = run
        self._limits = request.action.limits
        self._workspace = request.workspace
        self._started = request.started
        self._stdin = stdin
        self._sink = request.sink
        self._spills = request.action.spills_output
        self._output_limit = LimitName.FILE_SIZE if self._spills else LimitName.OUTPUT
        self._tools = None if run.channels.channel is None else request.tools
        self._limit: LimitName | None = None
        self._counters: run_cgroup.Counters | None = None
        """Of a run that has ended."""
        self._is_finished = False
        self._answering = 0
        self._uncharged: UnchargedMemory | None = None
        self._next_walk = self._next_walk_if_filling = 0.0

    async def __aenter__(self) -> RunMonitor:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Whatever happened, cancellation included: nothing of the run stays (ISO-8).
        if not self._is_finished:
            with anyio.CancelScope(shield=True), anyio.move_on_after(TEARDOWN_S):
                await self._run.abandon()

    async def until_end(
        self,
        *,
        max_result_bytes: int,
        frame: tuple[Mapping[str, Json], bytes] | None = None,
        reader: FrameReader | None = None,
        path: str = "cold",
    ) -> RunResult:
        """`frame` asks an interpreter to run code; its `reader` outlives one run."""
        limits = self._limits
        with RunIO(
            self._run.channels,
            stdin=self._stdin,
            sink=self._sink,
            max_output_bytes=limits.file_size_bytes if self._spills else limits.output_bytes,
            keeps_output=not self._spills,
            reader=reader or FrameReader(max_frame_bytes=max_result_bytes, has_blobs=False),
        ) as run_io:
            run_io.register(self._run.status_fd(), self._run.handle_message)
            if frame is not None:
                run_io.send_frame(*frame)
            if self._tools is None:
                await self._serve_until_ended(run_io)
            else:
                async with anyio.create_task_group() as calls:
                    await self._serve_until_ended(run_io, calls)
                    calls.cancel_scope.cancel()
            self._run.begin_release()
            run_io.drain()
        wall_s = time.monotonic() - self._started
        if self._limit is None and run_io.is_over_limit:
            self._limit = self._output_limit
        if self._limit is None and not await has_room(self._workspace, limits, self._run.code_pids):
            self._limit = LimitName.DISK  # a writer faster than the monitor
            self._run.kill(self._limit)  # a process that a live cell keeps may be the writer
        counters = self._counters or self._run.counters()
        await self._run.wait_gone()
        self._is_finished = True
        if run_io.sink_error is not None:
            raise run_io.sink_error
        return build_result(
            self._run.exit_words(),
            limit=self._limit or exceeded_limit(counters, limits) or self._run.ended_for(),
            limits=limits,
            counters=counters,
            run_io=run_io,
            wall_s=wall_s,
            failure=self._run.failure,
            path=path,
            state=self._run.state,
        )

    async def _serve_until_ended(
        self, run_io: RunIO, calls: anyio.abc.TaskGroup | None = None
    ) -> None:
        """Serve, and check regularly the usage that the kernel counts but does not limit itself."""
        limits = self._limits
        deadline = self._started + limits.wall_s
        patience: EndingPatience | None = None
        # Most runs end within milliseconds, and are not watched. Each wake-up before the end would
        # take processor time from the run, so without a sink its output waits in the pipes.
        await self._serve_short_run(run_io, min(_SHORT_RUN_S, limits.wall_s))
        if not self._run.is_ended(run_io):
            self._run.begin_watching()
            # The scan before the run has just walked through the workspace; while the disk fills,
            # the next walk does not wait.
            self._next_walk = time.monotonic() + _FIRST_WALK_S
            self._uncharged = UnchargedMemory(self._run.pids, limits)
        next_look = 0.0
        while not self._run.is_ended(run_io):
            pause_s = _WATCH_EVERY_S
            if patience is None:
                pause_s = min(pause_s, deadline - time.monotonic())
            await serve_for(run_io, max(0.0, pause_s), until=lambda: self._run.is_ended(run_io))
            if patience is None and self._has_ended_before(deadline, run_io):
                return
            if calls is not None:
                self._begin_calls(run_io, calls)
            now = time.monotonic()
            if patience is not None:
                # Its last message may have come while this process did not run.
                if not self._run.is_ended(run_io) and self._is_stuck(patience, now):
                    raise unkillable_process(self._limit)
                self._run.kill(self._limit)
                continue
            limit = self._output_limit if run_io.is_over_limit else None
            if now >= deadline:
                limit = limit or LimitName.WALL
            # By the clock: a program that prints without pause is checked, too.
            if limit is None and now >= next_look:
                limit = exceeded_limit(self._run.counters(), limits)
                next_look = time.monotonic() + _WATCH_EVERY_S
            if limit is None:
                limit = await self._uncounted_limit(now)
            if limit is not None or run_io.sink_error is not None:
                self._limit = limit
                self._run.kill(limit)
                patience = EndingPatience(time.monotonic())

    def _has_ended_before(self, deadline: float, run_io: RunIO) -> bool:
        """Its last usage then decides, and is the one that the result shows."""
        if time.monotonic() >= deadline or not self._run.is_ended(run_io):
            return False
        self._counters = self._run.counters()
        self._limit = exceeded_limit(self._counters, self._limits)
        if self._limit is not None:  # other processes of a live cell go on
            self._run.kill(self._limit)
        return True

    async def _serve_short_run(self, run_io: RunIO, time_s: float) -> None:
        if run_io.has_sink:
            await serve_for(run_io, time_s, until=lambda: self._run.is_ended(run_io))
            return
        short_until = time.monotonic() + time_s
        for _ in range(_MESSAGES_OF_A_RUN):
            left_s = short_until - time.monotonic()
            if left_s <= 0:
                return
            await wait_readable_for(self._run.early_end_fd(), left_s)
            run_io.serve()
            if self._run.is_ended(run_io) or run_io.has_news:
                return

    def _is_stuck(self, patience: EndingPatience, now: float) -> bool:
        if not patience.wants_signs:
            return patience.is_over(now)
        signs = life_signs(self._run.pids(), self._run.counters().cpu_s)
        return patience.is_over(now, signs)

    def _begin_calls(self, run_io: RunIO, calls: anyio.abc.TaskGroup) -> None:
        while run_io.calls and run_io.accepts_answers and self._answering < _MAX_CALLS:
            self._answering += 1
            calls.start_soon(self._answer, run_io, run_io.calls.pop(0))

    async def _answer(self, run_io: RunIO, call: Mapping[str, Json]) -> None:
        assert self._tools is not None  # noqa: S101  # the only caller has checked it
        try:
            answer = await self._tools(call)
            run_io.send_frame({"answer": call.get("call"), **answer})
        finally:
            self._answering -= 1

    async def _uncounted_limit(self, now: float) -> LimitName | None:
        """Limits that neither the cgroup nor a file system of the cell enforces (LIM-6)."""
        uncharged, workspace = self._uncharged, self._workspace
        if (
            uncharged is not None
            and uncharged.is_due()
            and await anyio.to_thread.run_sync(uncharged.exceeds_limit)
        ):
            return LimitName.MEMORY
        if workspace.bounded_by_kernel:
            return None
        # Sooner while the disk fills: a long walk must not leave a fast writer much time.
        is_sooner = now >= self._next_walk_if_filling and workspace.is_filling(self._limits)
        if now < self._next_walk and not is_sooner:
            return None
        is_within = await has_room(workspace, self._limits, self._run.code_pids)
        spent_s = time.monotonic() - now
        self._next_walk = now + 10 * spent_s  # a tenth of one core at most
        self._next_walk_if_filling = now + 2 * spent_s
        return None if is_within else LimitName.DISK
