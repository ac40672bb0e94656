"""HTTP/2 behind intercepted TLS: a client's connection and a server's, stream by stream (NET-6).

Each stream is one request, authorized, scanned and recorded as an HTTP/1.1 request is; the steps
are in `request_filter`. A refusal is sent on its stream; a peer that breaks the protocol or floods
the proxy loses the connection. Nothing is translated: both sides have to speak HTTP/2.
"""

from __future__ import annotations

import asyncio

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.protocols.h2_frames import REFUSED_COST, RESET_COST, GoAway
from cellwall.egress.protocols.http1_framing import BadMessage
from cellwall.egress.proxy.client_connection import ClientConnection, fixed_refusal, no_refusal
from cellwall.egress.proxy.connections import UpstreamConnection
from cellwall.egress.proxy.h2_connection import Http2Connection
from cellwall.egress.proxy.h2_exchange import Http2Exchange
from cellwall.egress.proxy.h2_streams import Reset
from cellwall.egress.proxy.session import EgressSession
from cellwall.egress.proxy.stream_memory import STREAM_BYTES, head_bytes
from cellwall.egress.proxy.streams import PeerClosed

_MAX_TASKS = 128
"""More than concurrent streams: some end while the client opens the next."""
_REFUSAL_TIMEOUT_S = 2.0
_FROM_CLIENT_BYTES = 256 * 1024
_FROM_SERVER_BYTES = 4 * 1024 * 1024
_STREAM_FROM_SERVER_BYTES = 1024 * 1024
"""Servers have a long round trip: a small window would stall each response."""
_MAX_WIDE_CONNECTIONS = 16
"""Connections of a session with large windows: buffered bytes are our memory, not the cell's."""


class Http2Proxy:
    """The streams of one client connection, and of the connection to its server."""

    def __init__(
        self, session: EgressSession, connection: ClientConnection, server: UpstreamConnection
    ) -> None:
        """`server` speaks HTTP/2; the proxy owns it from now on."""
        self._session = session
        self._connection = connection
        self._destination = server.destination
        self._upstream = server
        settings = session.settings
        self._loop = session.shared.loop
        is_wide = session.h2_count < _MAX_WIDE_CONNECTIONS
        self._client = Http2Connection(
            connection.stream,
            is_client=True,
            wait_turn=session.share.wait_turn,
            idle_timeout_s=settings.idle_timeout_s,
            memory=session.stream_memory,
            window_bytes=_FROM_CLIENT_BYTES,
        )
        self._server = Http2Connection(
            server.stream,
            is_client=False,
            wait_turn=session.share.wait_turn,
            idle_timeout_s=settings.idle_timeout_s,
            memory=session.stream_memory,
            window_bytes=_FROM_SERVER_BYTES if is_wide else _FROM_CLIENT_BYTES,
            stream_window_bytes=_STREAM_FROM_SERVER_BYTES if is_wide else 64 * 1024,
        )
        self._client.relays_to = self._server.relays_to = (self._client, self._server)
        self._exchange = Http2Exchange(
            session, connection, client=self._client, server=self._server, upstream=server
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_ending = False
        """New requests are refused."""
        self._over = asyncio.Event()
        """No request is open, and no more are accepted."""
        self._asked_at_s = self._loop.time()
        self._asked_count = 0

    async def run(self) -> None:
        """Serve until one of the two connections ends."""
        self._connection.encode_refusal = no_refusal
        self._session.h2_count += 1
        jobs = [
            asyncio.create_task(job)
            for job in (
                self._until_over(),
                self._read_client(),
                self._client.write(),
                self._read_server(),
                self._server.write(),
            )
        ]
        failure: BaseException | None = None
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            failure = await self._finish(*jobs)
        except BaseException as error:
            failure = error
            if isinstance(error, BadMessage):
                last = self._client.final_bytes(ErrorCodes.PROTOCOL_ERROR)
                self._connection.encode_refusal = fixed_refusal(last)
            raise
        finally:
            self._session.h2_count -= 1
            # Before any await, which could be cancelled: the end must be recorded.
            if failure is None and not self._server.streams:
                self._upstream.drop()
            else:
                self._upstream.abort(failure if isinstance(failure, CellwallError) else None)
            await self._stop(jobs)

    async def _stop(self, jobs: list[asyncio.Task[None]]) -> None:
        for job in jobs:
            job.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*jobs, *self._tasks.values(), return_exceptions=True)

    async def _finish(
        self,
        over: asyncio.Task[None],
        from_client: asyncio.Task[None],
        to_client: asyncio.Task[None],
        from_server: asyncio.Task[None],
        to_server: asyncio.Task[None],
    ) -> BaseException | None:
        """Finish open requests and send GOAWAY; returns the error of the server side."""
        for job in (from_client, to_client):
            if job.done() and not over.done():
                job.result()
                if self._tasks:
                    raise PeerClosed  # the client left during a request
        failure = next(
            (e for j in (from_server, to_server) if j.done() and (e := j.exception())), None
        )
        cause = failure if isinstance(failure, CellwallError) else self._upstream.closed_early()
        failed_count = len(self._server.streams)
        for inbox in self._server.streams.values():
            inbox.fail(cause)
        self._is_ending = True
        if self._tasks:
            await asyncio.wait(tuple(self._tasks.values()), timeout=_REFUSAL_TIMEOUT_S)
        if isinstance(failure, CellwallError) and (self._tasks or not failed_count):
            # No stream has reported the error: there is none, or its client does not read.
            destination, via = self._destination, self._connection.via
            self._session.record_refusal(
                failure, host=destination.host, port=destination.port, via=via
            )
        self._client.send_goaway()
        self._server.send_goaway()
        await asyncio.gather(self._client.drain(), self._server.drain())
        return failure

    # --- receive

    async def _until_over(self) -> None:
        await self._over.wait()
        while self._client.is_behind:
            # Requests that arrived meanwhile get REFUSED_STREAM, and can be retried.
            await self._session.share.wait_turn()

    async def _read_client(self) -> None:
        settings = self._session.settings
        head_until: float | None = self._loop.time() + settings.head_timeout_s
        asked_count = 0
        while True:
            idle_until = self._idle_from() + settings.idle_timeout_s
            try:
                if not await self._client.read(head_until or idle_until, self._from_client):
                    return
            except EgressRefused as error:
                if error.code != "CW-LATE" or head_until is not None:
                    raise
                if self._loop.time() < self._idle_from() + settings.idle_timeout_s:
                    continue
                return
            # A head must be complete within its deadline, however slowly it arrives (slow-loris).
            if self._asked_count and not self._client.is_in_head:
                head_until = None
            elif head_until is None or self._asked_count > asked_count:
                head_until = self._loop.time() + settings.head_timeout_s
            asked_count = self._asked_count

    def _idle_from(self) -> float:
        return self._loop.time() if self._tasks else self._asked_at_s

    def _from_client(self, event: Event | GoAway) -> None:
        if isinstance(event, GoAway):
            self._is_ending = True
            self._check_over()
        elif isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, DataReceived | StreamEnded | TrailersReceived):
            self._deliver(self._client, event)
        elif isinstance(event, StreamReset):
            if not event.remote_reset:
                # A frame of the client made h2 reset it ("MadeYouReset", CVE-2025-8671).
                self._client.charge(RESET_COST)
            self._deliver(self._client, event)
            if (task := self._tasks.get(event.stream_id)) is not None:
                task.cancel()

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        inbox = self._client.add_stream(stream_id)
        is_full = self._is_ending or len(self._tasks) >= _MAX_TASKS
        if is_full or not self._client.hold(inbox, STREAM_BYTES + head_bytes(event.headers)):
            self._client.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            self._client.remove_stream(stream_id)
            self._client.charge(REFUSED_COST)
            return
        self._asked_count += 1
        self._asked_at_s = self._loop.time()
        task = self._loop.create_task(self._exchange.serve(inbox, event.headers))
        self._tasks[stream_id] = task
        task.add_done_callback(lambda _: self._served(stream_id))

    def _served(self, stream_id: int) -> None:
        self._client.remove_stream(stream_id)  # here, since a task may be cancelled before it runs
        del self._tasks[stream_id]
        self._asked_at_s = self._loop.time()
        self._check_over()

    def _check_over(self) -> None:
        if self._is_ending and not self._tasks:
            self._over.set()

    async def _read_server(self) -> None:
        wait_s = self._session.settings.idle_timeout_s
        while True:
            try:
                if not await self._server.read(self._loop.time() + wait_s, self._from_server):
                    return
            except EgressRefused as error:
                # Streams have their own deadlines.
                if error.code != "CW-LATE":
                    raise

    def _from_server(self, event: Event | GoAway) -> None:
        if isinstance(event, GoAway):
            self._end_with(event)
        elif isinstance(
            event,
            ResponseReceived
            | InformationalResponseReceived
            | DataReceived
            | TrailersReceived
            | StreamEnded
            | StreamReset,
        ):
            self._deliver(self._server, event)

    def _end_with(self, goaway: GoAway) -> None:
        """The server accepts no more streams; those it has not processed can be retried."""
        if not self._is_ending:
            self._is_ending = True
            self._client.send_goaway()
        for stream_id, inbox in self._server.streams.items():
            if stream_id > goaway.last_stream:
                inbox.fail(Reset(ErrorCodes.REFUSED_STREAM))
        self._check_over()

    def _deliver(self, peer: Http2Connection, event: Event) -> None:
        inbox = peer.streams.get(event.stream_id)  # type: ignore[attr-defined]  # all of these have it
        headers = getattr(event, "headers", None)
        if inbox is not None and headers and not peer.hold(inbox, head_bytes(headers)):
            inbox.fail(_too_many_streams())
        elif inbox is not None:
            inbox.add(event)
        elif isinstance(event, DataReceived):
            peer.acknowledge(event.stream_id, event.flow_controlled_length or 0)


def _too_many_streams() -> EgressRefused:
    return EgressRefused(
        "the open HTTP/2 requests of this sandbox hold too much memory",
        hint="Wait for the responses of some requests before the next ones.",
        code="CW-NET-LIMIT",
    )
