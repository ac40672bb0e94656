"""Byte streams over a connected socket, plain or TLS: every wait has a deadline, no read-ahead.

asyncio's streams read ahead, create a task for each timeout and copy twice. A stream here reads on
request only, so a slow reader slows its peer, and has one timer for all of its waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from typing import Any, Protocol, TypeVar

from cellwall.core.errors import EgressRefused
from cellwall.egress.limits import SessionBudget, timeout_error

PIECE_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
_LINGER_BYTES = 8 * 1024 * 1024
_LINGER_S = 2.0

_T = TypeVar("_T")


class ByteStream(Protocol):
    """A bidirectional byte stream; `until` is a deadline in loop time."""

    async def recv(self, until: float) -> bytes:
        """The next bytes; empty at end of stream."""

    async def send(self, data: bytes, until: float) -> None: ...

    def is_quiet(self) -> bool:
        """Whether no byte and no end has arrived: only then can a connection be reused."""

    def abort(self) -> None:
        """Reset the connection, so that the peer sees a truncated transfer."""

    async def close(self) -> None:
        """Close the connection in order."""

    async def close_after_answer(self) -> None:
        """Close so that the last response arrives, even if the peer is still sending."""


class PeerClosed(Exception):
    """The peer closed or reset the connection. Not a refusal: no rule was broken."""


class _ThreadBuffer(threading.local):
    """One receive buffer per thread: it is copied out before another task can run there.

    A new buffer of this size for each call would be mapped and unmapped each time.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(PIECE_BYTES))


_thread_buffer = _ThreadBuffer()


class SocketStream:
    """A stream over one socket. At most one task receives and one sends at a time."""

    def __init__(self, sock: socket.socket, *, budget: SessionBudget | None = None) -> None:
        """With `budget` this is the upstream side, and its bytes are counted."""
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._budget = budget
        self._reader: asyncio.Future[bytes] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reads = False
        self._due: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ahead = b""
        self._is_drained = False
        self.sent_bytes = 0
        self.received_bytes = 0
        sock.setblocking(False)

    @property
    def local_address(self) -> tuple[str, int]:
        """The local address of the connection."""
        address, port = self._sock.getsockname()[:2]
        return str(address), int(port)

    @property
    def is_closed(self) -> bool:
        return self._sock.fileno() < 0

    def push_back(self, data: bytes) -> None:
        """Return bytes that the next `recv` gives again."""
        self._ahead = data + self._ahead

    async def recv(self, until: float) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        received = None if self._is_drained else self._receive_now()
        if received is None:
            received = await self._wait_readable(until)
        if self._budget is not None and (pause := self._budget.spend("down", len(received))):
            await asyncio.sleep(pause)
        return received

    def _receive_now(self) -> bytes | None:
        """The bytes that the kernel has; None if it has none yet."""
        buffer = _thread_buffer.view
        if self._budget is not None:
            self._budget.check("down")
            buffer = buffer[: self._budget.room("down")]
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise PeerClosed from error
        # The kernel had no more: another call would only raise BlockingIOError.
        self._is_drained = 0 < count < len(buffer)
        self.received_bytes += count
        return bytes(buffer[:count])

    async def _wait_readable(self, until: float) -> bytes:
        if self.is_closed:
            raise PeerClosed
        if not self._reads:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
            self._reads = True
        waiter: asyncio.Future[bytes] = self._loop.create_future()
        self._reader = waiter
        try:
            return await self._wait(waiter, until)
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.push_back(waiter.result())
            raise
        finally:
            self._reader = None

    def _on_readable(self) -> None:
        if self._reader is None or self._reader.done():
            # No reader waits. The watch stays on between waits, since epoll_ctl costs more than a
            # wait, but it must not wake the loop repeatedly.
            self._loop.remove_reader(self._sock.fileno())
            self._reads = False
            return
        try:
            received = self._receive_now()
        except (PeerClosed, EgressRefused) as error:
            self._reader.set_exception(error)
            return
        if received is not None:
            self._reader.set_result(received)

    async def send(self, data: bytes, until: float) -> None:
        rest: bytes | memoryview = data
        while rest:
            piece = rest
            if self._budget is not None:
                self._budget.check("up")
                piece = rest[: self._budget.room("up")]
            try:
                count = self._sock.send(piece)
            except (BlockingIOError, InterruptedError):
                await self._wait_writable(until)
                continue
            except OSError as error:
                raise PeerClosed from error
            self.sent_bytes += count
            if self._budget is not None and (pause := self._budget.spend("up", count)):
                await asyncio.sleep(pause)
            if count == len(rest):
                return
            rest = memoryview(rest)[count:]

    def is_quiet(self) -> bool:
        if self._ahead:
            return False
        with contextlib.suppress(OSError):
            try:
                self._sock.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                return True
        return False

    async def _wait_writable(self, until: float) -> None:
        if self.is_closed:
            raise PeerClosed
        self._writer = self._loop.create_future()
        self._loop.add_writer(self._sock.fileno(), self._on_writable)
        try:
            await self._wait(self._writer, until)
        finally:
            self._writer = None
            if not self.is_closed:
                self._loop.remove_writer(self._sock.fileno())

    def _on_writable(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    async def _wait(self, waiter: asyncio.Future[_T], until: float) -> _T:
        self._due[waiter] = until
        if self._timer is None or self._timer.when() > until:
            self._set_timer(until)
        try:
            return await waiter
        finally:
            del self._due[waiter]

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for waiter, until in self._due.items():
            if until <= now_s and not waiter.done():
                waiter.set_exception(timeout_error("the peer's response"))
        if rest := [until for until in self._due.values() if until > now_s]:
            self._set_timer(min(rest))

    def release(self) -> tuple[socket.socket, bytes]:
        """The bare socket, and the bytes that were received but not consumed."""
        self._unwatch()
        ahead, self._ahead = self._ahead, b""
        return self._sock, ahead

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_closed:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
        self._reads = False
        for waiter in tuple(self._due):
            if not waiter.done():
                waiter.set_exception(PeerClosed())

    def abort(self) -> None:
        self._unwatch()
        reset(self._sock)

    def close_now(self) -> None:
        """Close at once, without a reset."""
        self._unwatch()
        self._sock.close()

    async def close(self) -> None:
        self.close_now()

    async def close_after_answer(self) -> None:
        # With unread bytes the kernel would reset the connection and discard the response.
        until = self._loop.time() + _LINGER_S
        with contextlib.suppress(PeerClosed, EgressRefused, OSError):
            self._sock.shutdown(socket.SHUT_WR)
            drained = 0
            while drained < _LINGER_BYTES and (data := await self.recv(until)):
                drained += len(data)
                await asyncio.sleep(0)  # a peer that keeps sending must not starve others
        await self.close()


class TlsStream:
    """TLS over a socket stream, with OpenSSL memory BIOs; call `handshake` first."""

    def __init__(
        self, transport: SocketStream, context: ssl.SSLContext, *, server_name: str | None
    ) -> None:
        """With `server_name` this is the client side and verifies that name; None: server side."""
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._is_client = server_name is not None
        self._has_ended = False
        self._sending = asyncio.Lock()

    @property
    def protocol(self) -> str:
        """The protocol that ALPN has selected."""
        return self._tls.selected_alpn_protocol() or "http/1.1"

    async def handshake(self, until: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush(until)
                await self._fill(until)
                continue
            except ssl.SSLError:
                # The alert tells the peer the reason.
                with contextlib.suppress(PeerClosed, EgressRefused):
                    await self._flush(until)
                raise
            await self._flush(until)
            return

    async def recv(self, until: float) -> bytes:
        while not self._has_ended:
            try:
                data = self._tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush(until)
                await self._fill(until)
                continue
            except ssl.SSLZeroReturnError:
                break
            except ssl.SSLEOFError as error:
                # Without close_notify an attacker may have truncated the response. Clients often
                # omit it, and a request has its own end.
                if self._is_client:
                    raise PeerClosed from error
                break
            except ssl.SSLError as error:
                raise PeerClosed from error
            if not data:
                break
            return data
        self._has_ended = True
        return b""

    async def send(self, data: bytes, until: float) -> None:
        rest = memoryview(data)
        async with self._sending:
            while rest:
                try:
                    count = self._tls.write(rest[:PIECE_BYTES])
                except ssl.SSLError as error:
                    raise PeerClosed from error
                rest = rest[count:]
                await self._send_records(until)

    async def _flush(self, until: float) -> None:
        # Receiving can produce records too, such as a key update. Records must leave in order: a
        # concurrent sender takes them along, and receiving does not wait for it.
        if self._outgoing.pending and not self._sending.locked():
            async with self._sending:
                await self._send_records(until)

    async def _send_records(self, until: float) -> None:
        while data := self._outgoing.read():
            await self._transport.send(data, until)

    async def _fill(self, until: float) -> None:
        if data := await self._transport.recv(until):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def is_quiet(self) -> bool:
        return (
            not self._has_ended
            and not self._incoming.pending
            and not self._tls.pending()
            and self._transport.is_quiet()
        )

    def abort(self) -> None:
        self._transport.abort()

    async def close(self) -> None:
        await self._send_close_notify()
        await self._transport.close()

    async def close_after_answer(self) -> None:
        await self._send_close_notify()
        await self._transport.close_after_answer()

    async def _send_close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLError, PeerClosed, EgressRefused):
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            await self._flush(asyncio.get_running_loop().time() + _LINGER_S)


def reset(sock: socket.socket) -> None:
    """Close with a reset: a truncated transfer must not look complete."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
