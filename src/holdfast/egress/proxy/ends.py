"""The two ends of an HTTP exchange: a stream, and the strict reader of what comes by it."""

from __future__ import annotations

import asyncio

import h11

from holdfast.core.errors import EgressRefused, HoldfastError
from holdfast.egress.protocols.sides import ClientSide, ServerSide
from holdfast.egress.proxy.journey import Journey
from holdfast.egress.proxy.session import Session, Target, Way
from holdfast.egress.proxy.upstream_tls import secured
from holdfast.egress.proxy.wire import Lost, Stream, Wire
from holdfast.egress.settings import EgressSettings


class ClientEnd:
    """Towards the cell."""

    def __init__(self, stream: Stream, settings: EgressSettings) -> None:
        self.stream = stream
        self.side = ClientSide()
        self.has_answer_begun = False
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    async def head(self, *, is_first: bool) -> h11.Request | None:
        """The next request; None when the client has no more.

        However slowly it comes, a head has to be whole within its time (slow-loris).
        """
        wait_s = self._settings.head_timeout_s if is_first else self._settings.idle_timeout_s
        until = self._loop.time() + wait_s
        has_begun = bool(self.side.rest)
        self.has_answer_begun = False
        while True:
            event = self.side.next_event()
            if isinstance(event, h11.Request):
                return event
            if isinstance(event, h11.ConnectionClosed):
                return None
            try:
                data = await self.stream.recv(until)
            except EgressRefused:
                if has_begun or is_first:
                    raise
                return None
            if data and not has_begun:
                has_begun = True
                until = self._loop.time() + self._settings.head_timeout_s
            self.side.feed(data)

    def body_now(self) -> bytes | None:
        """The next piece that has come already, empty at the end; None: one has to wait for it."""
        event = self.side.next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return b"" if isinstance(event, h11.EndOfMessage) else None

    async def body(self) -> bytes:
        """The next piece; empty at the end."""
        while (piece := self.body_now()) is None:
            if self.side.is_waiting_to_send:
                await self.go_on()
            self.side.feed(await self.stream.recv(self._idle_until()))
        return piece

    async def go_on(self) -> None:
        """The client held its body back until somebody wants it."""
        told = self.side.send(
            h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
        )
        await self.stream.send(told, self._idle_until())

    async def send(self, data: bytes) -> None:
        self.has_answer_begun = True
        await self.stream.send(data, self._idle_until())

    def _idle_until(self) -> float:
        return self._loop.time() + self._settings.idle_timeout_s


class ServerEnd:
    """Towards the server that was allowed."""

    def __init__(
        self, stream: Stream, wire: Wire, way: Way, journey: Journey, idle_timeout_s: float
    ) -> None:
        self.stream = stream
        self.side = ServerSide()
        self.way = way
        self.journey = journey
        self.has_answered = False
        """Whether anything came for the request that was sent last."""
        self._wire = wire
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls, session: Session, target: Target, *, is_tls: bool, via: str
    ) -> ServerEnd:
        """A new connection, with TLS verified against the system's authorities."""
        sock, journey = await session.connect(target, via=via)
        wire = Wire(sock, budget=session.budget)
        stream: Stream = wire
        if is_tls:
            try:
                until = asyncio.get_running_loop().time() + session.settings.connect_timeout_s
                tls = session.outside.upstream_tls
                stream = await secured(wire, tls, target.way.host, until)
            except BaseException as error:
                wire.abort()
                journey.ended(
                    up_bytes=wire.sent_bytes,
                    down_bytes=wire.received_bytes,
                    error=error if isinstance(error, HoldfastError) else None,
                )
                raise
        return cls(stream, wire, target.way, journey, session.settings.idle_timeout_s)

    async def send(self, data: bytes) -> None:
        await self.stream.send(data, self._idle_until())

    async def ready(self) -> None:
        """Until an answer begins; `Lost` if the connection ends before."""
        if not (data := await self.stream.recv(self._idle_until())):
            raise Lost
        self.has_answered = True
        self.side.feed(data)

    def event_now(self) -> h11.Event | None:
        """What has come already; None: one has to wait for it."""
        event = self.side.next_event()
        # What says to wait is a class; asking for `h11.Event` itself is slow, for it is abstract.
        return None if isinstance(event, type) else event

    async def event(self) -> h11.Event:
        """What the server says next."""
        while (event := self.event_now()) is None:
            try:
                data = await self.stream.recv(self._idle_until())
            except Lost:
                raise self.gone() from None
            if not data and not self.has_answered:
                raise self.gone()
            self.has_answered = True
            self.side.feed(data)
        return event

    def gone(self) -> EgressRefused:
        return EgressRefused(
            f"{self.way.host} closed the connection before its answer was whole",
            mend="Try again later.",
            code="HF-BAD-RESPONSE",
        )

    def _idle_until(self) -> float:
        return self._loop.time() + self._idle_timeout_s

    def next_cycle(self) -> bool:
        """Whether the last exchange has left it fit for one more."""
        return self.side.next_cycle() and self.stream.is_quiet()

    def is_quiet(self) -> bool:
        """Whether it is as it was left."""
        return self.stream.is_quiet()

    def abort(self, error: HoldfastError | None = None) -> None:
        self.stream.abort()
        self._ended(error)

    def drop(self) -> None:
        """End it between two requests, where nothing can be cut."""
        self._wire.close_now()
        self._ended(None)

    def _ended(self, error: HoldfastError | None) -> None:
        self.journey.ended(
            up_bytes=self._wire.sent_bytes, down_bytes=self._wire.received_bytes, error=error
        )
