"""One HTTP/2 connection: h2 over a byte stream, events sorted by stream, every queue bounded.

Bytes that a stream's reader has not consumed are not acknowledged, so a slow reader slows its peer.
Bytes to send wait for the peer's windows, and for the bytes before them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import H2Error, NoSuchStreamError, StreamClosedError
from h2.settings import SettingCodes
from hpack import Encoder

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.h2_frames import (
    DATA_FRAME_CREDIT,
    MAX_FRAME_BYTES,
    MAX_HEAD_BYTES,
    FrameCostBudget,
    FrameGate,
    GoAway,
    goaway,
)
from cellwall.egress.protocols.http1_framing import BadMessage, Fields, bad_request, bad_response
from cellwall.egress.proxy.h2_streams import Reset, StreamInbox, wait_until, wait_while_moved
from cellwall.egress.proxy.stream_memory import StreamMemory
from cellwall.egress.proxy.streams import ByteStream, PeerClosed

MAX_STREAMS = 100
"""The number that clients assume before SETTINGS arrive (RFC 9113, 6.5.2)."""
STREAM_BYTES = 64 * 1024 - 1
"""Unacknowledged bytes of one stream."""
_MAX_UNSENT_BYTES = 256 * 1024
_MAX_HELD_BYTES = 128 * 1024
"""Half of a client's connection window."""
_MAX_CORKED_BYTES = 16 * 1024
"""One TLS record."""
_MAX_CORKED_S = 0.05
"""A session with many busy connections waits for the turns of all of them."""
_DRAIN_TIMEOUT_S = 2.0
_TABLE_BYTES = 4096

_T = TypeVar("_T")


class _BoundedH2Connection(H2Connection):
    MAX_CLOSED_STREAMS = 1024
    """Remembered for frames that were in flight when a stream closed."""


class _PlainEncoder(Encoder):
    """Header blocks without Huffman coding: hpack's time for it grows with the square of a value,
    and a single head of 30 KB would hold up all sessions for a fifth of a second."""

    def add(self, to_add: tuple[bytes, bytes], sensitive: bool, huffman: bool = False) -> bytes:  # noqa: ARG002, FBT001, FBT002 - the signature of hpack
        return super().add(to_add, sensitive)


class Http2Connection:
    """At most one task calls `read`; any number of tasks send."""

    def __init__(
        self,
        stream: ByteStream,
        *,
        is_client: bool,
        wait_turn: Callable[[], Awaitable[None]],
        idle_timeout_s: float,
        memory: StreamMemory,
        window_bytes: int,
        stream_window_bytes: int = STREAM_BYTES,
    ) -> None:
        """`is_client`: whether the peer is the client. `window_bytes` is the connection window.

        `wait_turn` is awaited before received frames are parsed.
        """
        self.stream = stream
        self.relays_to: tuple[Http2Connection, ...] = ()
        """The connections on which received messages cause others."""
        self.streams: dict[int, StreamInbox] = {}
        self.frame_costs = FrameCostBudget()
        self.waste = FrameCostBudget()
        self.is_over = False
        """No more bytes can be sent."""
        self.is_behind = False
        """Received frames are not all parsed yet: other sessions have their turns."""
        self.has_goaway = False
        """The peer has sent GOAWAY."""
        self._bad = bad_request if is_client else bad_response
        self._gate = FrameGate(is_client=is_client, frame_costs=self.frame_costs, waste=self.waste)
        self._wait_turn = wait_turn
        self._memory = memory
        self._h2 = _BoundedH2Connection(
            H2Configuration(client_side=not is_client, header_encoding=None)
        )
        max_head_bytes = MAX_HEAD_BYTES["client" if is_client else "server"]
        self._h2.encoder = _PlainEncoder()
        self._set_up(window_bytes, stream_window_bytes, max_head_bytes)
        self._loop = asyncio.get_running_loop()
        self._idle_timeout_s = idle_timeout_s
        self._held_bytes = 0
        self._unsent = bytearray()
        self._is_sending = False
        self._cork_count = 0
        self._corked_until_s = 0.0
        self._wants_writer = asyncio.Event()
        self._changed: asyncio.Event | None = None

    def _set_up(self, window_bytes: int, stream_window_bytes: int, max_head_bytes: int) -> None:
        own = self._h2.local_settings
        own[SettingCodes.MAX_CONCURRENT_STREAMS] = MAX_STREAMS
        own[SettingCodes.INITIAL_WINDOW_SIZE] = stream_window_bytes
        own[SettingCodes.MAX_HEADER_LIST_SIZE] = max_head_bytes
        own[SettingCodes.MAX_FRAME_SIZE] = MAX_FRAME_BYTES
        own[SettingCodes.ENABLE_PUSH] = 0
        own.acknowledge()
        self._h2.decoder.max_header_list_size = max_head_bytes
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(window_bytes - STREAM_BYTES)

    # --- receive

    async def read(self, until: float, handle: Callable[[Event | GoAway], None]) -> bool:
        """Handle the events of the next bytes; False at end of stream."""
        while len(self._unsent) > _MAX_UNSENT_BYTES:
            await self._change(until)  # replies to received frames must not pile up
        data = await self.stream.recv(until)
        if not data:
            return False
        self._gate.feed(data)
        self.is_behind = True
        # Messages that arrived together leave together: a system call for each would cost the
        # proxy and both peers a quarter of their time.
        for connection in self.relays_to:
            connection.cork()
        try:
            for piece in self._gate.take():
                await self._wait_turn()
                if isinstance(piece, GoAway):
                    self.has_goaway = True
                    handle(piece)
                elif piece:
                    # h2 has changed its state, and senders must see that at once.
                    for event in self._received(piece):
                        handle(event)
                    self._flush()
                    self._notify()
        finally:
            for connection in self.relays_to:
                connection.uncork()
        self.is_behind = False
        return True

    def _received(self, data: bytes) -> list[Event]:
        try:
            events = self._h2.receive_data(data)
        except H2Error as error:
            raise self._protocol_error(error) from None
        # The peer may allow a larger HPACK table, but its entries are our memory.
        if self._h2.encoder.header_table_size > _TABLE_BYTES:  # noqa: PLR1730 - an assignment sends a table size update
            self._h2.encoder.header_table_size = _TABLE_BYTES
        return events

    @property
    def is_in_head(self) -> bool:
        """Whether a header block has begun and not ended."""
        return self._gate.is_in_head

    def add_stream(self, stream_id: int) -> StreamInbox:
        """Register a stream that the peer has opened."""
        inbox = self.streams[stream_id] = StreamInbox(stream_id, self.acknowledge)
        return inbox

    def hold(self, inbox: StreamInbox, count: int) -> bool:
        """Count bytes of heads that a stream keeps until it is removed; False if there are too
        many in the session."""
        if not self._memory.take(count):
            return False
        inbox.held_bytes += count
        return True

    def acknowledge(self, stream_id: int, count: int) -> None:
        """Acknowledge consumed bytes of a stream, which opens its window."""
        if count and not self.is_over:
            with contextlib.suppress(H2Error):
                self._h2.acknowledge_received_data(count, stream_id)
            self._flush()

    def charge(self, amount: float) -> None:
        """Charge the peer for wasted work."""
        if not self.waste.charge(amount):
            raise self._bad("too many of its streams are reset")

    # --- send

    async def open_stream(
        self, headers: Fields, *, is_end: bool, holds_bytes: int = 0
    ) -> StreamInbox:
        """Open a stream, once the peer's limit of concurrent streams allows it and there is room.

        `holds_bytes` of its body stay unacknowledged while it waits: too many would fill the
        connection window, and no open stream could ever end.
        """
        if self._is_full() and self._held_bytes + holds_bytes > _MAX_HELD_BYTES:
            raise Reset(ErrorCodes.REFUSED_STREAM)
        until = self._until()
        self._held_bytes += holds_bytes
        try:
            while self._is_full():
                await self._change(until)
        finally:
            self._held_bytes -= holds_bytes
        self._check()
        if self.has_goaway:
            raise Reset(ErrorCodes.REFUSED_STREAM)
        stream_id = self._call_h2(self._h2.get_next_available_stream_id)
        inbox = self.add_stream(stream_id)
        self.send_headers(stream_id, headers, is_end=is_end)
        return inbox

    def _is_full(self) -> bool:
        if len(self._unsent) >= _MAX_UNSENT_BYTES:  # heads have no window that would bound them
            return True
        limit = self._h2.remote_settings.max_concurrent_streams
        # h2 counts open streams one by one, and has no fewer than these.
        return len(self._h2.streams) >= limit and self._h2.open_outbound_streams >= limit

    async def wait_for_room(self, until: Callable[[], float]) -> None:
        """Wait until the peer takes bytes: heads have no window, and would pile up."""
        while len(self._unsent) >= _MAX_UNSENT_BYTES:
            self._check()
            await wait_while_moved(lambda: self._next_change().wait(), until)

    def send_headers(self, stream_id: int, headers: Fields, *, is_end: bool = False) -> None:
        """Send headers or trailers."""
        self._check()
        self._call_h2(lambda: self._h2.send_headers(stream_id, headers, end_stream=is_end))
        self._on_sent(stream_id, is_end=is_end)

    async def send_data(
        self, stream_id: int, data: bytes, *, is_end: bool, until: Callable[[], float]
    ) -> None:
        """Send data within the peer's windows; `until` is read again after each wait."""
        rest = memoryview(data)
        while rest or is_end:
            self._check()
            inbox = self.streams.get(stream_id)
            if inbox is None or inbox.reset is not None:
                raise PeerClosed
            room = self._room(stream_id)
            if rest and (room <= 0 or len(self._unsent) >= _MAX_UNSENT_BYTES):
                await wait_while_moved(lambda: self._next_change().wait(), until)
                continue
            piece, rest = bytes(rest[:room]), rest[room:]
            is_last = is_end and not rest
            if piece:
                send = partial(self._h2.send_data, stream_id, piece, end_stream=is_last)
            else:
                send = partial(self._h2.end_stream, stream_id)  # needs no window
            self._call_h2(send)
            self.frame_costs.credit(DATA_FRAME_CREDIT)
            self._on_sent(stream_id, is_end=is_last)
            if is_last:
                return

    def _on_sent(self, stream_id: int, *, is_end: bool) -> None:
        if is_end and (inbox := self.streams.get(stream_id)) is not None:
            inbox.is_answered = True
        self._flush()

    def _room(self, stream_id: int) -> int:
        window = self._call_h2(lambda: self._h2.local_flow_control_window(stream_id))
        return min(window, self._h2.max_outbound_frame_size, MAX_FRAME_BYTES)

    def has_room(self, stream_id: int, count: int) -> bool:
        """Whether that many bytes can be sent without a wait."""
        return count <= min(self._room(stream_id), _MAX_UNSENT_BYTES - len(self._unsent))

    def reset_stream(self, stream_id: int, code: int = ErrorCodes.CANCEL) -> None:
        """Reset a stream that is not closed yet."""
        inbox = self.streams.get(stream_id)
        if inbox is None or inbox.is_closed or self.is_over:
            return
        with contextlib.suppress(H2Error):
            self._h2.reset_stream(stream_id, code)
        self._flush()

    def remove_stream(self, stream_id: int) -> None:
        """Remove a stream without a reader; its bytes are acknowledged."""
        inbox = self.streams.pop(stream_id, None)
        if inbox is not None:
            self._memory.release(inbox.held_bytes)
            self.acknowledge(stream_id, inbox.left_bytes)
        self._notify()

    def send_goaway(self, code: int = ErrorCodes.NO_ERROR) -> None:
        """Send GOAWAY: new streams are refused, open ones continue."""
        if not self.is_over:
            self._unsent += goaway(max(self._h2.highest_inbound_stream_id, 0), code)
            self._wants_writer.set()

    def _call_h2(self, work: Callable[[], _T]) -> _T:
        """Map h2's errors; `PeerClosed` for a stream that was reset meanwhile."""
        try:
            return work()
        except (StreamClosedError, NoSuchStreamError):
            raise PeerClosed from None
        except H2Error as error:
            # The HPACK state of both sides may differ from here on.
            raise self._protocol_error(error) from None

    def _protocol_error(self, error: H2Error) -> BadMessage:
        self.is_over = True
        self._wants_writer.set()
        self._notify()
        refusal = self._bad("it violates HTTP/2")
        refusal.detail = type(error).__name__
        return refusal

    def _check(self) -> None:
        if self.is_over:
            raise PeerClosed

    def cork(self) -> None:
        """Hold back small messages, for a short time, until `uncork`, which must follow."""
        if not self._cork_count:
            self._corked_until_s = self._loop.time() + _MAX_CORKED_S
        self._cork_count += 1

    def uncork(self) -> None:
        """Send the bytes that were held back, unless another reader still holds them back."""
        self._cork_count -= 1
        if self._unsent:
            self._wake_writer()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._unsent += data
            self._wake_writer()

    def _wake_writer(self) -> None:
        if not self._cork_count or len(self._unsent) >= _MAX_CORKED_BYTES:
            self._wants_writer.set()
        elif (now_s := self._loop.time()) >= self._corked_until_s:
            self._corked_until_s = now_s + _MAX_CORKED_S
            self._wants_writer.set()

    async def write(self) -> None:
        """Send queued bytes until the connection ends."""
        try:
            while not self.is_over:
                await self._wants_writer.wait()
                self._wants_writer.clear()
                while self._unsent:
                    data = bytes(self._unsent)
                    self._unsent.clear()
                    self._is_sending = True
                    await self.stream.send(data, self._until())
                    self._is_sending = False
                    self._notify()
        finally:
            self.is_over = True
            self._notify()

    def final_bytes(self, code: int) -> bytes:
        """The queued bytes with a GOAWAY; empty while a piece is being sent."""
        if self._is_sending:
            return b""
        # After a protocol error h2 has queued its own GOAWAY.
        rest = bytes(self._unsent) + self._h2.data_to_send()
        return rest if self.is_over else rest + goaway(self._h2.highest_inbound_stream_id, code)

    async def drain(self) -> None:
        """Wait until all bytes are sent, for a short time."""
        with contextlib.suppress(EgressRefused, PeerClosed):
            until = self._loop.time() + _DRAIN_TIMEOUT_S
            while (self._unsent or self._is_sending) and not self.is_over:
                await self._change(until)

    # --- wait

    async def _change(self, until: float) -> None:
        await wait_until(self._next_change().wait(), until)

    def _next_change(self) -> asyncio.Event:
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _until(self) -> float:
        return self._loop.time() + self._idle_timeout_s
