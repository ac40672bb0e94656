"""One GET over a new connection, with a bounded response (NET-4)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cellwall import __version__
from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.addresses import Address
from cellwall.egress.destinations.allowlist import normal_path
from cellwall.egress.destinations.resolution import dial
from cellwall.egress.inspection.decompression import DecompressionBudget, Decompressor
from cellwall.egress.pages.content import Content
from cellwall.egress.pages.urls import Url
from cellwall.egress.protocols.http1_codec import Event, ParserSignal, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec
from cellwall.egress.protocols.http1_framing import bad_response
from cellwall.egress.proxy.connections import start_tls
from cellwall.egress.proxy.streams import ByteStream, PeerClosed, SocketStream
from cellwall.egress.settings import EgressSettings

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ROOM_BYTES = 1024 * 1024
"""How far one decompressed piece may exceed the limit before it is cut."""
_CODINGS = frozenset({"", "identity", "gzip", "x-gzip"})
# Independent of the host's environment: no proxy, cookie, netrc file or referrer.
_HEADERS = [
    (b"User-Agent", f"Cellwall/{__version__}".encode("ascii")),
    (b"Accept", b"text/markdown, text/html;q=0.9, text/*;q=0.8, application/json;q=0.8, */*;q=0.1"),
    (b"Accept-Encoding", b"gzip, identity"),
    (b"Connection", b"close"),
]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PageResponse:
    """A body, or the target of a redirect."""

    status: int
    content: Content = Content()
    body: bytes = b""
    is_cut: bool = False
    """Whether the body exceeded the limit."""
    location: bytes | None = None


def headers_for(url: Url, settings: EgressSettings) -> list[tuple[bytes, bytes]]:
    """The request headers; `EgressRefused` if they violate a header rule."""
    headers = [(b"Host", url.authority.encode("ascii")), *_HEADERS]
    path = normal_path(url.target.partition("?")[0])
    for rule in settings.header_rules:
        if rule.reaches(url.host, url.port) and rule.concerns(("GET",), path):
            rule.check(headers)
            headers = rule.put(headers)
    return headers


class PageRequest:
    """One GET; counts bytes in both directions, also when it fails."""

    def __init__(self, url: Url, settings: EgressSettings, tls: ssl.SSLContext) -> None:
        self.url = url
        self._settings = settings
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + settings.fetch_timeout_s
        self._codec = Http1ClientCodec()
        self._transport: SocketStream | None = None

    @property
    def sent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.sent_bytes

    @property
    def received_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.received_bytes

    async def answer(self, addresses: tuple[Address, ...]) -> PageResponse:
        """Connect to exactly these addresses; the connection is closed on return."""
        timeout_s = self._settings.connect_timeout_s
        self._transport = transport = SocketStream(
            await dial(addresses, self.url.port, timeout_s=timeout_s)
        )
        try:
            stream = (
                await start_tls(
                    transport,
                    self._tls,
                    self.url.host,
                    self._within(self._settings.connect_timeout_s),
                )
                if self.url.scheme == "https"
                else transport
            )
            return await self._send_and_read(stream)
        except PeerClosed:
            raise EgressRefused(
                f"{self.url.host} closed the connection before the response was complete",
                hint="Try again later.",
                code="CW-BAD-RESPONSE",
            ) from None
        finally:
            transport.abort()

    async def _send_and_read(self, stream: ByteStream) -> PageResponse:
        headers = headers_for(self.url, self._settings)
        asked = self._codec.send_head(b"GET", self.url.target.encode("ascii"), headers)
        until = self._within(self._settings.head_timeout_s)
        await stream.send(asked + self._codec.send_end(), until)
        event = await self._event(stream, until)
        while isinstance(event, ResponseHead) and event.status < 200 and event.status != 101:
            event = await self._event(stream, until)
        if not isinstance(event, ResponseHead) or event.status == 101:
            raise bad_response("it does not answer the request")
        return await self._read(stream, event.status, event.headers)

    async def _read(
        self, stream: ByteStream, status: int, headers: list[tuple[bytes, bytes]]
    ) -> PageResponse:
        if status in _REDIRECTS and (location := _only(headers, b"location")) is not None:
            return PageResponse(status, location=location)
        content = Content.of(_only(headers, b"content-type"))
        if not content.may_be_text and status >= 400:
            # The status of a failure matters more than its content type.
            return PageResponse(status, content)
        if not content.may_be_text:
            raise content.refusal()
        coding = (_only(headers, b"content-encoding") or b"").decode("latin-1").strip().lower()
        if coding not in _CODINGS:
            raise bad_response("its content coding was not requested")
        body, is_cut = await self._body(stream, coding)
        return PageResponse(status, content, body, is_cut)

    async def _body(self, stream: ByteStream, coding: str) -> tuple[bytes, bool]:
        most = self._settings.fetch_max_bytes
        opened = Decompressor(coding, DecompressionBudget(most + _ROOM_BYTES))
        body = bytearray()
        came_bytes = 0
        while isinstance(event := await self._event(stream, self._until), bytes):
            came_bytes += len(event)
            pieces = opened.feed(event)
            while (piece := _as_response_error(lambda: next(pieces, None))) is not None:  # noqa: B023  # called at once
                body += piece
                if len(body) > most:
                    return bytes(body[:most]), True
            # Input that decompresses to nothing is bounded as well.
            if came_bytes > most:
                return bytes(body), True
        if event is not ParserSignal.END:
            raise bad_response("it is incomplete")
        _as_response_error(opened.end)
        return bytes(body), False

    async def _event(self, stream: ByteStream, until: float) -> Event:
        while True:
            event = self._codec.next_event()
            if event is ParserSignal.BEHIND:
                await asyncio.sleep(0)
                self._codec.read_on()
                continue
            if event not in (ParserSignal.NEED_DATA, ParserSignal.PAUSED):
                return event
            self._codec.feed(await stream.recv(until))

    def _within(self, timeout_s: float) -> float:
        return min(self._until, self._loop.time() + timeout_s)


def _only(headers: list[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """The value of a header that must not be repeated."""
    found = [value for name, value in headers if name == wanted]
    if len(found) > 1:
        raise bad_response(f"it has more than one {wanted.decode('ascii')}")
    return found[0] if found else None


def _as_response_error(work: Callable[[], Made]) -> Made:
    """Map the errors of `Decompressor`, which are about requests, to a response."""
    try:
        return work()
    except EgressRefused as error:
        raise bad_response("its body cannot be decompressed") from error
