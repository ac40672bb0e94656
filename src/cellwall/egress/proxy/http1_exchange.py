"""HTTP/1.1 requests out of a cell and their answers, one after the other on one connection.

The steps are those of `passage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.inspection.body_filters import BodyScan, Cleaner, EchoWatch, cleaned_headers
from cellwall.egress.protocols.http1_codec import ResponseHead
from cellwall.egress.protocols.http1_framing import bad_request, bad_response
from cellwall.egress.protocols.http1_requests import (
    Form,
    Request,
    forwardable,
    read_request,
    returnable,
)
from cellwall.egress.proxy.client_connection import Visit, tell_http, tell_nothing
from cellwall.egress.proxy.connections import ClientEnd, ServerEnd
from cellwall.egress.proxy.request_filter import Asked, Passage, Upload
from cellwall.egress.proxy.resources import Key
from cellwall.egress.proxy.session import Session, Target, Way
from cellwall.egress.proxy.streams import Lost, Stream

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""What may be asked again when a connection that was kept turns out to be closed (RFC 9110)."""
_PIECES_PER_TURN = 64


class Exchange:
    """The requests of one client connection."""

    def __init__(
        self,
        session: Session,
        visit: Visit,
        *,
        fixed: Target | None,
        is_tls: bool,
        ready: ServerEnd | CellwallError | None = None,
    ) -> None:
        """`fixed` is the one host it is for; without it each request names its own (a proxy's).

        `ready` is a connection to there that was made before, or why it could not be.
        """
        self._session = session
        self._visit = visit
        self._fixed = fixed
        self._is_tls = is_tls
        self._client = ClientEnd(visit.stream, session.settings, session.share.turn)
        self._server: ServerEnd | None = None
        self._ready = ready
        self._fresh: Target | None = fixed
        way = None if fixed is None else fixed.way
        self._passage = Passage(session, visit, fixed=way, is_tls=is_tls)

    async def run(self) -> tuple[Request, bytes] | None:
        """Until the client has no more requests, or with CONNECT the last one and what follows."""
        is_first = True
        try:
            while (event := await self._client.head(is_first=is_first)) is not None:
                is_first = False
                # (1)
                request = read_request(event, scheme="https" if self._is_tls else "http")
                self._visit.wants(request.host, request.port)
                if request.form is Form.AUTHORITY:
                    if self._fixed is not None:
                        raise bad_request("CONNECT within a connection that has its host already")
                    return request, self._client.side.rest
                if not await self._serve(request):
                    break
            return None
        except BaseException as error:
            if self._server is not None:
                self._server.abort(error if isinstance(error, CellwallError) else None)
                self._server = None
            raise
        finally:
            if isinstance(self._ready, ServerEnd):
                self._ready.drop()
            if self._server is not None:
                self._keep(self._server)
                self._server = None

    async def _serve(self, request: Request) -> bool:
        """Whether the connection can have one more."""
        self._visit.tell = tell_http
        way = self._passage.judge(request)
        with closing(
            Upload(self._client, self._session, request, self._passage.lookout(request))
        ) as upload:
            return await self._exchanged(request, way, upload)

    async def _exchanged(self, request: Request, way: Way, upload: Upload) -> bool:
        await upload.gather()
        asked = await self._prepared(request, way)
        server = await self._ask(request.method, asked, way, upload)
        if upload.is_complete:
            return await self._answer(request, way, server)
        pump = asyncio.create_task(upload.pump(server))
        try:
            keeps = await self._answer(request, way, server)
        except EgressRefused:
            # What ended the upload is the cause; that the server went away follows from it.
            if pump.done() and not pump.cancelled() and (error := pump.exception()) is not None:
                raise error from None
            raise
        finally:
            await stop(pump)
        if not upload.is_sent and self._server is not None:
            # Part of a request is on its way: the next one would be taken for the rest of it.
            self._server.abort()
            self._server = None
        if not upload.is_sent:
            # It was answered early: with bytes unread the kernel would reset the answer away.
            await self._client.stream.close_after_answer()
        return keeps and upload.is_sent

    async def _prepared(self, request: Request, way: Way) -> Asked:
        headers = [
            (b"host", request.authority.encode("ascii")),
            *(
                pair
                for pair in forwardable(request.headers, is_upgrade=request.is_upgrade)
                if pair[0] not in (b"host", b"expect")
            ),
        ]
        return await self._passage.prepared(request, way, headers)

    async def _ask(self, method: str, asked: Asked, way: Way, upload: Upload) -> ServerEnd:
        """(6) on the connection that was kept, or on a new one if that has been closed."""
        while True:
            server, is_kept = await self._server_for(way)
            try:
                server.has_answered = False
                server.journey.request_count += 1
                data, is_end = upload.first()
                head = server.side.send_head(
                    method.encode("ascii"), asked.path.encode("ascii"), asked.headers
                )
                await server.send(head + server.encoded(data, is_end=is_end))
                if upload.is_complete:
                    await server.ready()
                return server
            except Lost:
                server.abort()
                self._server = None
                is_repeatable = upload.is_complete and method in _REPEATABLE
                if not (is_kept and is_repeatable):
                    raise server.gone() from None

    async def _server_for(self, way: Way) -> tuple[ServerEnd, bool]:
        ready, self._ready = self._ready, None
        if isinstance(ready, CellwallError):
            raise ready
        if ready is not None:
            self._server = ready
            return ready, True
        key = self._key(way, self._session.ledger.traveller.action_id)
        kept, self._server = self._server, None
        if kept is not None and self._key(kept.way, kept.journey.action_id) != key:
            self._keep(kept)
        elif kept is not None and not kept.next_cycle():
            kept.drop()
        else:
            self._server = kept
        if self._server is None and isinstance(spare := self._session.spares.take(key), ServerEnd):
            self._server = spare
        if self._server is not None:
            self._session.ledger.check()
            return self._server, True
        # The first connection goes where was looked when the client was let in.
        target, self._fresh = self._fresh, None
        if target is None:
            target = await self._session.resolve(way)
        self._server = await ServerEnd.connect(
            self._session, target, is_tls=self._is_tls, via=self._visit.via
        )
        return self._server, False

    def _key(self, way: Way, action_id: str) -> Key:
        # Of one action alone: another one that reaches out has that on record, too.
        return way.host, way.port, self._is_tls, action_id

    def _keep(self, server: ServerEnd) -> None:
        # A client may have been there in an action before: what was opened then is of that one.
        self._session.spares.put(self._key(server.way, server.journey.action_id), server)

    async def _answer(self, request: Request, way: Way, server: ServerEnd) -> bool:
        # (7)
        while isinstance(head := await server.event(), ResponseHead) and head.status < 200:
            if head.status == 101:
                await self._switch(request, way, server, head)
                return False
        if not isinstance(head, ResponseHead):
            raise bad_response("it ends before it begins")
        client = self._client
        shown = self._passage.shown(request, way, head.status, head.written)
        reason = self._passage.cleaned(way, head.reason)
        headers = [pair for pair in returnable(shown.headers) if pair[0] != b"transfer-encoding"]
        first = client.side.send_head(head.status, headers, reason)
        self._visit.tell = tell_nothing
        try:
            await self._pass_on(server, shown.cleaner, first)
        finally:
            if shown.cleaner is not None:
                shown.cleaner.close()
        # The answer is whole: what is wrong with the next request can be told.
        self._visit.tell = tell_http
        if client.side.rest:
            await self._session.share.turn()
        return client.side.next_cycle()

    async def _pass_on(self, server: ServerEnd, cleaner: Cleaner | None, first: bytes) -> None:
        client, out = self._client, [first]
        while True:
            piece = server.event_now()
            if piece is None:
                await client.send(b"".join(out))
                out.clear()
                # Where both sides are quick nothing here waits, and nobody else would have a turn.
                await self._session.share.turn()
                piece = await server.event()
            elif len(out) >= _PIECES_PER_TURN:
                await client.send(b"".join(out))
                out.clear()
                # Thousands of tiny chunks must not stop everybody.
                await self._session.share.turn()
            if isinstance(piece, ResponseHead):
                raise bad_response("another one stands in the middle of it")
            if not piece:
                out.append(self._last(cleaner, server))
                await client.send(b"".join(out))
                return
            async for data in pieces_of(cleaner, piece):
                out.append(client.side.send_data(data))
                if cleaner is not None:
                    # A little that was packed well becomes a lot: never all of it at once.
                    await client.send(b"".join(out))
                    out.clear()

    def _last(self, cleaner: Cleaner | None, server: ServerEnd) -> bytes:
        side = self._client.side
        data = b""
        if cleaner is not None:
            rest = cleaner.end()
            data = side.send_data(rest)
            self._passage.note_echoes(cleaner, server.way)
        return data + side.send_end()

    async def _switch(
        self, request: Request, way: Way, server: ServerEnd, head: ResponseHead
    ) -> None:
        """To WebSocket: from here on there are no messages, only bytes to look at."""
        if not request.is_upgrade:
            raise bad_response("it switches to a protocol that nobody asked for")
        client = self._client
        headers = head.headers
        echoes = self._session.echoes_from(way)
        if echoes is not None:
            headers = cleaned_headers(head.written, echoes, has_body=False)
        switch = client.side.send_interim(
            101, returnable(headers, is_upgrade=True), b"Switching Protocols"
        )
        self._visit.tell = tell_nothing
        await client.send(switch)
        settings = self._session.settings
        scan = BodyScan(
            (),
            self._session.outside.known.index(),
            lookout=self._passage.lookout(request),
            share=self._session.share,
        )
        await relay_watched(
            client.stream,
            server.stream,
            idle_timeout_s=settings.idle_timeout_s,
            first_up=client.side.rest,
            first_down=server.side.rest,
            turn=self._session.share.turn,
            look_up=scan.check,
            look_down=None if echoes is None else EchoWatch(echoes).check,
        )


async def pieces_of(cleaner: Cleaner | None, data: bytes) -> AsyncIterator[bytes]:
    """What of an answer's body may be shown."""
    if cleaner is None:
        yield data
        return
    async for piece in cleaner.feed(data):
        yield piece


async def stop(pump: asyncio.Task[None]) -> None:
    """End an upload, whether it is done or not."""
    pump.cancel()
    await asyncio.wait((pump,))
    if not pump.cancelled():
        pump.exception()  # told by whoever asked for it; else it would be logged as forgotten


Look = Callable[[bytes], None]
"""Raises `EgressRefused` for what must not pass."""


async def relay_watched(
    client: Stream,
    server: Stream,
    *,
    idle_timeout_s: float,
    first_up: bytes,
    first_down: bytes,
    turn: Callable[[], Awaitable[None]],
    look_up: Look | None = None,
    look_down: Look | None = None,
) -> None:
    """Until one of them ends: TLS and WebSocket know no half-closed connection.

    `turn` is awaited before each piece.
    """
    loop = asyncio.get_running_loop()
    moved_at_s = loop.time()

    async def one_way(source: Stream, target: Stream, first: bytes, look: Look | None) -> None:
        nonlocal moved_at_s
        data = first
        while True:
            if data:
                moved_at_s = loop.time()
                await turn()
                if look is not None:
                    look(data)
                await target.send(data, loop.time() + idle_timeout_s)
            try:
                data = await source.recv(moved_at_s + idle_timeout_s)
            except EgressRefused:
                # A stream that only ever goes the other way is not idle.
                if loop.time() < moved_at_s + idle_timeout_s:
                    data = b""
                    continue
                raise
            if not data:
                return

    tasks = (
        asyncio.create_task(one_way(client, server, first_up, look_up)),
        asyncio.create_task(one_way(server, client, first_down, look_down)),
    )
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
