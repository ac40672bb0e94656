"""Second readers of what a cell sends, which share no code with ours, and drivers of our own ones.

OpenSSL reads a hello, a grammar over the whole message HTTP and SOCKS, h11 HTTP once more.
"""

from __future__ import annotations

import re
import ssl
from itertools import pairwise
from typing import Any

import h11
import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.http1_codec import ParserSignal, RequestHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.protocols.http1_framing import bad_request
from cellwall.egress.protocols.http_heads import end_to_end_headers, read_request
from cellwall.egress.protocols.socks import Handshake
from cellwall.egress.protocols.tls_client_hello import read_hello

Message = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes, bytes]
"""Method or status, target, fields, body, and what follows."""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


def client_hello(name: str | None, newest: ssl.TLSVersion) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    context.set_alpn_protocols(["http/1.1"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def openssl_names(data: bytes) -> list[str | None]:
    """The names for which OpenSSL's server, given these bytes, would look for a certificate."""
    seen: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        seen.append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note  # type: ignore[assignment]  # typeshed leaves the None out
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(data)
    with pytest.raises(ssl.SSLError):
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    return seen


INCOMPLETE = object()


def name_in(data: bytes) -> object:
    try:
        hello = read_hello(data)
        return INCOMPLETE if hello is None else hello.name
    except EgressRefused as error:
        assert error.code in {"CW-BAD-TLS", "CW-NOT-TLS"}  # noqa: PT017
        return error.code


def socks_request(data: bytes) -> re.Match[bytes] | None:
    """A greeting and a request, by the grammar of RFC 1928."""
    # The number of methods is part of the grammar: methods may look like another greeting.
    greeting = rb"\x05(?P<count>.)(?P<methods>.{%d})" % data[1] if len(data) > 1 else b""
    return re.fullmatch(
        greeting + rb"\x05\x01\x00"
        rb"(?:\x01(?P<v4>.{4})|\x04(?P<v6>.{16})|\x03(?P<size>.)(?P<name>[!-~]+))(?P<port>..)",
        data,
        re.DOTALL,
    )


def socks_end(pieces: list[bytes]) -> tuple[Any, ...]:
    handshake = Handshake()
    sent = b""
    try:
        for piece in pieces:
            sent += b"".join(handshake.feed(piece))
    except EgressRefused as error:
        return (error.code,)
    return sent, handshake.target, handshake.rest


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD = rb"%s:[ \t]*[\t -~\x80-\xff]*\r\n" % _TOKEN
_WHOLE = re.compile(
    rb"([A-Z][A-Z0-9-]*) ([!-~]+) HTTP/1\.([01])\r\n((?:%s)*)\r\n(.*)" % _FIELD, re.DOTALL
)


def strict_request(data: bytes) -> Message | None:
    """The first request of these bytes by the letter of RFC 9112, or None."""
    found = _WHOLE.fullmatch(data)
    if found is None:
        return None
    method, target, version, lines, rest = found.groups()
    pairs = [line.split(b":", 1) for line in lines.split(b"\r\n")[:-1]]
    fields = [(name.lower(), value.strip(b" \t")) for name, value in pairs]
    length = [value for name, value in fields if name == b"content-length"]
    coding = [value for name, value in fields if name == b"transfer-encoding"]
    if sum(name == b"host" for name, _ in fields) > 1 or len(length) + len(coding) > 1:
        return None
    if coding:
        body = strict_chunks(rest) if coding == [b"chunked"] and version == b"1" else None
        return (method, target, fields, *body) if body else None
    if length and re.fullmatch(rb"[0-9]+", length[0]) is None:
        return None
    size = int(length[0]) if length else 0
    return (method, target, fields, rest[:size], rest[size:]) if size <= len(rest) else None


def h11_request(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes] | None:
    """The same as h11 reads it: another parser that many servers have."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    try:
        head, body = server.next_event(), b""
        while isinstance(event := server.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(head, h11.Request) or not isinstance(event, h11.EndOfMessage):
        return None
    return head.method, head.target, list(head.headers), body


def strict_chunks(rest: bytes) -> tuple[bytes, bytes] | None:
    """The body and what follows it."""
    body = b""
    while found := re.match(rb"([0-9A-Fa-f]+)\r\n", rest):
        size, rest = int(found[1], 16), rest[found.end() :]
        if rest[size : size + 2] != b"\r\n":
            return None
        body += rest[:size]
        rest = rest[size + 2 :]
        if size == 0:
            return body, rest
    return None


def events(codec: Http1ServerCodec | Http1ClientCodec, pieces: list[bytes]) -> list[Any] | None:
    """What was read, bodies joined; None if it was refused."""
    got: list[Any] = []
    left = sum(map(len, pieces)) + 16
    try:
        for piece in pieces:
            codec.feed(piece)
            while (event := codec.next_event()) not in (
                ParserSignal.NEED_DATA,
                ParserSignal.PAUSED,
            ):
                left -= 1
                assert left > 0, "it must come to an end"
                if event is ParserSignal.BEHIND:
                    codec.read_on()
                    continue
                if isinstance(event, bytes) and got and isinstance(got[-1], bytes):
                    got[-1] += event
                else:
                    got.append(event)
                if event is ParserSignal.CLOSED:
                    break
    except EgressRefused as error:
        assert error.code in {"CW-BAD-REQUEST", "CW-BAD-RESPONSE"}  # noqa: PT017
        return None
    return got


def as_sent_on(message: RequestHead, body: bytes) -> bytes | None:
    """What the server behind us would get."""
    try:
        request = read_request(message, scheme="http")
        headers = end_to_end_headers(
            request.headers, is_upgrade=request.is_upgrade, bad=bad_request
        )
    except EgressRefused:
        return None
    if not request.path:
        return None
    server = Http1ClientCodec()
    named = [
        (b"host", request.authority.encode()),
        *(pair for pair in headers if pair[0] != b"host"),
    ]
    sent = server.send_head(request.method.encode(), request.path.encode(), named)
    return sent + server.send_data(body) + server.send_end()
