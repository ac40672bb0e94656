"""Requests of one client connection that a service of this process answers; see `HostService`.

The steps are those of `request_filter`. There is no server: step (6) is a call, and its answer is
written to the client at once, without a second connection to parse it from.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from http import HTTPStatus
from typing import IO

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.core.network import AnswerRequest, EgressContext, HostReply, HostRequest
from cellwall.egress.inspection.injection import OutgoingHead
from cellwall.egress.limits import PoolKey, timeout_error
from cellwall.egress.protocols.http1_framing import Fields
from cellwall.egress.protocols.http_heads import HttpRequest
from cellwall.egress.proxy.audit_events import SERVICE
from cellwall.egress.proxy.client_connection import ClientConnection, no_refusal
from cellwall.egress.proxy.connections import DownstreamConnection
from cellwall.egress.proxy.request_filter import RequestFilter
from cellwall.egress.proxy.service_connections import ServiceConnection
from cellwall.egress.proxy.session import Destination, EgressSession, ResolvedDestination

_CHUNK_BYTES = 256 * 1024
_AT_ONCE_BYTES = 64 * 1024
_FIELD_BYTES = 4
"""Of the colon, the space and the end of the line."""


class HostServiceExchange:
    """Steps 6 and 7 for services, on one client connection."""

    def __init__(
        self,
        session: EgressSession,
        connection: ClientConnection,
        client: DownstreamConnection,
        request_filter: RequestFilter,
    ) -> None:
        self._session = session
        self._connection = connection
        self._client = client
        self._filter = request_filter
        self._entered: tuple[PoolKey, ServiceConnection] | None = None

    async def answer(
        self, request: HttpRequest, destination: Destination, outgoing: OutgoingHead
    ) -> None:
        """Answer one request; its body, if any, is not read."""
        service = await self._enter(destination)
        self._session.audit.check()
        service.connection_record.request_count += 1
        service.room("up")
        service.room("down")
        await service.spend("up", _size(outgoing.headers) + len(outgoing.path))
        # (6)
        asked = HostRequest(
            request.method, destination.host, outgoing.path, outgoing.headers, request.scheme
        )
        try:
            async with asyncio.timeout(self._session.settings.idle_timeout_s):
                reply = await service.answer(asked)
        except TimeoutError:
            raise timeout_error("the peer's response") from None
        with closing(reply):
            await self._send(request, destination, reply, service)

    def close(self) -> None:
        """Release the connection to the service; other clients may use it still."""
        if self._entered is not None:
            self._session.service_connections.leave(self._entered[0])
            self._entered = None

    async def _enter(self, destination: Destination) -> ServiceConnection:
        # Per action: a client may outlive one, and each has its own record.
        action_id = self._session.audit.context.action_id
        key = destination.host, destination.port, destination.intercepts_tls, action_id
        if self._entered is not None and self._entered[0] == key:
            return self._entered[1]
        self.close()

        async def connect() -> ServiceConnection:
            target = ResolvedDestination(destination=destination, addresses=())
            record = await self._session.admit(target, via=self._connection.via)
            try:
                answer = self._accept(destination, record.context)
            except CellwallError as error:
                record.write_closed(error=error)
                raise
            return ServiceConnection(answer, record, self._session.budget)

        service = await self._session.service_connections.enter(key, connect)
        self._entered = key, service
        return service

    def _accept(self, destination: Destination, context: EgressContext) -> AnswerRequest:
        session = self._session

        def report(error: CellwallError) -> None:
            session.record_refusal(error, host=destination.host, port=destination.port, via=SERVICE)

        service = destination.service
        answer = None if service is None else service.accept(context, report)
        if answer is None:
            raise _cut(destination)
        return answer

    async def _send(
        self,
        request: HttpRequest,
        destination: Destination,
        reply: HostReply,
        service: ServiceConnection,
    ) -> None:
        # (7) No secret is bound to a service, so its answers have none to remove.
        headers = [(name.encode("ascii"), text.encode("latin-1")) for name, text in reply.headers]
        headers.insert(0, (b"content-type", reply.content_type.encode("latin-1")))
        status = HTTPStatus(reply.status)
        if status is not HTTPStatus.NOT_MODIFIED:  # there it would be the size of the client's copy
            headers.append((b"content-length", str(reply.size).encode("ascii")))
        filtered = self._filter.filter_response(request, destination, status.value, headers)
        client = self._client
        head = client.codec.send_head(status.value, filtered.headers, status.phrase.encode("ascii"))
        self._connection.encode_refusal = no_refusal
        await service.spend("down", len(head))
        # Head and body leave together: each write is a TLS record and a wakeup of the client.
        unsent, left = head, reply.size if filtered.has_body else 0
        while left:
            count = min(left, _CHUNK_BYTES, service.room("down"))
            try:
                piece = await _read(reply, reply.size - left, count)
            except OSError:
                raise _cut(destination) from None
            left -= count
            await service.spend("down", count)
            unsent += client.codec.send_data(piece)
            if left:
                await client.send(unsent)
                unsent = b""
                await self._session.share.wait_turn()
        await client.send(unsent + client.codec.send_end())


async def _read(reply: HostReply, offset: int, count: int) -> bytes:
    """Bytes of the body; `OSError` if the file has been cut."""
    if reply.stream is None:
        return reply.body[offset : offset + count]
    start = reply.start + offset
    if reply.size <= _AT_ONCE_BYTES:
        # A thread takes longer than the read of so much from a file that was just hashed.
        return _read_at(reply.stream, start, count)
    return await asyncio.to_thread(_read_at, reply.stream, start, count)


def _read_at(stream: IO[bytes], start: int, count: int) -> bytes:
    stream.seek(start)
    data = stream.read(count)
    if len(data) != count:
        raise OSError("the file has been cut")
    return data


def _size(headers: Fields) -> int:
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in headers)


def _cut(destination: Destination) -> EgressRefused:
    return EgressRefused(
        f"{destination.host} closed the connection before the response was complete",
        hint="Try again later.",
        code="CW-BAD-RESPONSE",
    )
