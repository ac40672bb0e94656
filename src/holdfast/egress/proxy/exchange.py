"""HTTP requests out of a cell and their answers, one after the other on one connection.

The steps of each request: (1) read strictly, (2) judge host, method and path, (3) look for what
must not leave, (4) put leased secrets in, (5) record, (6) ask the server, (7) give the answer back
without the secrets in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import h11

from holdfast.core.errors import EgressRefused, HoldfastError
from holdfast.core.types import Json
from holdfast.egress.protocols.framing import bad_request, bad_response, folded
from holdfast.egress.protocols.messages import Form, Request, forwardable, read_request, returnable
from holdfast.egress.proxy.ends import ClientEnd, ServerEnd
from holdfast.egress.proxy.session import Session, Target, Way
from holdfast.egress.proxy.spares import Key
from holdfast.egress.proxy.upload import Upload
from holdfast.egress.proxy.visit import Visit, tell_http, tell_nothing
from holdfast.egress.proxy.watched import relay_watched
from holdfast.egress.proxy.wire import Lost
from holdfast.egress.reach.allowlist import normal_path
from holdfast.egress.values.inject import Swapped, swap
from holdfast.egress.values.screen import BodyScan, Cleaner, EchoWatch, cleaned_headers

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""What may be asked again when a connection that was kept turns out to be closed (RFC 9110)."""
_TLS_PORT = 443
_NO_BODY = frozenset({204, 304})
_PIECES_PER_TURN = 64
_OF_PACKING = frozenset({b"accept-encoding", b"sec-websocket-extensions"})


class Exchange:
    """The requests of one client connection."""

    def __init__(
        self, session: Session, visit: Visit, *, fixed: Target | None, is_tls: bool
    ) -> None:
        """`fixed` is the one host it is for; without it each request names its own (a proxy's)."""
        self._session = session
        self._visit = visit
        self._fixed = fixed
        self._is_tls = is_tls
        self._client = ClientEnd(visit.stream, session.settings)
        self._server: ServerEnd | None = None
        self._fresh: Target | None = fixed

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
                self._server.abort(error if isinstance(error, HoldfastError) else None)
                self._server = None
            raise
        finally:
            if self._server is not None:
                self._session.spares.put(self._key(self._server.way), self._server)
                self._server = None

    async def _serve(self, request: Request) -> bool:
        """Whether the connection can have one more."""
        self._visit.tell = tell_http
        way = self._judge(request)
        # (3) As the code has sent it: what is put in below was allowed to leave.
        self._session.outside.known.check_head(request.path, request.headers)
        upload = Upload(self._client, self._session, request)
        await upload.gather()
        asked = await self._prepared(request, way)
        server = await self._ask(asked, way, upload)
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
            await _stop(pump)
        if not upload.is_sent and self._server is not None:
            # Part of a request is on its way: the next one would be taken for the rest of it.
            self._server.abort()
            self._server = None
        return keeps and upload.is_sent

    def _judge(self, request: Request) -> Way:
        # (2)
        fixed = None if self._fixed is None else self._fixed.way
        if fixed is None and request.form is not Form.ABSOLUTE:
            raise bad_request("a proxy is asked with a whole URL")
        if fixed is not None and (request.host, request.port) != (fixed.authority, fixed.port):
            raise EgressRefused(
                "the request is for another host than its connection",
                mend="Open a connection for each host.",
                code="HF-HOST-MISMATCH",
            )
        if not self._is_tls and request.port == _TLS_PORT:
            raise EgressRefused(
                "port 443 is reached with TLS only", mend="Use an https URL.", code="HF-NOT-TLS"
            )
        way = self._session.way(request.host, request.port)
        path = normal_path(request.path.partition("?")[0])
        for method in request.methods:
            if not any(rule.allows(method, path) for rule in way.rules):
                raise EgressRefused(
                    f"no rule allows {method[:32]} for this path of {way.host}:{way.port}",
                    mend="Allow it with `--allow-domain 'METHOD host/path'` if it should be.",
                    code="HF-NOT-ALLOWED",
                )
        return way

    async def _prepared(self, request: Request, way: Way) -> h11.Request:
        headers = [
            (b"host", request.authority.encode("ascii")),
            *(
                pair
                for pair in forwardable(request.headers, is_upgrade=request.is_upgrade)
                if pair[0] not in (b"host", b"expect")
            ),
        ]
        path = request.path
        if self._session.secrets:
            # (4)
            swapped = self._swapped(request, headers, way)
            path, headers = swapped.path, swapped.headers
            if way.secrets:
                # Before anything leaves: by the time of the answer the lease may be over.
                self._session.told(way, swapped.told)
                headers = _answerable(headers)
            # (5)
            facts: dict[str, Json] = {
                "host": way.host,
                "port": way.port,
                "method": request.method,
                "via": self._visit.via,
            }
            for name in swapped.used:
                await self._session.ledger.write({"event": "secret-used", "secret": name, **facts})
            for name in swapped.stayed:
                self._session.ledger.note_once(
                    {"event": "placeholder-stayed", "secret": name, **facts}
                )
        return h11.Request(method=request.method, target=path, headers=headers)

    def _swapped(self, request: Request, headers: list[tuple[bytes, bytes]], way: Way) -> Swapped:
        first, *others = (
            swap(
                headers,
                self._session.secrets,
                host=way.host,
                port=way.port,
                method=method,
                path=request.path,
                is_tls=self._is_tls,
            )
            for method in request.methods
        )
        if any(other != first for other in others):
            raise EgressRefused(
                "a header gives the request another method, for which the secret is not bound",
                mend="Send the request with the method that is meant.",
                code="HF-SECRET-METHOD",
            )
        return first

    async def _ask(self, asked: h11.Request, way: Way, upload: Upload) -> ServerEnd:
        """(6) on the connection that was kept, or on a new one if that has been closed."""
        while True:
            server, is_kept = await self._server_for(way)
            try:
                server.has_answered = False
                server.journey.request_count += 1
                await server.send(server.side.send(asked) + upload.first(server))
                if upload.is_complete:
                    await server.ready()
                return server
            except Lost:
                server.abort()
                self._server = None
                is_repeatable = upload.is_complete and asked.method.decode() in _REPEATABLE
                if not (is_kept and is_repeatable):
                    raise server.gone() from None

    async def _server_for(self, way: Way) -> tuple[ServerEnd, bool]:
        key, spares = self._key(way), self._session.spares
        kept, self._server = self._server, None
        if kept is not None and self._key(kept.way) != key:
            spares.put(self._key(kept.way), kept)
        elif kept is not None and not kept.next_cycle():
            kept.drop()
        else:
            self._server = kept
        self._server = self._server or spares.take(key)
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

    def _key(self, way: Way) -> Key:
        # Of one action alone: another one that reaches out has that on record, too.
        return way.host, way.port, self._is_tls, self._session.ledger.traveller.action_id

    async def _answer(self, request: Request, way: Way, server: ServerEnd) -> bool:
        # (7)
        while not isinstance(head := await server.event(), h11.Response):
            if not isinstance(head, h11.InformationalResponse):
                raise bad_response("it ends before it begins")
            if head.status_code == 101:
                await self._switch(request, way, server, head)
                return False
        client = self._client
        has_body = request.method != "HEAD" and head.status_code not in _NO_BODY
        headers = list(head.headers)
        reason = head.reason
        echoes = self._session.echoes_from(way)
        cleaner = None
        if echoes is not None:
            most = self._session.settings.max_download_bytes
            cleaner = Cleaner(headers, echoes, max_bytes=most) if has_body else None
            headers = cleaned_headers(head.headers.raw_items(), echoes, has_body=has_body)
            reason = echoes.cleaned(reason)
        headers = [pair for pair in returnable(headers) if pair[0] != b"transfer-encoding"]
        response = h11.Response(status_code=head.status_code, headers=headers, reason=reason)
        out = [client.side.send(response)]
        self._visit.tell = tell_nothing
        while True:
            piece = server.event_now()
            if piece is None:
                await client.send(b"".join(out))
                out.clear()
                piece = await server.event()
            elif len(out) >= _PIECES_PER_TURN:
                await client.send(b"".join(out))
                out.clear()
                await asyncio.sleep(0)  # thousands of tiny chunks must not stop everybody
            if isinstance(piece, h11.Data):
                for data in _pieces(cleaner, bytes(piece.data)):
                    out.append(client.side.send(h11.Data(data=data)))
                    if cleaner is not None:
                        # A little that was packed well becomes a lot: never all of it at once.
                        await client.send(b"".join(out))
                        out.clear()
                        await asyncio.sleep(0)
            elif isinstance(piece, h11.EndOfMessage):
                out.append(self._last(cleaner, server))
                await client.send(b"".join(out))
                return client.side.next_cycle()
            else:
                raise bad_response("it ends in the middle")

    def _last(self, cleaner: Cleaner | None, server: ServerEnd) -> bytes:
        side = self._client.side
        data = b""
        if cleaner is not None:
            rest = cleaner.end()
            data = side.send(h11.Data(data=rest)) if rest else b""
            for name in cleaner.found:
                self._session.ledger.note_once(
                    {"event": "echo-removed", "secret": name, "host": server.way.host}
                )
        return data + side.send(h11.EndOfMessage())

    async def _switch(
        self, request: Request, way: Way, server: ServerEnd, event: h11.InformationalResponse
    ) -> None:
        """To WebSocket: from here on there are no messages, only bytes to look at."""
        if not request.is_upgrade:
            raise bad_response("it switches to a protocol that nobody asked for")
        client = self._client
        headers = list(event.headers)
        echoes = self._session.echoes_from(way)
        if echoes is not None:
            headers = cleaned_headers(event.headers.raw_items(), echoes, has_body=False)
        switch = h11.InformationalResponse(
            status_code=101,
            headers=returnable(headers, is_upgrade=True),
            reason=b"Switching Protocols",
        )
        self._visit.tell = tell_nothing
        await client.send(client.side.send(switch))
        settings = self._session.settings
        scan = BodyScan(
            (),
            self._session.outside.known.index(),
            max_upload_bytes=settings.max_upload_bytes,
        )
        await relay_watched(
            client.stream,
            server.stream,
            idle_timeout_s=settings.idle_timeout_s,
            first_up=client.side.rest,
            first_down=server.side.rest,
            look_up=scan.check,
            look_down=None if echoes is None else EchoWatch(echoes).check,
        )


def _pieces(cleaner: Cleaner | None, data: bytes) -> Iterator[bytes]:
    return iter((data,)) if cleaner is None else cleaner.feed(data)


def _answerable(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Asks for an answer that can be looked through.

    Whole: a value that is fetched in parts is not met (`Range`, `X-Ms-Range`, `Request_Range`).
    """
    kept = [
        (name, value)
        for name, value in headers
        if name not in _OF_PACKING
        and (not folded(name).endswith(b"range") or name == b"content-range")
    ]
    return [*kept, (b"accept-encoding", b"identity")]


async def _stop(pump: asyncio.Task[None]) -> None:
    pump.cancel()
    await asyncio.wait((pump,))
    if not pump.cancelled():
        pump.exception()  # told by whoever asked for it; else it would be logged as forgotten
