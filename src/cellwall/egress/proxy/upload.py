"""The body of one request on its way out, looked at before it goes (NET-5)."""

from __future__ import annotations

from typing import Protocol

from cellwall.egress.inspection.body_filters import BodyScan
from cellwall.egress.protocols.http1_requests import Request
from cellwall.egress.proxy.leaks import Lookout
from cellwall.egress.proxy.session import Session

_GATHER_BYTES = 64 * 1024
_CHUNKS_PER_TURN = 64


class Source(Protocol):
    """Where a body comes from, by whatever version of HTTP."""

    def body_now(self) -> bytes | None:
        """The next piece that has come already, empty at the end; None: one has to wait for it."""

    async def catch_up(self) -> bool:
        """Read on in what has come already; False: that was all of it."""

    async def body(self) -> bytes:
        """The next piece; empty at the end."""

    def done(self) -> None:
        """What was taken until now has gone on its way: as much may come."""


class Sink(Protocol):
    """Where it goes to."""

    async def put(self, data: bytes, *, is_end: bool) -> None: ...

    def cut(self) -> None:
        """The server must not take what it has of a request for the whole."""


class Upload:
    """What has come goes with the head in one piece; the rest follows, its end held back.

    To be closed, whatever becomes of it.
    """

    def __init__(
        self, client: Source, session: Session, request: Request, lookout: Lookout
    ) -> None:
        self.is_complete = False
        """Whether all of it has come."""
        self.is_sent = False
        """Whether what came after the head has gone too."""
        self._client = client
        self._session = session
        self._request = request
        self._lookout = lookout
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
            if piece is None and await self._client.catch_up():
                continue
            if not piece:
                return b"".join(pieces), piece is not None
            pieces.append(piece)
            size += len(piece)
            if len(pieces) % _CHUNKS_PER_TURN == 0:
                await self._session.share.turn()
        return b"".join(pieces), False

    def first(self) -> tuple[bytes, bool]:
        """To send with the head, and whether that is all; the same if it has to be sent again."""
        if self.is_complete:
            return self._held, True
        return self._released(), False

    async def pump(self, server: Sink) -> None:
        """The rest, as it comes."""
        try:
            self._client.done()
            is_end = False
            while not is_end and (piece := await self._client.body()):
                data, is_end = await self._come(piece)
                await self._take(data)
                if released := self._released():
                    await server.put(released, is_end=False)
                # Not before: who sends faster than the server takes has to wait. But also for
                # what is held back here, or the rest that it waits for would have no room.
                self._client.done()
            self._end()
        except BaseException:
            server.cut()
            raise
        await server.put(self._held, is_end=True)
        self.is_sent = True

    async def _take(self, piece: bytes) -> None:
        if self._scan is None:
            self._scan = BodyScan(
                self._request.headers,
                self._session.outside.known.index(),
                lookout=self._lookout,
                share=self._session.share,
            )
        await self._scan.look(piece)
        self._held += piece

    def _end(self) -> None:
        if self._scan is not None:
            self._scan.end()
        self.is_complete = True

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()

    def _released(self) -> bytes:
        hold_bytes = 0 if self._scan is None else self._scan.hold_bytes
        if len(self._held) <= hold_bytes:
            return b""
        cut = len(self._held) - hold_bytes
        data, self._held = self._held[:cut], self._held[cut:]
        return data
