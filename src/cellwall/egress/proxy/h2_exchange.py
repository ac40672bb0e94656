"""One request by a stream of HTTP/2 and its answer; the steps are those of `passage`."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import closing
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
from cellwall.egress.protocols.error_replies import refusal
from cellwall.egress.protocols.h2_frames import COST_OF_REFUSED, PAY_OF_ANSWER
from cellwall.egress.protocols.h2_headers import (
    Length,
    forwardable,
    read_answer,
    read_head,
    read_trailers,
)
from cellwall.egress.protocols.http1_framing import bad_request, bad_response
from cellwall.egress.protocols.http1_requests import Request
from cellwall.egress.proxy.client_connection import Visit
from cellwall.egress.proxy.connections import ServerEnd
from cellwall.egress.proxy.h2_connection import STREAM_BYTES, Header, Line
from cellwall.egress.proxy.h2_streams import Data, Inbox, Reset
from cellwall.egress.proxy.http1_exchange import pieces_of, stop
from cellwall.egress.proxy.request_filter import Asked, Passage, Shown, Upload
from cellwall.egress.proxy.session import Session, Way
from cellwall.egress.proxy.streams import Lost

AnswerHead = tuple[int, list[Header], bool]
"""Status, headers, and whether that is all."""

_MAX_INTERIM = 16
_SAY_NO_S = 2.0


class StreamExchange:
    """The requests of one client connection, any number of them at a time."""

    def __init__(
        self, session: Session, visit: Visit, *, client: Line, server: Line, end: ServerEnd
    ) -> None:
        """`end` is the connection of the server's line."""
        self._session = session
        self._visit = visit
        self._client = client
        self._server = server
        self._end = end
        self._loop = session.outside.loop
        self._passage = Passage(session, visit, fixed=end.way, is_tls=True)

    async def serve(self, inbox: Inbox, headers: list[Header]) -> None:
        """One request, to the end of its stream."""
        stream = _Stream(
            self._session, self._client, inbox, (self._end.way.host, self._end.way.port)
        )
        try:
            await self._exchange(stream, headers)
        except asyncio.CancelledError:
            self._client.give_up(inbox.stream_id)
            raise
        except (Lost, Reset) as error:
            code = error.code if isinstance(error, Reset) else ErrorCodes.CANCEL
            self._client.give_up(inbox.stream_id, code)
        except CellwallError as error:
            await self._refuse(stream, error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours is a refusal like any other
            await self._refuse(
                stream, EgressRefused("the proxy failed", detail=type(error).__name__)
            )
        finally:
            self._client.forget(inbox.stream_id)

    async def _refuse(self, stream: _Stream, error: CellwallError) -> None:
        stream_id, (host, port) = stream.inbox.stream_id, stream.target
        self._session.refused(error, host=host, port=port, via=self._visit.via)
        self._client.waste.charge(COST_OF_REFUSED)  # if that was too much, its next head shows it
        code = ErrorCodes.INTERNAL_ERROR
        if not stream.has_answer_begun:
            status, fields, body = refusal(error, host=host, port=port)
            head = [(b":status", str(status).encode())]
            head += [(name.lower().encode(), value.encode()) for name, value in fields]
            with contextlib.suppress(Lost, EgressRefused):
                self._client.head(stream_id, head)
                until = self._loop.time() + _SAY_NO_S
                await self._client.data(stream_id, body, is_end=True, until=lambda: until)
                code = ErrorCodes.NO_ERROR
        # With what it still sends nobody does anything (RFC 9113, 8.1).
        self._client.give_up(stream_id, code)

    async def _exchange(self, stream: _Stream, headers: list[Header]) -> None:
        # (1)
        request = read_head(headers)
        stream.target = request.host, request.port
        way = self._passage.judge(request)
        stream.length = Length(request.headers, bad=bad_request)
        stream.expects = any(name == b"expect" for name, _ in request.headers)
        lookout = self._passage.lookout(request)
        with closing(Upload(stream, self._session, request, lookout)) as upload:
            await self._asked(stream, request, way, upload, headers)
        if not stream.inbox.has_ended:
            # The answer came before the end of what it answers; nobody wants the rest.
            self._client.give_up(stream.inbox.stream_id, ErrorCodes.NO_ERROR)
        self._client.toll.pay(PAY_OF_ANSWER)
        self._client.waste.pay(PAY_OF_ANSWER)

    async def _asked(
        self, stream: _Stream, request: Request, way: Way, upload: Upload, headers: list[Header]
    ) -> None:
        await upload.gather()
        asked = await self._passage.prepared(request, way, forwardable(request.headers))
        self._session.ledger.check()
        data, is_all = upload.first()
        # (6)
        try:
            head = _head(request, asked, headers)
            answer = await self._server.ask(
                head,
                is_end=is_all and not data,
                holds_bytes=stream.inbox.left_bytes if is_all else STREAM_BYTES,
            )
        except Lost:
            raise self._end.gone() from None
        self._end.journey.request_count += 1
        sink = _Sink(stream, self._server, answer)
        pump: asyncio.Task[None] | None = None
        try:
            if not is_all or not self._server.has_room(answer.stream_id, len(data)):
                # What ends the upload ends the wait for its answer.
                pump = asyncio.create_task(_pump(upload, sink, data, is_all=is_all))
                pump.add_done_callback(partial(_fail, answer))
            elif data:
                await sink.put(data, is_end=True)
            await self._answer(stream, request, way, answer)
        finally:
            if pump is not None:
                await stop(pump)
            self._server.give_up(answer.stream_id)
            self._server.forget(answer.stream_id)

    async def _answer(self, stream: _Stream, request: Request, way: Way, answer: Inbox) -> None:
        # (7)
        status, headers, ended = await self._answer_head(stream, answer)
        shown = self._passage.shown(request, way, status, headers)
        try:
            await self._pass_on(stream, way, answer, shown, (status, headers, ended))
        finally:
            if shown.cleaner is not None:
                shown.cleaner.close()

    async def _pass_on(
        self, stream: _Stream, way: Way, answer: Inbox, shown: Shown, said: AnswerHead
    ) -> None:
        status, headers, ended = said
        length = Length(headers if shown.has_body else [], bad=bad_response)
        if ended:
            length.end()
        head = [(b":status", str(status).encode()), *shown.headers]
        stream.has_answer_begun = True
        line, stream_id = self._client, stream.inbox.stream_id
        if ended and (shown.cleaner is None or not shown.has_body):
            line.head(stream_id, head, is_end=True)
            return
        line.head(stream_id, head)
        trailers: list[Header] = []
        while not ended:
            event = await answer.next(stream.until)
            stream.moved()
            if isinstance(event, Data):
                if event.data and not shown.has_body:
                    # Of these nothing was judged: not its length, its packing, what is in it.
                    raise bad_response("it has a body where none can be")
                length.add(len(event.data))
                async for piece in pieces_of(shown.cleaner, bytes(event.data)):
                    await line.data(stream_id, piece, is_end=False, until=stream.until)
                    stream.moved()
                answer.done_with(event)
            elif isinstance(event, TrailersReceived):
                trailers = self._passage.shown_trailers(way, read_trailers(event.headers))
            elif isinstance(event, StreamEnded):
                ended = True
            else:
                raise bad_response("it has a second head")
        length.end()
        await self._last(stream, way, shown, trailers)

    async def _answer_head(self, stream: _Stream, answer: Inbox) -> AnswerHead:
        interim_count = 0
        while True:
            event = await answer.next(stream.until)
            stream.moved()
            if isinstance(event, InformationalResponseReceived):
                read_answer(event.headers)
                interim_count += 1
                if interim_count > _MAX_INTERIM:
                    raise bad_response("it sends one interim answer after the other")
                continue
            if not isinstance(event, ResponseReceived):
                raise bad_response("it ends before it begins")
            status, headers = read_answer(event.headers)
            return status, headers, event.stream_ended is not None

    async def _last(self, stream: _Stream, way: Way, shown: Shown, trailers: list[Header]) -> None:
        line, stream_id = self._client, stream.inbox.stream_id
        rest = b""
        if shown.cleaner is not None:
            rest = shown.cleaner.end()
            self._passage.note_echoes(shown.cleaner, way)
        if rest or not trailers:
            await line.data(stream_id, rest, is_end=not trailers, until=stream.until)
        if trailers:
            line.head(stream_id, trailers, is_end=True)


class _Stream:
    """The body of one request as it comes, and how long its two ends may take."""

    def __init__(self, session: Session, line: Line, inbox: Inbox, target: tuple[str, int]) -> None:
        self.inbox = inbox
        self.target = target
        """Which host and port it is for, or says it is."""
        self.length = Length([], bad=bad_request)
        self.expects = False
        """The client holds its body back until somebody wants it."""
        self.has_answer_begun = False
        self._taken: list[Data] = []
        self._line = line
        self._loop = session.outside.loop
        self._idle_timeout_s = session.settings.idle_timeout_s
        self._until = self._loop.time() + self._idle_timeout_s

    def until(self) -> float:
        """One direction may be silent while the other one moves."""
        return self._until

    def moved(self) -> None:
        self._until = self._loop.time() + self._idle_timeout_s

    def body_now(self) -> bytes | None:
        while (event := self.inbox.now()) is not None:
            if isinstance(event, Data):
                self._taken.append(event)
                self.length.add(len(event.data))
                if event.data:
                    self.moved()
                    return bytes(event.data)
            elif isinstance(event, StreamEnded):
                self.length.end()
                return b""
            else:
                # Some servers take a trailer for a header, after we have judged the headers.
                raise bad_request("it has header lines behind its body")
        return None

    async def catch_up(self) -> bool:
        return False  # frames are read by others, in turns

    async def body(self) -> bytes:
        while (piece := self.body_now()) is None:
            if self.expects and not self.has_answer_begun:
                self.expects = False
                self._line.head(self.inbox.stream_id, [(b":status", b"100")])
            await self.inbox.arrival(self.until)
        return piece

    def done(self) -> None:
        for data in self._taken:
            self.inbox.done_with(data)
        self._taken.clear()


class _Sink:
    """Where the body of a request goes."""

    def __init__(self, stream: _Stream, line: Line, answer: Inbox) -> None:
        self._stream = stream
        self._line = line
        self._answer = answer

    async def put(self, data: bytes, *, is_end: bool) -> None:
        # A server may answer before it has read everything: its answer still counts.
        with contextlib.suppress(Lost):
            await self._line.data(
                self._answer.stream_id, data, is_end=is_end, until=self._stream.until
            )
            self._stream.moved()

    def cut(self) -> None:
        self._line.give_up(self._answer.stream_id)


def _head(request: Request, asked: Asked, sent: list[Header]) -> list[Header]:
    """As it leaves. What was put in, or came so, is not kept in the tables that pack headers."""
    said = {*request.headers, *forwardable(request.headers)}
    private = {pair[0] for pair in sent if isinstance(pair, NeverIndexedHeaderTuple)}
    path = (b":path", asked.path.encode("ascii"))
    return [
        (b":method", request.method.encode("ascii")),
        (b":scheme", b"https"),
        (b":authority", request.authority.encode("ascii")),
        path if asked.path == request.path else NeverIndexedHeaderTuple(*path),
        *(
            pair if pair in said and pair[0] not in private else NeverIndexedHeaderTuple(*pair)
            for pair in asked.headers
        ),
    ]


async def _pump(upload: Upload, sink: _Sink, data: bytes, *, is_all: bool) -> None:
    if data or is_all:
        await sink.put(data, is_end=is_all)
    if not is_all:
        await upload.pump(sink)


def _fail(answer: Inbox, pump: asyncio.Task[None]) -> None:
    if not pump.cancelled() and (error := pump.exception()) is not None:
        answer.fail(error if isinstance(error, Exception) else Lost())
