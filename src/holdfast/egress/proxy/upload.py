"""The body of one request on its way out, looked at before it goes (NET-5)."""

from __future__ import annotations

import asyncio
import contextlib

import h11

from holdfast.egress.protocols.messages import Request
from holdfast.egress.proxy.ends import ClientEnd, ServerEnd
from holdfast.egress.proxy.session import Session
from holdfast.egress.proxy.wire import Lost
from holdfast.egress.values.screen import BodyScan

_GATHER_BYTES = 64 * 1024
_CHUNKS_PER_TURN = 64


class Upload:
    """What has come goes with the head in one piece; the rest follows, its end held back."""

    def __init__(self, client: ClientEnd, session: Session, request: Request) -> None:
        self.is_complete = False
        """Whether all of it has come."""
        self.is_sent = False
        """Whether what came after the head has gone too."""
        self._client = client
        self._session = session
        self._request = request
        self._scan: BodyScan | None = None
        self._held = b""

    async def gather(self) -> None:
        """What has come already: mostly all of it."""
        data, is_end = await self._come(b"")
        if data:
            await self._take(data)
        if is_end:
            self._end()

    async def _come(self, first: bytes) -> tuple[bytes, bool]:
        """What is there, in one piece, and whether it is the end of the body.

        To look at each of thousands of tiny chunks by itself would stop everybody else.
        """
        pieces, size = [first], len(first)
        while size < _GATHER_BYTES:
            piece = self._client.body_now()
            if not piece:
                return b"".join(pieces), piece is not None
            pieces.append(piece)
            size += len(piece)
            if len(pieces) % _CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
        return b"".join(pieces), False

    def first(self, server: ServerEnd) -> bytes:
        """To send with the head; the same again if the head has to be sent again."""
        if self.is_complete:
            body = server.side.send(h11.Data(data=self._held)) if self._held else b""
            return body + server.side.send(h11.EndOfMessage())
        return self._released(server)

    async def pump(self, server: ServerEnd) -> None:
        """The rest, as it comes."""
        try:
            is_end = False
            while not is_end and (piece := await self._client.body()):
                data, is_end = await self._come(piece)
                await self._take(data)
                await self._send(server, self._released(server))
            self._end()
        except BaseException:
            # The server must not take what it has for the whole.
            server.stream.abort()
            raise
        await self._send(server, self.first(server))
        self.is_sent = True

    async def _take(self, piece: bytes) -> None:
        if self._scan is None:
            self._scan = BodyScan(
                self._request.headers,
                self._session.outside.known.index(),
                max_upload_bytes=self._session.settings.max_upload_bytes,
            )
        await self._scan.look(piece)
        self._held += piece

    def _end(self) -> None:
        if self._scan is not None:
            self._scan.end()
        self.is_complete = True

    def _released(self, server: ServerEnd) -> bytes:
        hold_bytes = 0 if self._scan is None else self._scan.hold_bytes
        if len(self._held) <= hold_bytes:
            return b""
        cut = len(self._held) - hold_bytes
        data, self._held = self._held[:cut], self._held[cut:]
        return server.side.send(h11.Data(data=data))

    async def _send(self, server: ServerEnd, data: bytes) -> None:
        # A server may answer and close before it has read everything: its answer still counts.
        with contextlib.suppress(Lost):
            await server.send(data)
