"""The SDK's two streams of messages, directly on a transport of lines.

The SDK's own transports pass each message through a queue to a task that reads or writes. Such a
hand-over costs several turns of the event loop. Here the task that needs a message reads it, and
the task that has one writes it, as long as the transport accepts it without waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import anyio
from mcp.shared.message import SessionMessage

from cellwall.parsing.jsonrpc import encode_message

if TYPE_CHECKING:
    from types import TracebackType

Messages: TypeAlias = "AsyncGenerator[SessionMessage, None]"


class MessageReader:
    """Implements the SDK's `ReadStream`; it ends with its source."""

    def __init__(self, source: Messages) -> None:
        self._source = source
        self._peeked: SessionMessage | None = None

    async def peek(self) -> SessionMessage | None:
        """The next message, which stays the next; None at the end."""
        if self._peeked is None:
            self._peeked = await anext(self._source, None)
        return self._peeked

    async def receive(self) -> SessionMessage:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        await self._source.aclose()

    def __aiter__(self) -> MessageReader:
        return self

    async def __anext__(self) -> SessionMessage:
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        return await self._source.__anext__()

    async def __aenter__(self) -> MessageReader:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class MessageWriter:
    """Implements the SDK's `WriteStream`. Lines never interleave, and none is written in part:
    what the transport does not accept at once is written by `run`, in a task of its own, which no
    cancellation of a sender reaches."""

    def __init__(
        self,
        put_now: Callable[[bytes], int],
        put: Callable[[bytes], Awaitable[None]],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`put_now` returns how many bytes were accepted without waiting. `on_failure` is told once
        why no more can be sent; a `TimeoutError` is one of the reasons."""
        self._put_now, self._put = put_now, put
        self._on_failure = on_failure
        self._waiting: deque[_WaitingLine] = deque()
        self._came = anyio.Event()
        self._is_closed = False

    async def send(self, item: SessionMessage, /) -> None:
        await self.send_line(encode_message(item))

    async def send_line(self, line: bytes) -> None:
        """Send a message that is encoded already, with its line end."""
        if self._is_closed:
            raise anyio.ClosedResourceError
        is_begun = False
        if not self._waiting:
            try:
                accepted = self._put_now(line)
            except OSError as error:
                self._fail(error)
                raise anyio.BrokenResourceError from None
            if accepted == len(line):
                return
            line, is_begun = line[accepted:], accepted > 0
        await self._wait_for(_WaitingLine(line, is_begun=is_begun))

    async def _wait_for(self, line: _WaitingLine) -> None:
        self._waiting.append(line)
        self._came.set()
        try:
            await line.ended.wait()
        finally:
            if not line.is_begun and line in self._waiting:
                self._waiting.remove(line)  # cancelled: the peer has seen nothing of it
        if not line.is_written:
            raise anyio.BrokenResourceError

    @property
    def waiting_count(self) -> int:
        """How many messages the peer has not read yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Write what had to wait, until the stream is closed or the transport fails."""
        try:
            while not self._is_closed:
                if not self._waiting:
                    self._came = anyio.Event()
                    await self._came.wait()
                    continue
                line = self._waiting[0]
                line.is_begun = True
                await self._put(line.data)
                self._waiting.popleft()
                line.is_written = True
                line.ended.set()
        except OSError as error:
            self._fail(error)
        finally:
            self.close()

    def _fail(self, error: OSError) -> None:
        if not self._is_closed:
            self.close()
            self._on_failure(error)

    def close(self) -> None:
        """Nothing more is sent; who waits gets an error."""
        self._is_closed = True
        self._came.set()
        for line in self._waiting:
            line.ended.set()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> MessageWriter:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()


class _WaitingLine:
    """The rest of a message that the transport did not accept at once."""

    def __init__(self, data: bytes, *, is_begun: bool) -> None:
        self.data = data
        self.is_begun = is_begun
        self.is_written = False
        self.ended = anyio.Event()
