"""The two connections of an HTTP/1.1 exchange: a stream, and the strict codec of its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.limits import EgressSettings
from cellwall.egress.protocols.http1_codec import ParserSignal, RequestHead, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.proxy.audit_events import ConnectionRecord
from cellwall.egress.proxy.session import Destination, EgressSession, ResolvedDestination
from cellwall.egress.proxy.streams import ByteStream, PeerClosed, SocketStream, TlsStream

HTTP_1 = "http/1.1"
HTTP_2 = "h2"

WaitTurn = Callable[[], Awaitable[None]]


class DownstreamConnection:
    """The connection to the client in the cell."""

    def __init__(self, stream: ByteStream, settings: EgressSettings, wait_turn: WaitTurn) -> None:
        """`wait_turn` is awaited before received bytes are parsed."""
        self.stream = stream
        self.codec = Http1ServerCodec()
        self.has_answer_begun = False
        self._settings = settings
        self._wait_turn = wait_turn
        self._loop = asyncio.get_running_loop()

    async def head(self, *, is_first: bool) -> RequestHead | None:
        """The next request; None when the client has no more.

        A head must be complete within its deadline, however slowly it arrives (slow-loris).
        """
        wait_s = self._settings.head_timeout_s if is_first else self._settings.idle_timeout_s
        until = self._loop.time() + wait_s
        has_begun = bool(self.codec.rest)
        self.has_answer_begun = False
        while True:
            event = self.codec.next_event()
            if isinstance(event, RequestHead):
                return event
            if event is ParserSignal.CLOSED:
                return None
            if await self.catch_up():
                continue
            try:
                data = await self.stream.recv(until)
            except EgressRefused:
                if has_begun or is_first:
                    raise
                return None
            if data and not has_begun:
                has_begun = True
                until = self._loop.time() + self._settings.head_timeout_s
            await self._wait_turn()
            self.codec.feed(data)

    async def catch_up(self) -> bool:
        """Parse bytes that have arrived; False if all are parsed."""
        if not self.codec.is_behind:
            return False
        await self._wait_turn()
        self.codec.read_on()
        return True

    def body_now(self) -> bytes | None:
        """The next parsed piece, empty at the end; None if none has arrived."""
        event = self.codec.next_event()
        if isinstance(event, bytes):
            return event
        return b"" if event is ParserSignal.END else None

    async def body(self) -> bytes:
        """The next piece of the body; empty at the end."""
        while (piece := self.body_now()) is None:
            if await self.catch_up():
                continue
            if self.codec.is_waiting_to_send:
                interim = self.codec.send_interim(100, [], b"Continue")
                await self.stream.send(interim, self._idle_until())
            data = await self.stream.recv(self._idle_until())
            await self._wait_turn()
            self.codec.feed(data)
        return piece

    def acknowledge(self) -> None:
        """Nothing to release: HTTP/1.1 reads on request only."""

    async def send(self, data: bytes) -> None:
        self.has_answer_begun = True
        await self.stream.send(data, self._idle_until())

    def _idle_until(self) -> float:
        return self._loop.time() + self._settings.idle_timeout_s


class UpstreamConnection:
    """The connection to an allowed server."""

    def __init__(
        self,
        stream: ByteStream,
        transport: SocketStream,
        destination: Destination,
        connection_record: ConnectionRecord,
        *,
        idle_timeout_s: float,
        wait_turn: WaitTurn,
    ) -> None:
        """`wait_turn` is awaited before received bytes are parsed."""
        self.stream = stream
        self.codec = Http1ClientCodec()
        self.protocol = stream.protocol if isinstance(stream, TlsStream) else HTTP_1
        """The protocol that ALPN has selected."""
        self.destination = destination
        self.connection_record = connection_record
        self.has_answered = False
        """Whether any byte arrived for the last request."""
        self._transport = transport
        self._idle_timeout_s = idle_timeout_s
        self._wait_turn = wait_turn
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls,
        session: EgressSession,
        target: ResolvedDestination,
        *,
        is_tls: bool,
        via: str,
        protocols: tuple[str, ...] = (HTTP_1,),
    ) -> UpstreamConnection:
        """Open a connection, with TLS verified against the system's authorities.

        `protocols` are offered by ALPN, the preferred one first.
        """
        sock, connection_record = await session.connect(target, via=via)
        transport = SocketStream(sock, budget=session.budget)
        stream: ByteStream = transport
        if is_tls:
            try:
                until = asyncio.get_running_loop().time() + session.settings.connect_timeout_s
                tls = session.shared.upstream_tls
                stream = await start_tls(
                    transport, tls, target.destination.host, until, protocols=protocols
                )
            except BaseException as error:
                transport.abort()
                connection_record.write_closed(
                    up_bytes=transport.sent_bytes,
                    down_bytes=transport.received_bytes,
                    error=error if isinstance(error, CellwallError) else None,
                )
                raise
        return cls(
            stream,
            transport,
            target.destination,
            connection_record,
            idle_timeout_s=session.settings.idle_timeout_s,
            wait_turn=session.share.wait_turn,
        )

    async def send(self, data: bytes) -> None:
        await self.stream.send(data, self._idle_until())

    def encoded(self, data: bytes, *, is_end: bool) -> bytes:
        """A piece of a request body, encoded."""
        piece = self.codec.send_data(data)
        return piece + self.codec.send_end() if is_end else piece

    async def put(self, data: bytes, *, is_end: bool) -> None:
        """Send a piece of a request body."""
        # A server may respond and close before it has read everything: its response counts.
        encoded = self.encoded(data, is_end=is_end)
        with contextlib.suppress(PeerClosed):
            await self.send(encoded)

    def abort_upload(self) -> None:
        """Abort, so that the server does not take a partial request for a complete one."""
        self.stream.abort()

    async def wait_for_response(self) -> None:
        """Wait for the first byte of a response; `PeerClosed` if the connection ends before."""
        if not (data := await self.stream.recv(self._idle_until())):
            raise PeerClosed
        self.has_answered = True
        await self._wait_turn()
        self.codec.feed(data)

    def event_now(self) -> ResponseHead | bytes | None:
        """The next parsed event, empty at the end of the response; None if none has arrived."""
        event = self.codec.next_event()
        if isinstance(event, bytes | ResponseHead):
            return event
        return b"" if event is ParserSignal.END else None

    async def event(self) -> ResponseHead | bytes:
        """The next event of the response."""
        while (event := self.event_now()) is None:
            if self.codec.is_behind:
                await self._wait_turn()
                self.codec.read_on()
                continue
            try:
                data = await self.stream.recv(self._idle_until())
            except PeerClosed:
                raise self.closed_early() from None
            if not data and not self.has_answered:
                raise self.closed_early()
            self.has_answered = True
            await self._wait_turn()
            self.codec.feed(data)
        return event

    def closed_early(self) -> EgressRefused:
        return EgressRefused(
            f"{self.destination.host} closed the connection before the response was complete",
            hint="Try again later.",
            code="CW-BAD-RESPONSE",
        )

    def _idle_until(self) -> float:
        return self._loop.time() + self._idle_timeout_s

    def next_cycle(self) -> bool:
        """Whether the last exchange left the connection fit for one more."""
        return self.codec.next_cycle() and self.stream.is_quiet()

    def is_quiet(self) -> bool:
        """Whether nothing has arrived since the last exchange."""
        return self.stream.is_quiet()

    def abort(self, error: CellwallError | None = None) -> None:
        self.stream.abort()
        self._close_record(error)

    def drop(self) -> None:
        """Close between two requests, where nothing can be truncated."""
        self._transport.close_now()
        self._close_record(None)

    def _close_record(self, error: CellwallError | None) -> None:
        self.connection_record.write_closed(
            up_bytes=self._transport.sent_bytes,
            down_bytes=self._transport.received_bytes,
            error=error,
        )


async def start_tls(
    transport: SocketStream,
    tls: ssl.SSLContext,
    host: str,
    until: float,
    *,
    protocols: tuple[str, ...] = (HTTP_1,),
) -> TlsStream:
    """Start TLS on a connection; `EgressRefused` if the certificate is not valid for the host.

    `protocols` are offered by ALPN, the preferred one first.
    """
    # The context is shared; OpenSSL copies the list into the connection created next, this one.
    tls.set_alpn_protocols(list(protocols))
    stream = TlsStream(transport, tls, server_name=host)
    try:
        await stream.handshake(until)
    except ssl.SSLCertVerificationError as error:
        raise EgressRefused(
            f"the certificate of {host} is invalid: {error.verify_message}",
            hint="Check the name; this host must trust the certificate authority of the server.",
            code="CW-UPSTREAM-TLS",
        ) from None
    except (ssl.SSLError, PeerClosed) as error:
        raise EgressRefused(
            f"the TLS handshake with {host} failed",
            hint="Check that this port serves TLS 1.2 or newer.",
            code="CW-UPSTREAM-TLS",
            detail=repr(error),
        ) from None
    return stream
