"""Watches one run from outside until it ends, and never longer than its limits allow.

Only two voices are believed: init's on the status socket and the keeper's on its line. What comes
over the program's own descriptors is output, and is bounded.
"""

from __future__ import annotations

import math
import time
from types import TracebackType

import anyio
import anyio.abc

from holdfast.core.errors import HoldfastError, SandboxFailed
from holdfast.core.limits import LimitName
from holdfast.core.ports import WorkspaceLease
from holdfast.core.types import Action, OutputSink, RunResult
from holdfast.sandbox.native import groups
from holdfast.sandbox.native.conclusion import conclude, limit_of
from holdfast.sandbox.native.standing import Standing
from holdfast.sandbox.native.traffic import Traffic

_WATCH_EVERY_S = 0.05
_TEARDOWN_S = 20.0


class Watch:
    """The supervisor's side of one run."""

    def __init__(
        self,
        action: Action,
        standing: Standing,
        workspace: WorkspaceLease,
        *,
        started: float,
    ) -> None:
        self._action = action
        self._standing = standing
        self._keeper = standing.keeper
        self._channels = standing.channels.outside
        self._workspace = workspace
        self._started = started
        self._limit: LimitName | None = None
        self._failure: HoldfastError | None = None
        self._is_ended = False

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whatever happened, cancellation included: nothing of the run stays (ISO-8).
        if not self._standing.is_gone:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_TEARDOWN_S):
                self._keeper.kill()
                self._keeper.release()
                while await self._keeper.frame():
                    continue

    async def until_end(self, *, sink: OutputSink | None, max_result_bytes: int) -> RunResult:
        group = self._standing.group
        limits = self._action.limits
        with Traffic(
            self._channels,
            stdin=self._action.stdin,
            sink=sink,
            max_output_bytes=limits.output_bytes,
            max_result_bytes=max_result_bytes,
        ) as traffic:
            traffic.serve_when_ready(self._keeper.fileno(), self._hear_keeper)
            await self._serve_until_over(traffic, group)
        wall_s = time.monotonic() - self._started
        if self._limit is None and not await self._has_room():
            self._limit = LimitName.DISK  # a writer quicker than the watch
        counters = group.counters() if group else groups.Counters()
        self._keeper.release()
        await self._until_gone()
        if traffic.sink_error is not None:
            raise traffic.sink_error
        return conclude(
            self._last_words(),
            limit=self._limit or limit_of(counters, limits),
            counters=counters,
            traffic=traffic,
            wall_s=wall_s,
            failure=lambda step: self._failure or self._keeper.failure(step),
        )

    async def _serve_until_over(self, traffic: Traffic, group: groups.Group | None) -> None:
        """Serve, and look now and then at what the kernel counts but does not stop by itself."""
        limits = self._action.limits
        deadline = self._started + limits.wall_s
        next_walk = math.inf if self._workspace.bounded_by_kernel else 0.0
        is_ending = False
        while not (self._is_ended and traffic.is_over):
            pause_s = min(_WATCH_EVERY_S, deadline - time.monotonic())
            with anyio.move_on_after(max(0.0, pause_s)) as pause:
                await anyio.wait_readable(traffic)
            traffic.serve()
            now = time.monotonic()
            if is_ending:
                if now >= deadline:
                    raise _stuck()
                continue
            limit = LimitName.OUTPUT if traffic.is_too_much else None
            if now >= deadline:
                limit = limit or LimitName.WALL
            if pause.cancelled_caught and group is not None:
                limit = limit or limit_of(group.counters(), limits)
            if limit is None and now >= next_walk:
                limit = None if await self._has_room() else LimitName.DISK
                next_walk = now + 10 * (time.monotonic() - now)  # a tenth of one core at most
            if limit is not None or traffic.sink_error is not None:
                self._limit, is_ending = limit, True
                self._keeper.kill()
                deadline = now + _TEARDOWN_S

    def _hear_keeper(self) -> bool:
        match self._keeper.heard():
            case ["fail", step, *rest]:
                self._failure = self._keeper.failure(" ".join([step, *rest]))
            case ["ended", *_] | []:  # or the keeper itself is gone
                self._is_ended = True
            case _:  # "hello", or nothing yet
                pass
        return not self._is_ended

    async def _until_gone(self) -> None:
        while words := await self._keeper.frame():
            match words:
                case ["gone", left]:
                    self._standing.is_gone = left == "0"
                    if not self._standing.is_gone:
                        raise _stuck()
                    return
        # The keeper itself was killed: nobody said that the group is gone, so it is discarded.

    async def _has_room(self) -> bool:
        if self._workspace.bounded_by_kernel:
            return True
        limits = self._action.limits
        return await anyio.to_thread.run_sync(self._workspace.has_room, limits)

    def _last_words(self) -> list[str]:
        """Init sends one word before it ends, so it is already here, or will never be."""
        try:
            return self._channels.status.recv(256).decode("ascii", "replace").split()
        except OSError:
            return []


def _stuck() -> SandboxFailed:
    return SandboxFailed(
        "a process of the run could not be ended",
        mend="It hangs inside the kernel; look at the host's storage.",
        code="HF-LEFTOVER",
    )
