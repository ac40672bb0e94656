"""The received events of one HTTP/2 stream, and waits with a deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from h2.events import DataReceived, Event, StreamEnded, StreamReset

from cellwall.core.errors import EgressRefused
from cellwall.egress.limits import timeout_error
from cellwall.egress.proxy.streams import PIECE_BYTES

_T = TypeVar("_T")


class Reset(Exception):
    """The peer reset a stream; its error code is passed on."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Data:
    """Bytes of a body, merged from several frames, since tiny frames must not be an event each."""

    data: bytearray
    flow_bytes: int
    """Their flow-controlled length, with padding."""


class StreamInbox:
    """Received events of one stream that are not consumed yet."""

    def __init__(self, stream_id: int, on_consumed: Callable[[int, int], None]) -> None:
        """`on_consumed` is called with stream id and number of consumed bytes."""
        self.stream_id = stream_id
        self._on_consumed = on_consumed
        self.has_ended = False
        """Whether the peer has ended the stream."""
        self.is_answered = False
        """Whether our side of the stream has ended."""
        self.reset: int | None = None
        self.error: Exception | None = None
        self.left_bytes = 0
        self.held_bytes = 0
        """Counted in the session's `StreamMemory`."""
        self._events: deque[Event | Data] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._add_data(bytes(event.data or b""), event.flow_controlled_length or 0)
        else:
            if isinstance(event, StreamEnded):
                self.has_ended = True
            elif isinstance(event, StreamReset):
                self.reset = int(event.error_code or 0)
            self._events.append(event)
        self._wake()

    def _add_data(self, data: bytes, flow_bytes: int) -> None:
        self.left_bytes += flow_bytes
        last = self._events[-1] if self._events else None
        if isinstance(last, Data) and len(last.data) < PIECE_BYTES:
            last.data += data
            last.flow_bytes += flow_bytes
        else:
            self._events.append(Data(bytearray(data), flow_bytes))

    @property
    def is_closed(self) -> bool:
        return self.reset is not None or (self.has_ended and self.is_answered)

    def fail(self, error: Exception) -> None:
        """Fail all further reads with this error."""
        if self.error is None:
            self.error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def now(self) -> Event | Data | None:
        """The next event; None if none has arrived."""
        if self._events:
            event = self._events.popleft()
            if isinstance(event, StreamReset):
                self.fail(Reset(self.reset or 0))
                raise Reset(self.reset or 0)
            return event
        if self.error is not None:
            raise self.error
        return None

    def acknowledge(self, data: Data) -> None:
        """Acknowledge bytes that were sent on."""
        self.left_bytes -= data.flow_bytes
        self._on_consumed(self.stream_id, data.flow_bytes)

    async def next(self, until: Callable[[], float]) -> Event | Data:
        """The next event; `until` is read again at the deadline, which may have moved."""
        while (event := self.now()) is None:
            await self.arrival(until)
        return event

    async def arrival(self, until: Callable[[], float]) -> None:
        """Wait for an event, after `now` returned None. One task at a time."""
        # Each message waits here, and asyncio's timeout would cost more than the wait.
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._deadline = loop.call_at(until(), self._check_deadline, until)
        try:
            await self._waiter
        finally:
            self._deadline.cancel()
            self._waiter = None

    def _check_deadline(self, until: Callable[[], float]) -> None:
        if self._waiter is None or self._waiter.done():
            return
        loop = self._waiter.get_loop()
        if loop.time() < until():
            self._deadline = loop.call_at(until(), self._check_deadline, until)
        else:
            self._waiter.set_exception(timeout_error("the peer's response"))


async def wait_until(work: Awaitable[_T], until: float) -> _T:
    """The result, or a timeout error."""
    try:
        async with asyncio.timeout_at(until):
            return await work
    except TimeoutError:
        raise timeout_error("the peer's response") from None


async def wait_while_moved(work: Callable[[], Awaitable[_T]], until: Callable[[], float]) -> _T:
    """The same with a deadline that may move."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await wait_until(work(), until())
        except EgressRefused:
            if loop.time() >= until():
                raise
