"""One request over a new connection, whose response is bounded in size, type and time (NET-4)."""

from __future__ import annotations

import asyncio
import codecs
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cellwall import __version__
from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.addresses import Address
from cellwall.egress.destinations.allowlist import normal_path
from cellwall.egress.destinations.hostnames import Url
from cellwall.egress.destinations.resolution import dial
from cellwall.egress.inspection.decompression import DecompressionBudget, Decompressor
from cellwall.egress.limits import EgressSettings
from cellwall.egress.protocols.http1_codec import MessageEvent, ParserSignal, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec
from cellwall.egress.protocols.http1_framing import Fields, bad_response
from cellwall.egress.proxy.connections import start_tls
from cellwall.egress.proxy.streams import ByteStream, PeerClosed, SocketStream

_MAX_HEAD_BYTES = 4096
_TYPE = re.compile(
    r"[ \t]*([!#$%&'*+.^_`|~0-9a-z-]{1,100}/[!#$%&'*+.^_`|~0-9a-z-]{1,100})[ \t]*(;.*)?"
)
_CHARSET = re.compile(r""";[ \t]*charset[ \t]*=[ \t]*["']?([a-z0-9_:.-]{1,40})""")
_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,512}?charset[ \t\r\n]{0,16}=[ \t\r\n]{0,16}["']?([A-Za-z0-9_:.-]{1,40})""",
    re.IGNORECASE,
)
_XML_CHARSET = re.compile(rb"""<\?xml[^>]{0,256}?encoding=["']([A-Za-z0-9_:.-]{1,40})["']""")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_XHTML = "application/xhtml+xml"
_TEXTS = frozenset(
    f"application/{kind}"
    for kind in (
        *("json", "xml", "xhtml+xml", "javascript", "x-javascript", "ecmascript", "markdown"),
        *("yaml", "x-yaml", "toml", "x-ndjson", "jsonl", "json5", "graphql", "sql", "x-sh"),
    )
)
# The encodings of the web (WHATWG) by their Python names. Not all codecs of Python: `punycode`
# takes quadratic time, `utf-7` and `unicode_escape` decode plain ASCII to other text.
_ENCODINGS = {
    **dict.fromkeys(("utf-8", "utf8"), "utf-8"),
    **dict.fromkeys(("utf-16", "utf-16le"), "utf-16-le"),
    "utf-16be": "utf-16-be",
    **dict.fromkeys(
        ("us-ascii", "ascii", "iso-8859-1", "iso8859-1", "latin1", "latin-1", "windows-1252"),
        "cp1252",
    ),
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **dict.fromkeys(("iso-8859-9", "windows-1254"), "cp1254"),
    **dict.fromkeys(("iso-8859-11", "tis-620", "windows-874"), "cp874"),
    **{f"windows-{page}": f"cp{page}" for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **dict.fromkeys(("koi8-r", "koi8-u"), "koi8-u"),
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs"), "big5hkscs"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987"), "cp949"),
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "ibm866": "cp866",
    "macintosh": "mac_roman",
}


@dataclass(frozen=True, slots=True)
class ContentType:
    """A Content-Type; empty without a header."""

    kind: str = ""
    """The media type in lower case, without parameters."""
    charset: str = ""

    @classmethod
    def of(cls, header: bytes | None) -> ContentType:
        """Parse a Content-Type; a malformed one is not text."""
        if header is None:
            return cls()
        text = header.decode("latin-1").lower()
        match = _TYPE.fullmatch(text)
        if match is None:
            return cls("unknown")
        charset = _CHARSET.search(match[2] or "")
        return cls(match[1], charset[1] if charset else "")

    @property
    def is_html(self) -> bool:
        return self.kind in ("text/html", _XHTML)

    @property
    def is_xml(self) -> bool:
        return self.kind.endswith(("/xml", "+xml"))

    @property
    def may_be_text(self) -> bool:
        """Whether the body may be text; without a header its bytes decide."""
        is_text = self.kind.startswith("text/") or self.kind in _TEXTS
        return not self.kind or is_text or self.kind.endswith(("+json", "+xml"))

    def text_of(self, body: bytes, *, is_cut: bool) -> str:
        """Decode by byte order mark, header or meta element, else UTF-8; refuse binary bodies."""
        if not self.kind and not _is_utf8(body, is_cut=is_cut):
            raise self.refusal()
        text = self._decode(body)
        if "\0" in text:  # text never contains NUL, whatever the header states
            raise self.refusal()
        return text

    def _decode(self, body: bytes) -> str:
        for mark, encoding in _MARKS:
            if body.startswith(mark):
                return body[len(mark) :].decode(encoding, "replace")
        encoding = _ENCODINGS.get(self.charset, "")
        if not encoding and (self.is_html or self.is_xml):
            head = body[:_MAX_HEAD_BYTES]
            match = _XML_CHARSET.match(head) or _META_CHARSET.search(head)
            charset = match[1].decode("ascii").lower() if match else ""
            # A declaration that is readable as ASCII cannot be in UTF-16 (HTML 13.2.3.2).
            encoding = "" if charset.startswith("utf-16") else _ENCODINGS.get(charset, "")
        return body.decode(encoding or "utf-8", "replace")

    def refusal(self) -> EgressRefused:
        """The error for a body that is not text."""
        kind = self.kind or "not text and has no content type"
        return EgressRefused(
            f"the response is {kind}; only text is fetched",
            hint="To get such a file, download it with a program in a sandbox, with "
            "`--allow-domain` for the host.",
            code="CW-CONTENT-TYPE",
        )


def _is_utf8(body: bytes, *, is_cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body, final=not is_cut)
    except UnicodeDecodeError:
        return False
    return True


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
    content: ContentType = ContentType()
    body: bytes = b""
    is_cut: bool = False
    """Whether the body exceeded the limit."""
    location: bytes | None = None


def headers_for(
    url: Url, settings: EgressSettings, method: str = "GET", more: Fields | None = None
) -> Fields:
    """The request headers; `EgressRefused` if they violate a header rule."""
    headers = [(b"Host", url.authority.encode("ascii")), *_HEADERS, *(more or [])]
    path = normal_path(url.target.partition("?")[0])
    for rule in settings.header_rules:
        if rule.reaches(url.host, url.port) and rule.concerns((method,), path):
            rule.check(headers)
            headers = rule.put(headers)
    return headers


class PageRequest:
    """One request; counts bytes in both directions, also when it fails."""

    def __init__(
        self,
        url: Url,
        settings: EgressSettings,
        tls: ssl.SSLContext,
        *,
        method: str = "GET",
        headers: Fields | None = None,
        body: bytes = b"",
    ) -> None:
        """`headers` are complete; left out, those of a page."""
        self.url = url
        self._method, self._body_bytes = method, body
        self._headers = headers_for(url, settings, method) if headers is None else headers
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
        method, target = self._method.encode("ascii"), self.url.target.encode("ascii")
        sent = self._codec.send_head(method, target, self._headers)
        if self._body_bytes:
            sent += self._codec.send_data(self._body_bytes)
        until = self._within(self._settings.head_timeout_s)
        await stream.send(sent + self._codec.send_end(), until)
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
        content = ContentType.of(_only(headers, b"content-type"))
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
        max_bytes = self._settings.fetch_max_bytes
        decompressor = Decompressor(coding, DecompressionBudget(max_bytes + _ROOM_BYTES))
        body = bytearray()
        came_bytes = 0
        while isinstance(event := await self._event(stream, self._until), bytes):
            came_bytes += len(event)
            pieces = decompressor.feed(event)
            while (piece := _as_response_error(lambda: next(pieces, None))) is not None:  # noqa: B023  # called at once
                body += piece
                if len(body) > max_bytes:
                    return bytes(body[:max_bytes]), True
            # Input that decompresses to nothing is bounded as well.
            if came_bytes > max_bytes:
                return bytes(body), True
        if event is not ParserSignal.END:
            raise bad_response("it is incomplete")
        _as_response_error(decompressor.end)
        return bytes(body), False

    async def _event(self, stream: ByteStream, until: float) -> MessageEvent:
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
    values = [value for name, value in headers if name == wanted]
    if len(values) > 1:
        raise bad_response(f"it has more than one {wanted.decode('ascii')}")
    return values[0] if values else None


def _as_response_error(work: Callable[[], Made]) -> Made:
    """Map the errors of `Decompressor`, which are about requests, to a response."""
    try:
        return work()
    except EgressRefused as error:
        raise bad_response("its body cannot be decompressed") from error
