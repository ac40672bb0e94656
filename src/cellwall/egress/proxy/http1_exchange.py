"""HTTP/1.1 requests of a cell and their responses, one after the other on one connection.

The numbered steps are in `request_filter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.inspection.body_filters import (
    BodyScan,
    EchoDetector,
    ResponseCleaner,
    clean_headers,
    pieces_of,
)
from cellwall.egress.inspection.injection import OutgoingHead
from cellwall.egress.limits import PoolKey
from cellwall.egress.protocols.http1_codec import ResponseHead
from cellwall.egress.protocols.http1_framing import bad_request, bad_response
from cellwall.egress.protocols.http_heads import (
    HttpRequest,
    TargetForm,
    end_to_end_headers,
    read_request,
)
from cellwall.egress.proxy.client_connection import (
    ClientConnection,
    http_refusal,
    no_refusal,
)
from cellwall.egress.proxy.connections import DownstreamConnection, UpstreamConnection
from cellwall.egress.proxy.host_service_exchange import HostServiceExchange
from cellwall.egress.proxy.relay import InspectBytes
from cellwall.egress.proxy.request_filter import RequestFilter, RequestUpload
from cellwall.egress.proxy.session import Destination, EgressSession, ResolvedDestination
from cellwall.egress.proxy.streams import ByteStream, PeerClosed

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Idempotent methods: repeated if a pooled connection turns out to be closed (RFC 9110)."""
_PIECES_PER_TURN = 64


class Http1Exchange:
    """The requests of one client connection."""

    def __init__(
        self,
        session: EgressSession,
        connection: ClientConnection,
        *,
        fixed: ResolvedDestination | None,
        is_tls: bool,
        ready: UpstreamConnection | CellwallError | None = None,
    ) -> None:
        """`fixed` is the only destination; None: each request names its own (a forward proxy).

        `ready` is a connection to it that was made before, or the error of that attempt.
        """
        self._session = session
        self._connection = connection
        self._fixed = fixed
        self._is_tls = is_tls
        self._client = DownstreamConnection(
            connection.stream, session.settings, session.share.wait_turn
        )
        self._server: UpstreamConnection | None = None
        self._ready = ready
        self._fresh: ResolvedDestination | None = fixed
        destination = None if fixed is None else fixed.destination
        self._filter = RequestFilter(session, connection, _fixed=destination, _is_tls=is_tls)
        self._services = HostServiceExchange(session, connection, self._client, self._filter)

    async def run(self) -> tuple[HttpRequest, bytes] | None:
        """Serve all requests; returns a CONNECT request and the bytes behind it, if one comes."""
        is_first = True
        try:
            while (event := await self._client.head(is_first=is_first)) is not None:
                is_first = False
                if self._fixed is None and self._connection.authenticate is not None:
                    # Each request anew: a connection may carry those of several programs.
                    event = event._replace(headers=self._connection.authenticate(event.headers))
                # (1)
                request = read_request(event, scheme="https" if self._is_tls else "http")
                self._connection.set_target(request.host, request.port)
                if request.form is TargetForm.AUTHORITY:
                    if self._fixed is not None:
                        raise bad_request("CONNECT inside a connection that already has a host")
                    return request, self._client.codec.rest
                if not await self._serve(request):
                    break
            return None
        except BaseException as error:
            if self._server is not None:
                self._server.abort(error if isinstance(error, CellwallError) else None)
                self._server = None
            raise
        finally:
            self._services.close()
            if isinstance(self._ready, UpstreamConnection):
                self._ready.drop()
            if self._server is not None:
                self._keep(self._server)
                self._server = None

    async def _serve(self, request: HttpRequest) -> bool:
        """Serve one request; whether the connection can have another one."""
        self._connection.encode_refusal = http_refusal
        destination = await self._filter.authorize(request)
        with closing(
            RequestUpload(self._client, self._session, request, self._filter.leak_reporter(request))
        ) as upload:
            return await self._exchange(request, destination, upload)

    async def _exchange(
        self, request: HttpRequest, destination: Destination, upload: RequestUpload
    ) -> bool:
        await upload.gather()
        outgoing = await self._prepare(request, destination)
        if destination.service is not None:
            await self._services.answer(request, destination, outgoing)
            if not upload.is_complete:
                await self._client.stream.close_after_answer()
            return upload.is_complete and await self._end_response()
        server = await self._send_request(request.method, outgoing, destination, upload)
        if upload.is_complete:
            return await self._relay_response(request, destination, server)
        pump = asyncio.create_task(upload.pump(server))
        try:
            keeps = await self._relay_response(request, destination, server)
        except EgressRefused:
            # The upload error is the cause; the closed connection follows from it.
            if pump.done() and not pump.cancelled() and (error := pump.exception()) is not None:
                raise error from None
            raise
        finally:
            await stop(pump)
        if not upload.is_sent and self._server is not None:
            # A partial request was sent: the server would take the next one for the rest of it.
            self._server.abort()
            self._server = None
        if not upload.is_sent:
            # Early response: with unread bytes the kernel would reset the connection.
            await self._client.stream.close_after_answer()
        return keeps and upload.is_sent

    async def _prepare(self, request: HttpRequest, destination: Destination) -> OutgoingHead:
        forwarded = end_to_end_headers(
            request.headers, bad=bad_request, is_upgrade=request.is_upgrade
        )
        headers = [(b"host", request.authority.encode("ascii"))]
        headers += [pair for pair in forwarded if pair[0] not in (b"host", b"expect")]
        return await self._filter.prepare(request, destination, headers)

    async def _send_request(
        self, method: str, outgoing: OutgoingHead, destination: Destination, upload: RequestUpload
    ) -> UpstreamConnection:
        """(6) on a pooled connection, or on a new one if the server has closed that."""
        while True:
            server, is_kept = await self._server_for(destination)
            try:
                server.has_answered = False
                server.connection_record.request_count += 1
                data, is_end = upload.first()
                head = server.codec.send_head(
                    method.encode("ascii"), outgoing.path.encode("ascii"), outgoing.headers
                )
                await server.send(head + server.encoded(data, is_end=is_end))
                if upload.is_complete:
                    await server.wait_for_response()
                return server
            except PeerClosed:
                server.abort()
                self._server = None
                is_repeatable = upload.is_complete and method in _REPEATABLE
                if not (is_kept and is_repeatable):
                    raise server.closed_early() from None

    async def _server_for(self, destination: Destination) -> tuple[UpstreamConnection, bool]:
        ready, self._ready = self._ready, None
        if isinstance(ready, CellwallError):
            raise ready
        if ready is not None:
            self._server = ready
            return ready, True
        key = self._key(destination, self._session.audit.context.action_id)
        previous, self._server = self._server, None
        if (
            previous is not None
            and self._key(previous.destination, previous.connection_record.action_id) != key
        ):
            self._keep(previous)
        elif previous is not None and not previous.next_cycle():
            previous.drop()
        else:
            self._server = previous
        if self._server is None and isinstance(
            spare := self._session.pool.take(key), UpstreamConnection
        ):
            self._server = spare
        if self._server is not None:
            self._session.audit.check()
            return self._server, True
        # The first connection uses the addresses that were checked on admission.
        target, self._fresh = self._fresh, None
        if target is None:
            target = await self._session.resolve(destination)
        self._server = await UpstreamConnection.connect(
            self._session, target, is_tls=self._is_tls, via=self._connection.via
        )
        return self._server, False

    def _key(self, destination: Destination, action_id: str) -> PoolKey:
        # Per action: a connection of another action has its own record.
        return destination.host, destination.port, self._is_tls, action_id

    def _keep(self, server: UpstreamConnection) -> None:
        # A client may outlive an action: the connection belongs to the action that opened it.
        self._session.pool.put(
            self._key(server.destination, server.connection_record.action_id), server
        )

    async def _relay_response(
        self, request: HttpRequest, destination: Destination, server: UpstreamConnection
    ) -> bool:
        # (7)
        while isinstance(head := await server.event(), ResponseHead) and head.status < 200:
            if head.status == 101:
                await self._switch_protocols(request, destination, server, head)
                return False
        if not isinstance(head, ResponseHead):
            raise bad_response("it has no head")
        client = self._client
        filtered = self._filter.filter_response(
            request, destination, head.status, head.original_headers
        )
        reason = self._filter.filter_text(destination, head.reason)
        forwarded = end_to_end_headers(filtered.headers, bad=bad_response)
        headers = [pair for pair in forwarded if pair[0] != b"transfer-encoding"]
        first = client.codec.send_head(head.status, headers, reason)
        self._connection.encode_refusal = no_refusal
        try:
            await self._relay_body(server, filtered.cleaner, first)
        finally:
            if filtered.cleaner is not None:
                filtered.cleaner.close()
        return await self._end_response()

    async def _end_response(self) -> bool:
        # The response is complete: a refusal of the next request can be sent.
        self._connection.encode_refusal = http_refusal
        if self._client.codec.rest:
            await self._session.share.wait_turn()
        return self._client.codec.next_cycle()

    async def _relay_body(
        self, server: UpstreamConnection, cleaner: ResponseCleaner | None, first: bytes
    ) -> None:
        client, out = self._client, [first]
        while True:
            piece = server.event_now()
            if piece is None:
                await client.send(b"".join(out))
                out.clear()
                # If both sides are fast, no await here would suspend and others would starve.
                await self._session.share.wait_turn()
                piece = await server.event()
            elif len(out) >= _PIECES_PER_TURN:
                await client.send(b"".join(out))
                out.clear()
                # Thousands of tiny chunks must not block the loop.
                await self._session.share.wait_turn()
            if isinstance(piece, ResponseHead):
                raise bad_response("a second head follows the first")
            if not piece:
                out.append(self._end_body(cleaner, server))
                await client.send(b"".join(out))
                return
            async for data in pieces_of(cleaner, piece):
                out.append(client.codec.send_data(data))
                if cleaner is not None:
                    # A few compressed bytes can become many: they are sent piece by piece.
                    await client.send(b"".join(out))
                    out.clear()

    def _end_body(self, cleaner: ResponseCleaner | None, server: UpstreamConnection) -> bytes:
        codec = self._client.codec
        data = b""
        if cleaner is not None:
            rest = cleaner.end()
            data = codec.send_data(rest)
            self._filter.record_echoes(cleaner, server.destination)
        return data + codec.send_end()

    async def _switch_protocols(
        self,
        request: HttpRequest,
        destination: Destination,
        server: UpstreamConnection,
        head: ResponseHead,
    ) -> None:
        """Switch to WebSocket: from here on bytes are inspected, not messages."""
        if not request.is_upgrade:
            raise bad_response("it switches to a protocol that was not requested")
        client = self._client
        headers = head.headers
        echoes = self._session.echo_index_for(destination)
        if echoes is not None:
            headers = clean_headers(head.original_headers, echoes, has_body=False)
        headers = end_to_end_headers(headers, bad=bad_response, is_upgrade=True)
        switch = client.codec.send_interim(101, headers, b"Switching Protocols")
        self._connection.encode_refusal = no_refusal
        await client.send(switch)
        settings = self._session.settings
        scan = BodyScan(
            (),
            self._session.shared.known.index(),
            leak_reporter=self._filter.leak_reporter(request),
            share=self._session.share,
        )
        await relay_inspected(
            client.stream,
            server.stream,
            idle_timeout_s=settings.idle_timeout_s,
            first_up=client.codec.rest,
            first_down=server.codec.rest,
            wait_turn=self._session.share.wait_turn,
            look_up=scan.look,
            look_down=None if echoes is None else EchoDetector(echoes).look,
        )


async def stop(pump: asyncio.Task[None]) -> None:
    """End an upload task."""
    pump.cancel()
    await asyncio.wait((pump,))
    if not pump.cancelled():
        pump.exception()  # mark the exception as retrieved


async def relay_inspected(
    client: ByteStream,
    server: ByteStream,
    *,
    idle_timeout_s: float,
    first_up: bytes,
    first_down: bytes,
    wait_turn: Callable[[], Awaitable[None]],
    look_up: InspectBytes | None = None,
    look_down: InspectBytes | None = None,
) -> None:
    """Relay until one side ends: TLS and WebSocket have no half-closed connections.

    `wait_turn` is awaited before each piece.
    """
    loop = asyncio.get_running_loop()
    last_active_s = loop.time()

    async def one_way(
        source: ByteStream, target: ByteStream, first: bytes, look: InspectBytes | None
    ) -> None:
        nonlocal last_active_s
        data = first
        while True:
            if data:
                last_active_s = loop.time()
                await wait_turn()
                if look is not None:
                    await look(data)
                await target.send(data, loop.time() + idle_timeout_s)
            try:
                data = await source.recv(last_active_s + idle_timeout_s)
            except EgressRefused:
                # A stream with traffic in the other direction is not idle.
                if loop.time() < last_active_s + idle_timeout_s:
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
