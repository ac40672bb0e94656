"""Fuzzes what a cell can send to the proxy: it is understood in one way, or refused by our error.

What is accepted is held against a second reader that shares no code with ours: OpenSSL for a
hello, a grammar over the whole message for HTTP and SOCKS, dnspython for DNS.
"""

from __future__ import annotations

import base64
import hashlib
import ssl

import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import EgressRefused
from cellwall.core.network import TRANSPARENT_NET
from cellwall.egress.destinations.cell_dns import NameTable, answer_query, looks_like_data
from cellwall.egress.destinations.hostnames import host_of
from cellwall.egress.protocols.http1_codec import ParserSignal, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.protocols.http1_framing import bad_response
from cellwall.egress.protocols.http_heads import end_to_end_headers
from cellwall.egress.proxy.client_tokens import read_credentials
from fuzz.second_readers import (
    INCOMPLETE,
    as_sent_on,
    client_hello,
    cut,
    events,
    h11_request,
    name_in,
    openssl_names,
    socks_end,
    socks_request,
    strict_request,
)

FUZZ = settings(max_examples=250, deadline=None, derandomize=True)


@st.composite
def mutated(draw: st.DrawFn, corpus: tuple[bytes, ...], pieces: tuple[bytes, ...]) -> bytes:
    """A good message with pieces put in, taken out, doubled and changed."""
    data = draw(st.sampled_from(corpus))
    for _ in range(draw(st.integers(0, 5))):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        match draw(st.sampled_from(["insert", "replace", "delete", "double", "byte"])):
            case "insert":
                data = data[:at] + draw(st.sampled_from(pieces)) + data[at:]
            case "replace":
                piece = draw(st.sampled_from(pieces))
                data = data[:at] + piece + data[at + len(piece) :]
            case "delete":
                data = data[:at] + data[min(end, at + 16) :]
            case "double":
                data = data[:end] + data[at : min(end, at + 60)] + data[end:]
            case _:
                data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


PLACES = st.lists(st.integers(0, 1 << 16), max_size=8)


# TLS.


def in_records(data: bytes, size: int) -> bytes:
    message = data[5:]
    cuts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in cuts)


HELLO = client_hello("api.example.com", ssl.TLSVersion.TLSv1_3)
OLD_HELLO = client_hello("api.example.com", ssl.TLSVersion.TLSv1_2)
HELLOS = (
    HELLO,
    OLD_HELLO,
    in_records(OLD_HELLO, 90),
    client_hello(None, ssl.TLSVersion.TLSv1_3),
)
NAME = b"\x00\x00\x00\x14\x00\x12\x00\x00\x0fapi.example.com"
OTHER_NAME = NAME.replace(b"api", b"bad")
assert NAME in HELLO
HELLO_PIECES = (
    b"\x00", b"\x01", b"\x00\x00", b"\x16\x03\x01", b"\x16\x03\x03\x00\x04", b"\x15\x03\x01\x00\x02\x01\x00",
    NAME, OTHER_NAME, b"bad.example.com", b"\0.example.com", b"\x00\x00\x00\x00", b"\xfe\x0d\x00\x01\x00", b"\xff",
)  # fmt: skip


@st.composite
def retold(draw: st.DrawFn) -> bytes:
    """A hello with other extensions and all lengths right, so that it is read to its end."""
    parts = draw(
        st.lists(st.sampled_from([NAME, OTHER_NAME, b"\x00\x17\x00\x00", b"\x00\x00\x00\x00"]) | st.binary(max_size=8), max_size=4)
    )  # fmt: skip
    body = OLD_HELLO[9:]
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    kept = body[at + 2 :].replace(NAME, b"")
    extensions = b"".join(parts) + kept
    whole = body[:at] + len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(whole).to_bytes(3, "big") + whole
    return in_records(b"-----" + message, draw(st.sampled_from([60, 200, 5000])))


def test_the_second_reader_of_hellos_sees_names() -> None:
    assert [openssl_names(data) for data in HELLOS] == [["api.example.com"]] * 3 + [[None]]


@pytest.mark.requirement("NET-6")
@FUZZ
@given(st.binary(max_size=600) | mutated(HELLOS, HELLO_PIECES) | retold(), PLACES)
def test_a_hello_is_read_as_openssl_reads_it(data: bytes, places: list[int]) -> None:
    found = name_in(data)
    # What is known of a beginning stays true, however much of it has come.
    for place in places:
        early = name_in(data[: place % (len(data) + 1)])
        assert early is INCOMPLETE or early == found
    if found is None or isinstance(found, str):
        refused = {"CW-BAD-TLS", "CW-NOT-TLS"}
        assert found in refused or openssl_names(data) in ([], [found])


# SOCKS.

SOCKS = (
    b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb",
    b"\x05\x02\x00\x02\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50hello",
    b"\x05\x01\x00\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50",
)
SOCKS_PIECES = (
    b"\x05",
    b"\x00",
    b"\x01",
    b"\x03",
    b"\x04",
    b"\0.com",
    b"\xff",
    b"\r\n",
    b"\x05\x02\x00\x03",
)


@pytest.mark.requirement("NET-2")
@FUZZ
@given(st.binary(max_size=300) | mutated(SOCKS, SOCKS_PIECES), PLACES)
def test_socks_is_read_in_one_way(data: bytes, places: list[int]) -> None:
    end = socks_end([data])
    assert socks_end(cut(data, places)) == end
    if len(end) == 1 or end[1] is None:
        return
    host, port = end[1]
    found = socks_request(data.removesuffix(end[2]))
    assert found is not None
    assert len(found["methods"]) == found["count"][0]
    assert 0 in found["methods"]
    assert port == int.from_bytes(found["port"], "big")
    if found["name"] is not None:
        assert (host.encode(), len(host)) == (found["name"], found["size"][0])
    else:
        assert host_of(host).packed == (found["v4"] or found["v6"])  # type: ignore[union-attr]


# HTTP.

REQUESTS = (
    b"GET /a?b=c HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\n\r\n12345",
    b"POST /a HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
    b"GET http://a.example.com/a HTTP/1.1\r\nHost: a.example.com\r\n\r\nGET /b HTTP/1.1\r\nHost: b.example\r\n\r\n",
    b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n\x16\x03\x01",
    b"PUT http://api.example.com/ HTTP/1.0\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc",
)
HTTP_PIECES = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\0", b":", b",", b"\x0b", b"\xa0", b"0\r\n\r\n", b"5\r\n", b";a=b",
    b"Host: evil.example.net\r\n", b"Host:", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Content-Length : 3\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n", b"Transfer-Encoding\x0b: chunked\r\n", b"\r\n chunked",
    b"chunked", b"Connection: Host\r\n", b"http://evil.example.net/", b"user@", b"#", b"\\", b"%", b"HTTP/1.0", b"HTTP/1.1",
    b"GET /b HTTP/1.1\r\nHost: b.example\r\n\r\n", b"1\r\nx\r\n", b"X-A: b\r\n", b"_", b"+", b"0x", b"00", b"9999999999999999999",
)  # fmt: skip


def test_the_second_reader_of_requests_reads_the_corpus() -> None:
    read = [strict_request(data) for data in REQUESTS]
    assert [found and found[0] for found in read] == [
        b"GET",
        b"POST",
        b"POST",
        b"GET",
        b"CONNECT",
        b"PUT",
    ]
    assert [found and found[3] for found in read] == [b"", b"12345", b"12345", b"", b"", b"abc"]
    assert [h11_request(data) for data in REQUESTS] == [found and found[:4] for found in read]


@pytest.mark.requirement("NET-2", "RED-2")
@FUZZ
@given(st.binary(max_size=300) | mutated(REQUESTS, HTTP_PIECES), PLACES)
def test_a_request_is_read_as_by_the_letter_and_sent_on_as_one(
    data: bytes, places: list[int]
) -> None:
    codec = Http1ServerCodec()
    got = events(codec, [data] if data else [])
    assert events(Http1ServerCodec(), cut(data, places)) == got
    if not got or got[-1] is not ParserSignal.END:
        return
    body = got[1] if len(got) == 3 else b""
    assert h11_request(data) in (None, (got[0].method, got[0].target, got[0].headers, body))
    strict = strict_request(data)
    assert strict == (got[0].method, got[0].target, list(got[0].headers), body, codec.rest)
    if (sent := as_sent_on(got[0], body)) is None:
        return
    behind = strict_request(sent)
    assert behind is not None
    assert (behind[0], behind[3], behind[4]) == (strict[0], body, b"")


RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\n12345\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n12345",
    b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00",
)


@pytest.mark.requirement("NET-2")
@FUZZ
@given(
    st.binary(max_size=300) | mutated(RESPONSES, HTTP_PIECES),
    PLACES,
    st.sampled_from(["GET", "HEAD", "POST"]),
)
def test_an_answer_is_read_in_one_way_and_fits_what_the_client_is_sent(
    data: bytes, places: list[int], method: str
) -> None:
    def asked() -> Http1ClientCodec:
        server = Http1ClientCodec()
        server.send_head(method.encode(), b"/", [(b"host", b"a.example")])
        server.send_end()
        return server

    got = events(asked(), [*([data] if data else []), b""])
    assert events(asked(), [*cut(data, places), b""]) == got
    if got is None:
        return
    client = Http1ServerCodec()
    events(client, [f"{method} / HTTP/1.1\r\nHost: a.example\r\n\r\n".encode()])
    for event in got:
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


# DNS.

QUERIES = tuple(
    dns.message.make_query(name, kind, use_edns=edns).to_wire()
    for name, kind, edns in [
        ("api.example.com", "A", False),
        ("API.wild.example.com", "AAAA", 0),
        ("a.b.wild.example.com", "A", 0),
    ]
)
DNS_PIECES = (
    b"\x00", b"\x00\x01", b"\xc0\x0c", b"\xc0\x04", b"\x04evil\x07example\x03net", b"\x03com\x00", b"\xff", b"\x40", b".",
    b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00", b"\x00\x00\xfa\x00\xff", b"\x04wild", b"\x20" + b"a1" * 16,
)  # fmt: skip


def is_allowed(host: str) -> bool:
    return host == "api.example.com" or host.endswith(".wild.example.com")


@pytest.mark.requirement("NET-7")
@FUZZ
@given(st.binary(max_size=100) | mutated(QUERIES, DNS_PIECES))
def test_only_an_allowed_name_is_answered(data: bytes) -> None:
    table = NameTable()
    found = answer_query(data, is_allowed=is_allowed, table=table)
    if found.reply is None:
        assert found.refused
        return
    assert len(found.reply) <= 512
    assert found.reply[:2] == data[:2]
    reply = dns.message.from_wire(found.reply)
    if found.refused is not None:
        assert reply.rcode() != dns.rcode.NOERROR
        assert not reply.answer
        return
    asked = dns.message.from_wire(data).question
    assert reply.rcode() == dns.rcode.NOERROR
    assert reply.question == asked
    assert found.name == asked[0].name.to_text(omit_final_dot=True).lower()
    assert is_allowed(found.name)
    assert not looks_like_data(found.name)
    if asked[0].rdtype == dns.rdatatype.A:
        address = table.address_for(found.name)
        assert address in TRANSPARENT_NET
        assert [item.address for item in reply.answer[0]] == [str(address)]
    else:
        assert not reply.answer


_TOKEN = b"q7H_-0"
_PAIR = base64.b64encode(b"agent:" + _TOKEN)
_CREDENTIALS = (b"Basic " + _PAIR, b"Bearer " + _TOKEN, b"basic  " + _PAIR, b"")
_CREDENTIAL_PIECES = (b" ", b",", b"=", b":", b"\t", b"Basic ", b"Bearer ", _PAIR, _TOKEN, b"\xff")


@pytest.mark.requirement("NET-8")
@FUZZ
@given(st.lists(mutated(_CREDENTIALS, _CREDENTIAL_PIECES), max_size=2))
def test_credentials_name_a_client_only_if_another_reader_finds_its_token(
    values: list[bytes],
) -> None:
    headers = [(b"proxy-authorization", value) for value in values]
    try:
        found = read_credentials(headers)
    except EgressRefused:
        assert len(values) > 1
        return
    if found is None or not found.belong_to("agent", hashlib.sha256(_TOKEN).digest()):
        return
    (value,) = values
    scheme, text = value.decode("ascii").split()
    if scheme.lower() == "basic":
        text = base64.b64decode(text).decode("ascii").removeprefix("agent:")
    assert text.encode() == _TOKEN
