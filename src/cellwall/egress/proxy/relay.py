"""A relay between two sockets for bytes that are not inspected.

The kernel moves bulk data with splice(2): socket -> pipe -> socket, without a copy into this
process. A direction gets a pipe only after some data, so that a thousand idle connections need no
descriptors beyond their own two.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from cellwall.core.errors import EgressRefused
from cellwall.egress.limits import Direction, SessionBudget, timeout_error
from cellwall.egress.proxy.streams import PeerClosed, reset

_BULK_BYTES = 512 * 1024
"""A direction that has moved this much gets a pipe."""
_ROUNDS = 8
"""Pieces per callback, before other connections run."""
_MOVE = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


GuardCheck = Callable[[bytes], bool]
"""Gets all bytes from the client so far: True lets them pass, False waits for more."""


InspectBytes = Callable[[bytes], Coroutine[Any, Any, None]]
"""Gets bytes piece by piece; raises `EgressRefused` for bytes that must not pass."""


class SocketRelay:
    """One connection; owns both sockets and closes them.

    With a guard no byte of the client passes before the guard has allowed it. When the guard
    refuses, the client's socket stays open for the caller's refusal.
    """

    def __init__(
        self,
        client: socket.socket,
        upstream: socket.socket,
        *,
        pipes: PipePool,
        budget: SessionBudget,
        idle_timeout_s: float,
        first_up: bytes = b"",
        guard: GuardCheck | None = None,
        guard_timeout_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout_s = idle_timeout_s
        self._last_active_s = self._loop.time()
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._sockets = (client, upstream)
        self._up = _RelayDirection("up", client, upstream, self, pipes=pipes, budget=budget)
        self._down = _RelayDirection("down", upstream, client, self, pipes=pipes, budget=budget)
        self._up.guard = guard
        self._first_up = first_up
        self._guard_until_s = (
            None if guard_timeout_s is None else self._loop.time() + guard_timeout_s
        )
        self.was_refused_by_guard = False

    async def run(self) -> None:
        """Run until both sides have ended; raises `PeerClosed` or `EgressRefused` otherwise."""
        for sock in self._sockets:
            sock.setblocking(False)
        self._timer = self._loop.call_later(0, self._check_time)
        in_order = False
        try:
            self._up.start(self._first_up)
            self._down.start()
            await self._outcome
            in_order = True
        finally:
            self._timer.cancel()
            self._up.stop()
            self._down.stop()
            self._close(in_order=in_order)

    def _close(self, *, in_order: bool) -> None:
        client, upstream = self._sockets
        for sock in (upstream,) if self.was_refused_by_guard else (client, upstream):
            if in_order:
                sock.close()
            else:
                reset(sock)

    def look_at(self, look: InspectBytes) -> None:
        """Inspect all further bytes from the client."""
        self._up.look = look

    @property
    def received_bytes(self) -> tuple[int, int]:
        """From the client and from the server, also when the relay ended early."""
        return self._up.received_bytes, self._down.received_bytes

    def touch(self) -> None:
        self._last_active_s = self._loop.time()

    def end(self, error: Exception | None = None) -> None:
        if self._outcome.done():
            return
        if error is not None:
            self._outcome.set_exception(error)
        elif self._up.is_done and self._down.is_done:
            self._outcome.set_result(None)

    def guard_refused(self, error: EgressRefused) -> None:
        self.was_refused_by_guard = True
        self.end(error)

    def _check_time(self) -> None:
        now_s = self._loop.time()
        due_s = self._last_active_s + self._idle_timeout_s
        if self._up.guard is not None and self._guard_until_s is not None:
            # The guard has one deadline, however slowly bytes arrive (slow-loris).
            if now_s >= self._guard_until_s:
                self.guard_refused(timeout_error("the first message of a connection"))
                return
            due_s = min(due_s, self._guard_until_s)
        if now_s >= due_s:
            self.end(timeout_error("the next byte of a connection"))
        else:
            self._timer = self._loop.call_at(due_s, self._check_time)


class _RelayDirection:
    """One direction: a state machine driven by loop callbacks."""

    def __init__(
        self,
        direction: Direction,
        source: socket.socket,
        target: socket.socket,
        relay: SocketRelay,
        *,
        pipes: PipePool,
        budget: SessionBudget,
    ) -> None:
        self.is_done = False
        self.pending = memoryview(b"")
        self.guard: GuardCheck | None = None
        self.look: InspectBytes | None = None
        self._held_back = b""
        self._direction: Direction = direction
        self._source = source
        self._target = target
        self._relay = relay
        self._pipes = pipes
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._pipe: tuple[int, int] | None = None
        self._in_pipe = 0
        self.received_bytes = 0
        self._has_ended = False
        self._reads = False
        self._writes = False
        self._pause: asyncio.TimerHandle | None = None
        self._inspection: asyncio.Task[None] | None = None

    def start(self, first: bytes = b"") -> None:
        """`first`: bytes that the source has sent before."""
        self._step(lambda: self._begin(first))

    def _begin(self, first: bytes) -> None:
        if first:
            self._budget.admit(len(first))
            self._spend(len(first))
            self._pass_on(memoryview(first))
        self._flow()

    def stop(self) -> None:
        self._watch(reads=False, writes=False)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._inspection is not None:
            self._inspection.cancel()
        if self._pipe is not None:
            self._pipes.release(self._pipe, is_empty=self._in_pipe == 0)
            self._pipe = None

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EgressRefused as error:
            self._relay.end(error)
        except OSError:
            self._relay.end(PeerClosed())

    def _on_ready(self) -> None:
        self._step(self._flow)

    def _watch(self, *, reads: bool, writes: bool) -> None:
        if reads != self._reads:
            self._reads = reads
            if reads:
                self._loop.add_reader(self._source.fileno(), self._on_ready)
            else:
                self._loop.remove_reader(self._source.fileno())
        if writes != self._writes:
            self._writes = writes
            if writes:
                self._loop.add_writer(self._target.fileno(), self._on_ready)
            else:
                self._loop.remove_writer(self._target.fileno())

    def _flow(self) -> None:
        """Move bytes until one side blocks; then wait for that side."""
        for _ in range(_ROUNDS):
            if self._relay.was_refused_by_guard:
                return
            if not self._empty():
                self._watch(reads=False, writes=True)
                return
            if self._inspection is not None:
                self._watch(reads=False, writes=False)
                return
            if self._has_ended:
                self._finish()
                return
            if self._pause is not None:
                self._watch(reads=False, writes=False)
                return
            if not self._fill():
                break
        self._watch(reads=not self._has_ended, writes=not self._is_empty)
        if self._has_ended and self._is_empty:
            self._finish()

    @property
    def _is_empty(self) -> bool:
        return not self._in_pipe and not self.pending

    def _fill(self) -> bool:
        """Receive from the source; False if it would block."""
        self._budget.check(self._direction)
        is_looked_at = self.guard is not None or self.look is not None
        if self._pipe is None and not is_looked_at and self.received_bytes >= _BULK_BYTES:
            self._pipe = self._pipes.take()
        room = self._budget.room(self._direction)
        try:
            if self._pipe is not None:
                count = os.splice(
                    self._source.fileno(), self._pipe[1], min(PIPE_BYTES, room), flags=_MOVE
                )
                self._in_pipe += count
            else:
                buffer = self._pipes.buffer[:room]
                count = self._source.recv_into(buffer)
                self._pass_on(buffer[:count])
        except (BlockingIOError, InterruptedError):
            return False
        if count:
            self._spend(count)
        else:
            self._has_ended = True
        return True

    def _pass_on(self, data: memoryview) -> None:
        if self.guard is not None and data:
            self._held_back += data
            try:
                if not self.guard(self._held_back):
                    return
            except EgressRefused as error:
                self._relay.guard_refused(error)
                return
            data, self.guard, self._held_back = memoryview(self._held_back), None, b""
        if self.look is not None and data:
            # In a task: bytes that are slow to scan must not block other sessions.
            whole = bytes(data)
            self._inspection = self._loop.create_task(self.look(whole))
            self._inspection.add_done_callback(partial(self._on_inspected, whole))
            return
        self._send(data)

    def _on_inspected(self, data: bytes, inspection: asyncio.Task[None]) -> None:
        self._inspection = None
        if inspection.cancelled():
            return
        if (error := inspection.exception()) is not None:
            self._relay.end(error if isinstance(error, Exception) else PeerClosed())
        else:
            self._step(lambda: self._send_and_flow(memoryview(data)))

    def _send_and_flow(self, data: memoryview) -> None:
        self._send(data)
        self._flow()

    def _send(self, data: memoryview) -> None:
        try:
            sent = self._target.send(data) if data else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        # The buffer is shared: unsent bytes are copied.
        self.pending = memoryview(bytes(data[sent:]))

    def _empty(self) -> bool:
        """Send to the target; False if it would block."""
        try:
            while self.pending:
                sent = self._target.send(self.pending)
                self.pending = self.pending[sent:]
                self._relay.touch()
            while self._pipe is not None and self._in_pipe:
                sent = os.splice(self._pipe[0], self._target.fileno(), self._in_pipe, flags=_MOVE)
                self._in_pipe -= sent
                self._relay.touch()
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _spend(self, count: int) -> None:
        """Count bytes on receipt, so that no number of connections exceeds a limit."""
        self.received_bytes += count
        self._relay.touch()
        pause_s = self._budget.spend(self._direction, count)
        if pause_s and self._pause is None:
            self._pause = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._step(self._flow)

    def _finish(self) -> None:
        if self.is_done:
            return
        self._watch(reads=False, writes=False)
        with contextlib.suppress(OSError):
            # The other direction may continue: protocols use half-closed connections.
            self._target.shutdown(socket.SHUT_WR)
        self.is_done = True
        if self._pipe is not None:
            self._pipes.release(self._pipe, is_empty=True)
            self._pipe = None
        self._relay.end()


PIPE_BYTES = 1024 * 1024
_COPY_BYTES = 256 * 1024
_MAX_PIPES = 48
"""The kernel gives a user 64 MiB of pipe buffers and makes further pipes tiny."""
_MAX_SPARE = 8


class PipePool:
    """The pipes of one loop: few, large and reused; never one with bytes left in it."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []
        self._pipe_count = 0
        self.buffer = memoryview(bytearray(_COPY_BYTES))
        """For directions without a pipe; used within one callback only, so all share it."""

    def take(self) -> tuple[int, int] | None:
        if self._spare:
            return self._spare.pop()
        if self._pipe_count >= _MAX_PIPES:
            return None
        try:
            ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        self._pipe_count += 1
        try:
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            self._drop(ends)
            return None
        return ends

    def release(self, ends: tuple[int, int], *, is_empty: bool) -> None:
        # Leftover bytes would be sent to the peer of another connection.
        if is_empty and len(self._spare) < _MAX_SPARE:
            self._spare.append(ends)
        else:
            self._drop(ends)

    def _drop(self, ends: tuple[int, int]) -> None:
        self._pipe_count -= 1
        os.close(ends[0])
        os.close(ends[1])

    def close(self) -> None:
        while self._spare:
            self._drop(self._spare.pop())
