"""Watches one run from outside until it ends, within its limits, and builds its result.

Only init and the shim are believed. Bytes from the program's own descriptors are output, and are
bounded.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import anyio
import anyio.abc

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, WorkspaceError
from cellwall.core.frames import FrameReader
from cellwall.core.limits import MIB, LimitName, Limits
from cellwall.core.outcomes import Finding, RunResult, Usage
from cellwall.core.types import Json
from cellwall.sandbox.linux import run_cgroup
from cellwall.sandbox.linux.channels import SupervisorEnds
from cellwall.sandbox.linux.disk_room import has_room
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.run_cgroup import Counters
from cellwall.sandbox.linux.run_ending import EndingPatience, life_signs
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_serving import serve_for, wait_readable_for

_WATCH_EVERY_S = 0.05
_SHORT_RUN_S = 0.004
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

    def exit_words(self) -> list[str]:
        """Init's report of the end, see cell/init.c; empty if there is none."""

    def failure(self, step: str) -> CellwallError: ...


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
        counters = self._run.counters()
        await self._run.wait_gone()
        self._is_finished = True
        if run_io.sink_error is not None:
            raise run_io.sink_error
        return build_result(
            self._run.exit_words(),
            limit=self._limit or exceeded_limit(counters, self._limits),
            limits=self._limits,
            counters=counters,
            run_io=run_io,
            wall_s=wall_s,
            failure=self._run.failure,
            path=path,
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
        short_s = min(_SHORT_RUN_S, limits.wall_s)
        if run_io.has_sink:
            await serve_for(run_io, short_s, until=lambda: self._run.is_ended(run_io))
        else:
            await self._serve_short_run(run_io, short_s)
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
            while (
                calls is not None
                and run_io.calls
                and run_io.accepts_answers
                and self._answering < _MAX_CALLS
            ):
                self._answering += 1
                calls.start_soon(self._answer, run_io, run_io.calls.pop(0))
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

    async def _serve_short_run(self, run_io: RunIO, time_s: float) -> None:
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


def unkillable_process(limit: LimitName | None = None) -> SandboxFailed:
    """A process in uninterruptible sleep. `limit`: because of which the run was to end."""
    after = "" if limit is None else f" after the run had reached its limit ({limit.value})"
    return SandboxFailed(
        f"a process of the run could not be ended{after}",
        hint="It hangs inside the kernel; look at the host's storage.",
        code="CW-LEFTOVER",
    )


def build_result(
    words: list[str],
    *,
    limit: LimitName | None,
    limits: Limits,
    counters: Counters,
    run_io: RunIO,
    wall_s: float,
    failure: Callable[[str], CellwallError],
    path: str = "cold",
) -> RunResult:
    """A failure of the sandbox raises instead, and is never shown as output (ERR-2)."""
    cpu_s, peak_bytes = 0.0, 0
    exit_code: int | None = None
    match words:
        case ["exit", _task, kind, number, limit_word, cpu_us, peak_kib]:
            exit_code = int(number) + (128 if kind == "signal" else 0)
            cpu_s, peak_bytes = int(cpu_us) / 1e6, int(peak_kib) * 1024
            if limit_word != "-":
                limit = limit or LimitName(limit_word)
            is_late = counters.is_sampled and peak_bytes > _unseen_bytes(limits)
            if is_late and limit is None and exit_code:
                # RLIMIT_DATA refused memory before a sample was taken.
                limit, exit_code = LimitName.MEMORY, 128 + signal.SIGKILL
        case ["noexec", _task, number]:
            raise start_failure(int(number))
        case ["fail", "protect-open", *_]:
            raise WorkspaceError(
                "the workspace changed while it was made ready",
                hint="Another program or run is moving its files about; try again.",
                code="CW-WORKSPACE-CHANGED",
            )
        case ["fail", step, *rest]:
            raise failure(" ".join([step, *rest]))
    if exit_code is None and limit is None:
        raise failure("ended-without-a-word")
    report = run_io.report or {}
    results = report.get("results")
    text = report.get("text")
    return RunResult(
        exit_code=exit_code,
        stdout=bytes(run_io.streams["stdout"]),
        stderr=bytes(run_io.streams["stderr"]),
        truncated=limit is LimitName.OUTPUT,
        limit=limit,
        value=report.get("value"),
        text=text if isinstance(text, str) else None,
        results=tuple(results) if isinstance(results, list) else (),
        code_error=report.get("error"),
        findings=tuple(_findings_of_cuts(run_io)),
        path=path,
        usage=Usage(
            wall_s=wall_s,
            cpu_s=counters.cpu_s if counters.cpu_s is not None else cpu_s,
            memory_peak=counters.memory_peak if counters.memory_peak is not None else peak_bytes,
            io_bytes=counters.io_bytes,
        ),
    )


def _unseen_bytes(limits: Limits) -> int:
    """A peak that only a process over its limit has. ru_maxrss counts mapped files as well."""
    return limits.memory_bytes * 3 // 2 + 32 * MIB


def _findings_of_cuts(run_io: RunIO) -> Iterator[Finding]:
    """The caller would otherwise take the result for complete."""
    if (run_io.report or {}).get("cut"):
        yield Finding(
            "cut",
            "low",
            "the result is larger than a result may be (16,000 texts, 100,000 "
            "entries, 64 KiB of text): the rest is left out. Return less, or write the data to a "
            "file and read the file.",
            where="value",
        )
    if run_io.is_malformed:
        yield Finding(
            "cut",
            "low",
            "the report of the code is malformed or holds too many values: value, "
            "results and error are left out",
            where="value",
        )


def exceeded_limit(counters: Counters, limits: Limits) -> LimitName | None:
    """The limit that was reached, by the counters of the cgroup."""
    if counters.out_of_memory:
        return LimitName.MEMORY
    if counters.forks_refused:
        return LimitName.PROCESSES
    if counters.cpu_s is not None and counters.cpu_s > limits.cpu_s:
        return LimitName.CPU
    return None


_NO_DIRECTORY = 10_000
"""Added by spawn.c to the errno of chdir."""


def start_failure(number: int) -> BadInput:
    """The error for a program that init could not start; `number` comes from init."""
    if number > _NO_DIRECTORY:
        return BadInput(
            f"the working directory cannot be entered: {os.strerror(number - _NO_DIRECTORY)}",
            hint="Name a directory inside the sandbox: /workspace, a directory below it, or /tmp.",
            code="CW-CWD-NOT-FOUND",
        )
    match number:
        case 2:
            return BadInput(
                "no such program inside the sandbox",
                hint="Programs of the host's /usr are there; check the name, install the program "
                "on the host, or give the directory that holds it as the workspace. A .venv needs "
                "the Python that it was made from: where that is not below /usr (pyenv, conda, "
                "uv), name its directory in sandbox.extra_read_only_paths of the configuration.",
                code="CW-COMMAND-NOT-FOUND",
            )
        case 13:
            return BadInput(
                "the program may not be executed",
                hint="Check that the file is executable for everybody (chmod a+rx).",
                code="CW-COMMAND-NOT-EXECUTABLE",
            )
        case 7:
            return BadInput(
                "the arguments are too long for the kernel",
                hint="Give long data through a file or standard input.",
                code="CW-ARGUMENTS-TOO-LONG",
            )
        case _:
            return BadInput(
                f"the kernel could not start the program ({os.strerror(number)})",
                hint="Check that the file is a program for this machine.",
                code="CW-COMMAND-NOT-STARTED",
            )
