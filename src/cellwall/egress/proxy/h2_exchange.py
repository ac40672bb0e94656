"""One request on an HTTP/2 stream and its response; the steps are in `request_filter`."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from h2.errors import ErrorCodes
from h2.events import (
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)
from hpack import NeverIndexedHeaderTuple

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.inspection.body_filters import pieces_of
from cellwall.egress.inspection.injection import OutgoingHead
from cellwall.egress.protocols.h2_frames import REFUSED_COST, RESPONSE_CREDIT
from cellwall.egress.protocols.http1_framing import Fields, bad_request, bad_response
from cellwall.egress.protocols.http_heads import (
    DeclaredLength,
    HttpRequest,
    end_to_end_h2_headers,
    read_h2_request,
    read_h2_response,
    read_h2_trailers,
)
from cellwall.egress.proxy.client_connection import ClientConnection, refusal
from cellwall.egress.proxy.connections import UpstreamConnection
from cellwall.egress.proxy.h2_connection import STREAM_BYTES, Http2Connection
from cellwall.egress.proxy.h2_streams import Data, Reset, StreamInbox
from cellwall.egress.proxy.http1_exchange import stop
from cellwall.egress.proxy.request_filter import (
    FilteredResponse,
    RequestFilter,
    RequestUpload,
)
from cellwall.egress.proxy.session import Destination, EgressSession
from cellwall.egress.proxy.streams import PeerClosed

ResponseHeadFields = tuple[int, Fields, bool]
"""Status, headers, and whether the stream ends with them."""

_MAX_INTERIM = 16
_REFUSAL_TIMEOUT_S = 2.0


class Http2Exchange:
    """The requests of one client connection, concurrently."""

    def __init__(
        self,
        session: EgressSession,
        connection: ClientConnection,
        *,
        client: Http2Connection,
        server: Http2Connection,
        upstream: UpstreamConnection,
    ) -> None:
        """`upstream` is the connection below `server`."""
        self._session = session
        self._connection = connection
        self._client = client
        self._server = server
        self._upstream = upstream
        self._loop = session.shared.loop
        self._filter = RequestFilter(session, connection, _fixed=upstream.destination, _is_tls=True)

    async def serve(self, inbox: StreamInbox, headers: Fields) -> None:
        """Serve one request, to the end of its stream."""
        stream = _RequestStream(
            self._session,
            self._client,
            inbox,
            (self._upstream.destination.host, self._upstream.destination.port),
        )
        try:
            await self._exchange(stream, headers)
        except asyncio.CancelledError:
            self._client.reset_stream(inbox.stream_id)
            raise
        except (PeerClosed, Reset) as error:
            code = error.code if isinstance(error, Reset) else ErrorCodes.CANCEL
            self._client.reset_stream(inbox.stream_id, code)
        except CellwallError as error:
            await self._refuse(stream, error)
        except Exception as error:  # noqa: BLE001 - an internal error refuses as well
            await self._refuse(
                stream, EgressRefused("the proxy failed", detail=type(error).__name__)
            )

    async def _refuse(self, stream: _RequestStream, error: CellwallError) -> None:
        stream_id, (host, port) = stream.inbox.stream_id, stream.target
        self._session.record_refusal(error, host=host, port=port, via=self._connection.via)
        self._client.waste.charge(REFUSED_COST)  # a budget that is exceeded refuses the next head
        code = ErrorCodes.INTERNAL_ERROR
        if not stream.has_answer_begun:
            status, fields, body = refusal(error, host=host, port=port)
            head = [(b":status", str(status).encode())]
            head += [(name.lower().encode(), value.encode()) for name, value in fields]
            with contextlib.suppress(PeerClosed, EgressRefused):
                self._client.send_headers(stream_id, head)
                until = self._loop.time() + _REFUSAL_TIMEOUT_S
                await self._client.send_data(stream_id, body, is_end=True, until=lambda: until)
                code = ErrorCodes.NO_ERROR
        # The rest of the request is discarded (RFC 9113, 8.1).
        self._client.reset_stream(stream_id, code)

    async def _exchange(self, stream: _RequestStream, headers: Fields) -> None:
        # (1)
        request = read_h2_request(headers)
        stream.target = request.host, request.port
        destination = await self._filter.authorize(request)
        stream.length = DeclaredLength(request.headers, bad=bad_request)
        stream.expects = any(name == b"expect" for name, _ in request.headers)
        leak_reporter = self._filter.leak_reporter(request)
        with closing(RequestUpload(stream, self._session, request, leak_reporter)) as upload:
            await self._send_and_answer(stream, request, destination, upload, headers)
        if not stream.inbox.has_ended:
            # Early response: the rest of the request is not needed.
            self._client.reset_stream(stream.inbox.stream_id, ErrorCodes.NO_ERROR)
        self._client.frame_costs.credit(RESPONSE_CREDIT)
        self._client.waste.credit(RESPONSE_CREDIT)

    async def _send_and_answer(
        self,
        stream: _RequestStream,
        request: HttpRequest,
        destination: Destination,
        upload: RequestUpload,
        headers: Fields,
    ) -> None:
        await upload.gather()
        outgoing = await self._filter.prepare(
            request, destination, end_to_end_h2_headers(request.headers)
        )
        self._session.audit.check()
        data, is_all = upload.first()
        # (6)
        try:
            head = _head(request, outgoing, headers)
            answer = await self._server.open_stream(
                head,
                is_end=is_all and not data,
                holds_bytes=stream.inbox.left_bytes if is_all else STREAM_BYTES,
            )
        except PeerClosed:
            raise self._upstream.closed_early() from None
        self._upstream.connection_record.request_count += 1
        sink = _Sink(stream, self._server, answer)
        pump: asyncio.Task[None] | None = None
        try:
            if not is_all or not self._server.has_room(answer.stream_id, len(data)):
                # A failed upload ends the wait for the response.
                pump = asyncio.create_task(_pump(upload, sink, data, is_all=is_all))
                pump.add_done_callback(partial(_fail, answer))
            elif data:
                await sink.put(data, is_end=True)
            await self._relay_response(stream, request, destination, answer)
        finally:
            if pump is not None:
                await stop(pump)
            self._server.reset_stream(answer.stream_id)
            self._server.remove_stream(answer.stream_id)

    async def _relay_response(
        self,
        stream: _RequestStream,
        request: HttpRequest,
        destination: Destination,
        answer: StreamInbox,
    ) -> None:
        # (7)
        status, headers, ended = await self._read_response_head(stream, answer)
        filtered = self._filter.filter_response(request, destination, status, headers)
        try:
            await self._relay_body(stream, destination, answer, filtered, (status, headers, ended))
        finally:
            if filtered.cleaner is not None:
                filtered.cleaner.close()

    async def _relay_body(
        self,
        stream: _RequestStream,
        destination: Destination,
        answer: StreamInbox,
        filtered: FilteredResponse,
        answer_head: ResponseHeadFields,
    ) -> None:
        status, headers, ended = answer_head
        length = DeclaredLength(headers if filtered.has_body else [], bad=bad_response)
        if ended:
            length.end()
        head = [(b":status", str(status).encode()), *filtered.headers]
        peer, stream_id = self._client, stream.inbox.stream_id
        await peer.wait_for_room(stream.until)
        stream.has_answer_begun = True
        if ended and (filtered.cleaner is None or not filtered.has_body):
            peer.send_headers(stream_id, head, is_end=True)
            return
        peer.send_headers(stream_id, head)
        trailers: Fields = []
        while not ended:
            event = await answer.next(stream.until)
            stream.touch()
            if isinstance(event, Data):
                if event.data and not filtered.has_body:
                    # Such a body was not checked: neither length nor encoding nor content.
                    raise bad_response("it has a body where none is allowed")
                length.add(len(event.data))
                async for piece in pieces_of(filtered.cleaner, bytes(event.data)):
                    await peer.send_data(stream_id, piece, is_end=False, until=stream.until)
                    stream.touch()
                answer.acknowledge(event)
            elif isinstance(event, TrailersReceived):
                trailers = read_h2_trailers(event.headers)
                trailers = self._filter.filter_trailers(destination, trailers)
            elif isinstance(event, StreamEnded):
                ended = True
            else:
                raise bad_response("it has a second head")
        length.end()
        await self._end_body(stream, destination, filtered, trailers)

    async def _read_response_head(
        self, stream: _RequestStream, answer: StreamInbox
    ) -> ResponseHeadFields:
        interim_count = 0
        while True:
            event = await answer.next(stream.until)
            stream.touch()
            if isinstance(event, InformationalResponseReceived):
                read_h2_response(event.headers)
                interim_count += 1
                if interim_count > _MAX_INTERIM:
                    raise bad_response("it sends too many interim responses")
                continue
            if not isinstance(event, ResponseReceived):
                raise bad_response("it has no head")
            status, headers = read_h2_response(event.headers)
            return status, headers, event.stream_ended is not None

    async def _end_body(
        self,
        stream: _RequestStream,
        destination: Destination,
        filtered: FilteredResponse,
        trailers: Fields,
    ) -> None:
        peer, stream_id = self._client, stream.inbox.stream_id
        rest = b""
        if filtered.cleaner is not None:
            rest = filtered.cleaner.end()
            self._filter.record_echoes(filtered.cleaner, destination)
        if rest or not trailers:
            await peer.send_data(stream_id, rest, is_end=not trailers, until=stream.until)
        if trailers:
            await peer.wait_for_room(stream.until)
            peer.send_headers(stream_id, trailers, is_end=True)


class _RequestStream:
    """The body of one request as it arrives, and the idle deadline of its two sides."""

    def __init__(
        self,
        session: EgressSession,
        peer: Http2Connection,
        inbox: StreamInbox,
        target: tuple[str, int],
    ) -> None:
        self.inbox = inbox
        self.target = target
        """The host and port that the request names."""
        self.length = DeclaredLength([], bad=bad_request)
        self.expects = False
        """The client waits for 100 Continue."""
        self.has_answer_begun = False
        self._unacknowledged: list[Data] = []
        self._peer = peer
        self._loop = session.shared.loop
        self._idle_timeout_s = session.settings.idle_timeout_s
        self._until = self._loop.time() + self._idle_timeout_s

    def until(self) -> float:
        """The shared deadline: one direction may be idle while the other one moves."""
        return self._until

    def touch(self) -> None:
        self._until = self._loop.time() + self._idle_timeout_s

    def body_now(self) -> bytes | None:
        while (event := self.inbox.now()) is not None:
            if isinstance(event, Data):
                self._unacknowledged.append(event)
                self.length.add(len(event.data))
                if event.data:
                    self.touch()
                    return bytes(event.data)
            elif isinstance(event, StreamEnded):
                self.length.end()
                return b""
            else:
                # Some servers merge trailers into the headers, which were checked without them.
                raise bad_request("it has trailers")
        return None

    async def catch_up(self) -> bool:
        return False  # `Http2Connection.read` parses frames, in turns

    async def body(self) -> bytes:
        while (piece := self.body_now()) is None:
            if self.expects and not self.has_answer_begun:
                self.expects = False
                self._peer.send_headers(self.inbox.stream_id, [(b":status", b"100")])
            await self.inbox.arrival(self.until)
        return piece

    def acknowledge(self) -> None:
        for data in self._unacknowledged:
            self.inbox.acknowledge(data)
        self._unacknowledged.clear()


@dataclass(frozen=True, slots=True)
class _Sink:
    """The upstream side of a request body."""

    _stream: _RequestStream
    _peer: Http2Connection
    _answer: StreamInbox

    async def put(self, data: bytes, *, is_end: bool) -> None:
        # A server may respond before it has read everything: its response counts.
        with contextlib.suppress(PeerClosed):
            await self._peer.send_data(
                self._answer.stream_id, data, is_end=is_end, until=self._stream.until
            )
            self._stream.touch()

    def abort_upload(self) -> None:
        self._peer.reset_stream(self._answer.stream_id)


def _head(request: HttpRequest, outgoing: OutgoingHead, sent: Fields) -> Fields:
    """The head to send. Injected and never-indexed headers stay out of the HPACK tables."""
    from_client = {*request.headers, *end_to_end_h2_headers(request.headers)}
    private = {pair[0] for pair in sent if isinstance(pair, NeverIndexedHeaderTuple)}
    path = (b":path", outgoing.path.encode("ascii"))
    return [
        (b":method", request.method.encode("ascii")),
        (b":scheme", b"https"),
        (b":authority", request.authority.encode("ascii")),
        path if outgoing.path == request.path else NeverIndexedHeaderTuple(*path),
        *(
            pair
            if pair in from_client and pair[0] not in private
            else NeverIndexedHeaderTuple(*pair)
            for pair in outgoing.headers
        ),
    ]


async def _pump(upload: RequestUpload, sink: _Sink, data: bytes, *, is_all: bool) -> None:
    if data or is_all:
        await sink.put(data, is_end=is_all)
    if not is_all:
        await upload.pump(sink)


def _fail(answer: StreamInbox, pump: asyncio.Task[None]) -> None:
    if not pump.cancelled() and (error := pump.exception()) is not None:
        answer.fail(error if isinstance(error, Exception) else PeerClosed())
