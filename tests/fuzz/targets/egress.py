"""What a cell sends to the proxy, what servers answer, and the rules that decide."""

from __future__ import annotations

import html
import re
import socket
import zlib
from urllib.parse import urlsplit

import dns.message
import dns.rcode
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import H2Error
from hpack import Decoder, HPACKError

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.allowlist import Allowlist, normal_path, parse_rule
from cellwall.egress.destinations.cell_dns import NameTable, answer_query
from cellwall.egress.destinations.header_rules import parse_header_rule
from cellwall.egress.destinations.hostnames import host_of, parse_url, resolve_redirect
from cellwall.egress.inspection.decompression import DecompressionBudget, Decompressor
from cellwall.egress.pages.http_get import ContentType
from cellwall.egress.pages.render import render
from cellwall.egress.protocols.h2_frames import (
    PREFACE,
    FrameCostBudget,
    FrameGate,
    GoAway,
    count_fields,
)
from cellwall.egress.protocols.http1_codec import ParserSignal, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.protocols.http1_framing import BadMessage, bad_response
from cellwall.egress.protocols.http_heads import (
    end_to_end_h2_headers,
    end_to_end_headers,
    read_h2_request,
)
from cellwall.egress.proxy.client_tokens import read_credentials
from fuzz.second_readers import (
    INCOMPLETE,
    as_sent_on,
    cut,
    events,
    h11_request,
    name_in,
    openssl_names,
    socks_end,
    socks_request,
    strict_request,
)
from fuzz.targets import target, text_of

_HTTP_TOKENS = (
    b"GET ", b"POST ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Host: a.example\r\n", b"\r\n\r\n", b"\r\n",
    b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Connection: ", b"Upgrade: ", b"close",
    b"0\r\n\r\n", b"5\r\n", b"Expect: 100-continue\r\n", b"http://", b"CONNECT ", b"chunked", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 ", b"HTTP/1.1 100 ", b"HTTP/1.1 204 ", b"Proxy-Authorization: Basic ", b"X-HTTP-Method-Override: ",
)  # fmt: skip


def _places(data: bytes) -> list[int]:
    """Where to cut the same bytes for a second reading; chosen by the bytes themselves."""
    return [zlib.crc32(data[:size]) for size in (1, 7, 31) if size < len(data)]


@target("egress.protocols.http1", "egress.protocols.http_heads", tokens=_HTTP_TOKENS)
def http1_request(data: bytes) -> None:
    """HTTP/1 requests of a cell: read as by the letter of RFC 9112 and by h11, in any pieces, and
    sent on as one request"""
    codec = Http1ServerCodec()
    got = events(codec, [data] if data else [])
    assert events(Http1ServerCodec(), cut(data, _places(data))) == got
    if not got or got[-1] is not ParserSignal.END:
        return
    body = got[1] if len(got) == 3 else b""
    assert h11_request(data) in (None, (got[0].method, got[0].target, got[0].headers, body))
    strict = strict_request(data)
    assert strict == (got[0].method, got[0].target, list(got[0].headers), body, codec.rest)
    try:
        read_credentials(got[0].headers)
        sent = as_sent_on(got[0], body)
    except EgressRefused:
        return
    if sent is not None:
        behind = strict_request(sent)
        assert behind is not None
        assert (behind[0], behind[3], behind[4]) == (strict[0], body, b"")


@target("egress.protocols.http1", "egress.protocols.http_heads", tokens=_HTTP_TOKENS)
def http1_response(data: bytes) -> None:
    """HTTP/1 responses of servers: read the same in any pieces, and written to the client as one"""
    method = (b"GET", b"HEAD", b"POST")[data[0] % 3 if data else 0]
    data = data[1:]

    def asked() -> Http1ClientCodec:
        server = Http1ClientCodec()
        server.send_head(method, b"/", [(b"host", b"a.example")])
        server.send_end()
        return server

    got = events(asked(), [*([data] if data else []), b""])
    assert events(asked(), [*cut(data, _places(data)), b""]) == got
    client = Http1ServerCodec()
    events(client, [method + b" / HTTP/1.1\r\nHost: a.example\r\n\r\n"])
    for event in got or ():
        match event:
            case bytes():
                client.send_data(event)
            case ParserSignal.END:
                client.send_end()
            case ResponseHead(status) if status < 200:
                assert status != 101, "nobody asked for another protocol"
            case ResponseHead():
                try:
                    headers = end_to_end_headers(event.headers, bad=bad_response)
                except EgressRefused:
                    return
                client.send_head(event.status, headers)


@target(
    "egress.protocols.h2_frames",
    "egress.protocols.http_heads",
    tokens=(
        PREFACE,
        b"\0\0\0\4\0\0\0\0\0",
        b"\0\0\4\1\5\0\0\0\1\x82\x84\x87\x41",
        b"\x40\x05:path",
    ),
)
def http2_frames(data: bytes) -> None:
    """HTTP/2 frames and heads of a cell: pass whole and in order to h2, or are refused"""
    gate = FrameGate(
        is_client=True, frame_costs=FrameCostBudget(lambda: 0.0), waste=FrameCostBudget(lambda: 0.0)
    )
    h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    h2.initiate_connection()
    passed, step = b"", 1 + zlib.crc32(data) % 64
    try:
        for start in range(0, len(data), step):
            gate.feed(data[start : start + step])
            for piece in gate.take():
                if isinstance(piece, GoAway):
                    continue
                passed += piece
                for event in h2.receive_data(piece):
                    if isinstance(event, RequestReceived):
                        _read_h2_head(list(event.headers))
    except (BadMessage, H2Error):
        pass
    frames = _whole_frames(data.removeprefix(PREFACE))
    kept = b"".join(
        _without_unknown_settings(each) for each in frames if each[3] not in (2, 7) and each[3] <= 9
    )
    assert kept.startswith(passed.removeprefix(PREFACE))
    assert not any(each[3] == 5 for each in _whole_frames(passed.removeprefix(PREFACE)))


def _without_unknown_settings(frame: bytes) -> bytes:
    """A SETTINGS frame with the settings of RFC 9113 and RFC 8441 alone; any other frame as it is."""
    body = frame[9:]
    if frame[3] != 4 or len(body) % 6:
        return frame
    pairs = [body[place : place + 6] for place in range(0, len(body), 6)]
    known = b"".join(each for each in pairs if each[0] == 0 and each[1] in b"\1\2\3\4\5\6\x08")
    return len(known).to_bytes(3, "big") + frame[3:9] + known


def _whole_frames(data: bytes) -> list[bytes]:
    found = []
    while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
        size = 9 + int.from_bytes(data[:3], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def _read_h2_head(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        request = read_h2_request(headers)
    except EgressRefused:
        return
    said = dict(headers)
    assert (request.method.encode(), request.path.encode()) == (said[b":method"], said[b":path"])
    for name, value in end_to_end_h2_headers(request.headers):
        assert re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9a-z]+", name)
        assert not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value)


@target(
    "egress.protocols.h2_frames", tokens=(b"\x40", b"\x82", b"\x00", b"\x7f\xff", b"\x3f\xe1\x1f")
)
def hpack_block(data: bytes) -> None:
    """HPACK header blocks: never fewer fields counted than their decoder finds"""
    try:
        found = len(Decoder(max_header_list_size=1 << 20).decode(data, raw=True))
    except HPACKError:
        found = 0
    assert found <= count_fields(data, 1000) <= len(data)


@target(
    "egress.protocols.socks",
    tokens=(b"\5\1\0", b"\5\1\0\3", b"\5\1\0\1", b"\5\1\0\4"),
    max_bytes=600,
)
def socks(data: bytes) -> None:
    """SOCKS5 handshakes of a cell: one meaning by a grammar over the whole message, in any pieces"""
    end = socks_end([data])
    assert socks_end(cut(data, _places(data))) == end
    if len(end) == 1 or end[1] is None:
        return
    host, port = end[1]
    found = socks_request(data.removesuffix(end[2]))
    assert found is not None
    assert len(found["methods"]) == found["count"][0]
    assert port == int.from_bytes(found["port"], "big")
    if found["name"] is not None:
        assert (host.encode(), len(host)) == (found["name"], found["size"][0])


@target(
    "egress.protocols.tls_client_hello",
    tokens=(b"\x16\3\1", b"\0\0\0\x14\0\x12\0\0\x0f", b"api.example.com"),
)
def tls_hello(data: bytes) -> None:
    """TLS client hellos of a cell: the server name that OpenSSL reads, however much has arrived"""
    found = name_in(data)
    for place in _places(data):
        early = name_in(data[: place % (len(data) + 1)])
        assert early is INCOMPLETE or early == found
    if found is None or isinstance(found, str):
        refused = {"CW-BAD-TLS", "CW-NOT-TLS"}
        assert found in refused or openssl_names(data) in ([], [found])


@target(
    "egress.destinations.cell_dns",
    tokens=(b"\3api\7example\3com\0", b"\xc0\x0c", b"\0\1\0\1"),
    max_bytes=600,
)
def dns_query(data: bytes) -> None:
    """DNS queries of a cell: only an allowed name is answered, and the answer parses"""

    def is_allowed(host: str) -> bool:
        return host == "api.example.com" or host.endswith(".wild.example.com")

    found = answer_query(data, is_allowed=is_allowed, table=NameTable())
    if found.reply is None:
        assert found.refused
        return
    assert len(found.reply) <= 512
    assert found.reply[:2] == data[:2]
    reply = dns.message.from_wire(found.reply)
    if found.refused is None:
        assert is_allowed(found.name)
        assert reply.rcode() == dns.rcode.NOERROR
    else:
        assert not reply.answer


_HOST_TOKENS = (
    *(b"example.com", b"xn--", b"127.0.0.1", b"0x7f", b"[::1]", b"::ffff:", b"%", b"..", b".", b":443", b"*."),
    *("。".encode(), "é".encode(), "\u0430".encode(), b"co.uk", b"https://", b"http://", b"user@", b"?a=b", b"#c", b"/../"),
    *(b"forbid ", b"require ", b"only ", b"set ", b"GET,HEAD ", b" X-Api: ", b"/v1", b"//", b"\\"),
)  # fmt: skip


@target("egress.destinations.hostnames", tokens=_HOST_TOKENS, max_bytes=300)
def host_name(data: bytes) -> None:
    """Names of hosts: one canonical spelling that no C resolver takes for an address, or a refusal"""
    text = text_of(data)
    try:
        found = host_of(text)
    except EgressRefused as error:
        assert error.code == "CW-BAD-HOST"  # noqa: PT017  # the engine calls this, not pytest
        assert str(error).isprintable()  # noqa: PT017
        return
    if isinstance(found, str):
        assert re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", found)
        assert host_of(found) == found == host_of(found.upper() + ".")
        try:
            socket.inet_aton(found)
        except OSError:
            return
        raise AssertionError(f"{found} is an address for the C library")
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    assert socket.inet_pton(family, text.removeprefix("[").removesuffix("]")) == found.packed


@target("egress.destinations.hostnames", tokens=_HOST_TOKENS, max_bytes=600)
def url(data: bytes) -> None:
    """URLs and redirect targets: host and port as urlsplit finds them, one spelling, or a refusal"""
    text = text_of(data)
    base = parse_url("https://docs.example.com/a/b?c")
    for read in (parse_url, lambda each: resolve_redirect(base, each.encode())):
        try:
            found = read(text)
        except EgressRefused as error:
            assert error.code in {"CW-BAD-URL", "CW-BAD-HOST"}  # noqa: PT017
            assert str(error).isprintable()  # noqa: PT017
            continue
        again = parse_url(str(found))
        assert again == found
        second = urlsplit(str(found))
        ports = {"http": 80, "https": 443}
        assert (second.hostname, second.port or ports[second.scheme]) == (found.host, found.port)
        assert second.username is None


@target(
    "egress.destinations.allowlist",
    "egress.destinations.header_rules",
    tokens=_HOST_TOKENS,
    max_bytes=300,
)
def egress_rule(data: bytes) -> None:
    """Allow rules and header rules: a rule that means what it says, or an error; paths are normal once"""
    text = text_of(data)
    try:
        rule = parse_rule(text)
        assert rule.text == text
        assert normal_path(rule.path) == rule.path
        assert Allowlist([rule]).knows(rule.host) == (not rule.is_wildcard)
    except BadInput as error:
        assert error.code == "CW-BAD-DOMAIN"  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
    try:
        parse_header_rule(text)
    except BadInput as error:
        assert str(error).isprintable()  # noqa: PT017
    normal = normal_path(text)
    assert normal is None or normal_path(normal) == normal


_CODINGS = ("gzip", "deflate", "zstd", "identity")


@target(
    "egress.inspection.decompression",
    tokens=(b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x78\x9c", b"\x50\x2a\x4d\x18"),
)
def compressed_body(data: bytes) -> None:
    """Compressed bodies: the same bytes in any pieces, never more than the budget"""
    coding, limit = _CODINGS[data[0] % 4 if data else 0], 1 << 20
    data = data[1:]

    def unpack(pieces: list[bytes]) -> tuple[bytes, str]:
        body = Decompressor(coding, DecompressionBudget(limit))
        got = b""
        try:
            for piece in pieces:
                for part in body.feed(piece):
                    got += part
                    assert len(got) <= limit
            body.end()
        except EgressRefused as error:
            return got, error.code
        finally:
            body.close()
        return got, ""

    whole, split = unpack([data]), unpack(cut(data, _places(data)))
    assert whole[1] == split[1]
    assert whole[1] or whole[0] == split[0]


_PAGE_TOKENS = (
    *(b"<p>", b"</p>", b"<a href=", b"<img src=", b"<table><tr><td>", b"<ul><li>", b"<pre>", b"<script>", b"<style>"),
    *(b"<!--", b"-->", b"<![CDATA[", b"&amp;", b"&#x", b"<base href=", b"javascript:", b"data:", b"<title>", b"<br/>"),
    *(b"<?xml version='1.0'?>", b"<rss><item>", b"display:none", b"<svg>", b"<template>", b"<noscript>", b"style="),
)  # fmt: skip


@target("egress.pages", "parsing.html", tokens=_PAGE_TOKENS)
def web_page(data: bytes) -> None:
    """Web pages, XML and feeds: text or Markdown whose links are web addresses, or a refusal"""
    kinds = (b"text/html", b"application/xhtml+xml", b"application/rss+xml; charset=utf-16", None)
    kind = ContentType.of(kinds[data[0] % 4 if data else 0])
    try:
        page = kind.text_of(data[1:], is_cut=False)
    except EgressRefused:
        return
    for form in ("markdown", "text"):
        shown = render(page, form=form, url="https://a.example/b/", is_xml=kind.is_xml)
        if form == "markdown":
            for link in re.findall(r"\]\(\s*<?([^)\s>]*)", shown.text):
                scheme = html.unescape(link).strip().lower().partition(":")[0]
                assert scheme not in {"javascript", "vbscript", "data", "file"}, link
