"""HTTP/1.1 with one meaning: each smuggling trick is refused, and its plain twin goes through."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.egress.protocols.http1_codec import ParserSignal, RequestHead, ResponseHead
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.protocols.http1_framing import BadMessage, bad_request, bad_response
from cellwall.egress.protocols.http_heads import (
    HttpRequest,
    Scheme,
    TargetForm,
    end_to_end_headers,
    read_request,
)

pytestmark = pytest.mark.requirement("NET-2")

Got = list[Any]


def head(*lines: str | bytes, first: str | bytes = "GET /a HTTP/1.1", host: bool = True) -> bytes:
    """A request's head; with a Host line unless told otherwise."""
    every = [first, *(["Host: api.example.com"] if host else []), *lines]
    raw = [line if isinstance(line, bytes) else line.encode() for line in every]
    return b"\r\n".join(raw) + b"\r\n\r\n"


def post(*lines: str | bytes, body: bytes = b"") -> bytes:
    return head(*lines, first="POST /a HTTP/1.1") + body


def read(codec: Http1ServerCodec | Http1ClientCodec, data: bytes, *, by: int = 1 << 20) -> Got:
    """The events of these bytes, fed in pieces; data as bytes, sentinels left out."""
    got: Got = []
    for at in range(0, len(data), by):
        codec.feed(data[at : at + by])
        while True:
            event = codec.next_event()
            if event is ParserSignal.BEHIND:
                codec.read_on()
                continue
            if event is ParserSignal.NEED_DATA or event is ParserSignal.PAUSED:
                break
            if isinstance(event, bytes) and got and isinstance(got[-1], bytes):
                got[-1] += event
            else:
                got.append(event)
    return got


def asked(data: bytes, *, scheme: Scheme = "http") -> HttpRequest:
    return read_request(read(Http1ServerCodec(), data)[0], scheme=scheme)


def refusal_of(data: bytes, *, scheme: Scheme = "http") -> BadMessage:
    with pytest.raises(BadMessage) as refused:
        asked(data, scheme=scheme)
    assert refused.value.code == "CW-BAD-REQUEST"
    assert refused.value.hint
    return refused.value


# What a request means.


def test_an_origin_form_is_for_the_host_it_states() -> None:
    assert asked(head("Accept: */*", first="GET /a/b?c=d HTTP/1.1")) == HttpRequest(
        method="GET",
        form=TargetForm.ORIGIN,
        scheme="http",
        host="api.example.com",
        port=80,
        path="/a/b?c=d",
        headers=[(b"host", b"api.example.com"), (b"accept", b"*/*")],
        is_upgrade=False,
    )


@pytest.mark.parametrize(
    ("first", "host", "expected"),
    [
        ("GET http://api.example.com/a HTTP/1.1", "api.example.com", ("api.example.com", 80, "/a")),
        ("GET HTTP://API.example.COM./a HTTP/1.1", "api.example.com:80", ("api.example.com", 80, "/a")),
        ("GET http://api.example.com:8080 HTTP/1.1", "API.EXAMPLE.COM:8080", ("api.example.com", 8080, "/")),
        ("GET http://api.example.com?x=/y HTTP/1.1", "api.example.com", ("api.example.com", 80, "/?x=/y")),
        ("GET http://192.0.2.1/ HTTP/1.1", "192.0.2.1", ("192.0.2.1", 80, "/")),
        ("GET http://[2001:DB8::1]:81/ HTTP/1.1", "[2001:db8:0::1]:81", ("[2001:db8::1]", 81, "/")),
    ],
)  # fmt: skip
def test_an_absolute_form_is_for_the_host_of_its_url(
    first: str, host: str, expected: tuple[str, int, str]
) -> None:
    request = asked(head(f"Host: {host}", first=first, host=False))
    assert (request.form, request.host, request.port, request.path) == (
        TargetForm.ABSOLUTE,
        *expected,
    )


def test_an_old_client_may_leave_out_the_host_where_the_url_has_it() -> None:
    request = asked(head(first="GET http://api.example.com/ HTTP/1.0", host=False))
    assert (request.host, request.port) == ("api.example.com", 80)


@pytest.mark.parametrize("host", ["api.example.com:443", "api.example.com", "API.example.com."])
def test_connect_is_for_its_authority(host: str) -> None:
    request = asked(head(f"Host: {host}", first="CONNECT api.example.com:443 HTTP/1.1", host=False))
    assert request == HttpRequest(
        method="CONNECT",
        form=TargetForm.AUTHORITY,
        scheme="http",
        host="api.example.com",
        port=443,
        path="",
        headers=[(b"host", host.encode())],
        is_upgrade=False,
    )


def test_connect_of_an_old_client_needs_no_host_header() -> None:
    """As Python's own http.client writes it before 3.12."""
    request = asked(head(first="CONNECT api.example.com:443 HTTP/1.0", host=False))
    assert (request.form, request.host, request.port) == (
        TargetForm.AUTHORITY,
        "api.example.com",
        443,
    )


def test_within_opened_tls_the_port_is_that_of_https() -> None:
    request = asked(head(), scheme="https")
    assert (request.host, request.port, request.authority) == (
        "api.example.com",
        443,
        "api.example.com",
    )


@pytest.mark.parametrize(
    ("stated", "written"), [("a.example:80", "a.example"), ("a.example:81", "a.example:81")]
)
def test_the_authority_names_a_port_only_where_it_is_not_the_usual_one(
    stated: str, written: str
) -> None:
    assert asked(head(f"Host: {stated}", host=False)).authority == written


def test_a_method_that_a_header_puts_in_its_place_has_to_be_allowed_too() -> None:
    request = asked(post("X-HTTP-Method-Override: delete", "Content-Length: 0"))
    assert request.methods == ("POST", "DELETE")
    assert asked(post("Content-Length: 0")).methods == ("POST",)


WEBSOCKET = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: WebSocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


def test_a_websocket_is_an_upgrade() -> None:
    request = asked(head(*WEBSOCKET))
    assert request.is_upgrade
    assert end_to_end_headers(request.headers, is_upgrade=True, bad=bad_request) == [
        (b"host", b"api.example.com"),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"sec-websocket-version", b"13"),
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        head("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
        head(*WEBSOCKET[1:]),
        head(WEBSOCKET[0], "Upgrade: websocket, h2c", *WEBSOCKET[2:]),
        head(*WEBSOCKET[:2], WEBSOCKET[3]),
        head(*WEBSOCKET[:3], "Sec-WebSocket-Version: 99"),
        post(*WEBSOCKET),
        head(*WEBSOCKET, "Content-Length: 5") + b"12345",
        head(*WEBSOCKET, first="GET http://api.example.com/ HTTP/1.0"),
    ],
)
def test_no_other_protocol_is_switched_to(data: bytes) -> None:
    """After `h2c` whatever follows would pass by the rules for methods and paths."""
    request = asked(data)
    assert not request.is_upgrade
    names = {name for name, _ in end_to_end_headers(request.headers, bad=bad_request)}
    assert not names & {b"upgrade", b"connection", b"http2-settings"}


# What has two meanings.

PLAIN = {
    "head": head("Accept: */*"),
    "length": post("Content-Length: 5", body=b"12345"),
    "chunked": post("Transfer-Encoding: chunked", body=b"5\r\n12345\r\n0\r\n\r\n"),
    "connect": head(first="CONNECT api.example.com:80 HTTP/1.1"),
    "absolute": head(first="GET http://api.example.com/ HTTP/1.1"),
    "old": head(first="GET /a HTTP/1.0"),
}
CHUNKS = b"5\r\n12345\r\n0\r\n\r\n"
SMUGGLED = {
    # Two lengths.
    "CL and TE": post("Content-Length: 5", "Transfer-Encoding: chunked", body=CHUNKS),
    "TE and CL": post("Transfer-Encoding: chunked", "Content-Length: 5", body=CHUNKS),
    "CL twice, different": post("Content-Length: 5", "Content-Length: 6", body=b"123456"),
    "CL twice, the same": post("Content-Length: 5", "Content-Length: 5", body=b"12345"),
    "CL as a list": post("Content-Length: 5, 5", body=b"12345"),
    "CL with a sign": post("Content-Length: +5", body=b"12345"),
    "CL negative": post("Content-Length: -5", body=b"12345"),
    "CL hexadecimal": post("Content-Length: 0x5", body=b"12345"),
    "CL with a zero in front": post("Content-Length: 05", body=b"12345"),
    "CL with an underscore": post("Content-Length: 1_0", body=b"1234567890"),
    "CL with a space within": post("Content-Length: 1 0", body=b"1234567890"),
    "CL empty": post("Content-Length:", body=b""),
    "CL enormous": post("Content-Length: 9999999999999999999", body=b""),
    "CL imitated": post("Content_Length: 5", "Content-Length: 0"),
    "CL imitated with a dot": post("Content.Length: 5", "Content-Length: 0"),
    # Transfer-Encoding in disguise.
    "TE twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=CHUNKS),
    "TE identity": post("Transfer-Encoding: identity"),
    "TE gzip, chunked": post("Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "TE chunked, identity": post("Transfer-Encoding: chunked, identity", body=CHUNKS),
    "TE xchunked": post("Transfer-Encoding: xchunked", body=CHUNKS),
    "TE in capitals": post("Transfer-Encoding: CHUNKED", body=CHUNKS),
    "TE quoted": post('Transfer-Encoding: "chunked"', body=CHUNKS),
    "TE with a parameter": post("Transfer-Encoding: chunked;x=y", body=CHUNKS),
    "TE empty": post("Transfer-Encoding:", body=CHUNKS),
    "TE with a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "TE with obs-text": post(b"Transfer-Encoding: \xa0chunked", body=CHUNKS),
    "TE imitated": post("Transfer_Encoding: chunked", body=b""),
    "TE in HTTP/1.0": head("Transfer-Encoding: chunked", first="POST /a HTTP/1.0") + CHUNKS,
    # Lines.
    "space before the colon": post("Content-Length : 5", body=b"12345"),
    "tab before the colon": post("Transfer-Encoding\t: chunked", body=CHUNKS),
    "folded line": head("X-A: b", " c: d"),
    "folded TE": post("Transfer-Encoding:", "\tchunked", body=CHUNKS),
    "first line folded": head(" X-A: b", "Host: api.example.com", host=False),
    "no colon": head("Accept"),
    "empty name": head(": x"),
    "name with a bracket": head("X(a): b"),
    "name that is not ASCII": head("Äccept: b"),
    "bare LF after a header": head(b"X-A: b\nX-B: c"),
    "bare LF at the end": b"GET /a HTTP/1.1\nHost: api.example.com\n\n",
    "bare CR within": head(b"X-A: b\rX-B: c"),
    "bare CR before CRLF": head(b"X-A: b\r"),
    "NUL in a value": head(b"X-A: b\0c"),
    "NUL in a name": head(b"X\0A: b"),
    "control character": head(b"X-A: b\x01c"),
    "delete character": head(b"X-A: b\x7fc"),
    "empty line in front": b"\r\n" + head(),
    "space in front": b" " + head(),
    # The first line.
    "two spaces": head(first="GET  /a HTTP/1.1"),
    "tab": head(first="GET\t/a HTTP/1.1"),
    "space behind": head(first="GET /a HTTP/1.1 "),
    "space in the target": head(first="GET /a b HTTP/1.1"),
    "no version": head(first="GET /a"),
    "HTTP/0.9": head(first="GET /a HTTP/0.9"),
    "HTTP/1.2": head(first="GET /a HTTP/1.2"),
    "HTTP/2.0": head(first="GET /a HTTP/2.0"),
    "http in small letters": head(first="GET /a http/1.1"),
    "HTTP/1.1 in other digits": head(first="GET /a HTTP/1.\u0661"),
    "method in small letters": head(first="get /a HTTP/1.1"),
    "method with a colon": head(first="GE:T /a HTTP/1.1"),
    "TRACE": head(first="TRACE /a HTTP/1.1"),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    # The target.
    "asterisk": head(first="OPTIONS * HTTP/1.1"),
    "fragment": head(first="GET /a#b HTTP/1.1"),
    "not ASCII": head(first="GET /ä HTTP/1.1"),
    "no slash": head(first="GET a HTTP/1.1"),
    "user": head(first="GET http://user@api.example.com/ HTTP/1.1"),
    "user and password": head(first="GET http://api.example.com:80@evil.example.net/ HTTP/1.1"),
    "backslash": head(first=r"GET http://api.example.com\@evil.example.net/ HTTP/1.1"),
    "another scheme": head(first="GET ftp://api.example.com/ HTTP/1.1"),
    "https without CONNECT": head(first="GET https://api.example.com/ HTTP/1.1"),
    "no host in the URL": head(first="GET http:///a HTTP/1.1"),
    "host as a number": head("Host: 2852039166", first="GET / HTTP/1.1", host=False),
    "host with a zone": head("Host: [fe80::1%eth0]", host=False),
    "host with an encoded dot": head(first="GET http://api%2eexample.com/ HTTP/1.1"),
    "port 0": head(first="GET http://api.example.com:0/ HTTP/1.1"),
    "port too large": head(first="GET http://api.example.com:65536/ HTTP/1.1"),
    "port with a zero in front": head(first="GET http://api.example.com:080/ HTTP/1.1"),
    "port empty": head(first="GET http://api.example.com:/ HTTP/1.1"),
    # The host, told twice.
    "no host": head(host=False),
    "no host in HTTP/1.0": head(first="GET /a HTTP/1.0", host=False),
    "host twice": head("Host: api.example.com"),
    "host twice, different": head("Host: evil.example.net"),
    "host as a list": head("Host: api.example.com, evil.example.net", host=False),
    "host empty": head("Host:", host=False),
    "host with a user": head("Host: user@api.example.com", host=False),
    "host with a path": head("Host: api.example.com/x", host=False),
    "host that is not ASCII": head("Host: äpi.example.com", host=False),
    "host is not that of the URL": head(first="GET http://evil.example.net/ HTTP/1.1"),
    "port is not that of the URL": head(first="GET http://api.example.com:8080/ HTTP/1.1"),
    "host is a longer one": head("Host: api.example.com.evil.net", first="GET http://api.example.com/ HTTP/1.1", host=False),
    "path in a header": head("X-Original-URL: /admin"),
    "path in another header": head("X-Rewrite-Url: /admin"),
    # CONNECT.
    "CONNECT without a port": head(first="CONNECT api.example.com HTTP/1.1"),
    "CONNECT to a URL": head(first="CONNECT http://api.example.com:80/ HTTP/1.1"),
    "CONNECT with a path": head(first="CONNECT api.example.com:80/ HTTP/1.1"),
    "CONNECT with a user": head(first="CONNECT u@api.example.com:80 HTTP/1.1"),
    "CONNECT for another host": head(first="CONNECT evil.example.net:80 HTTP/1.1"),
    "CONNECT for another port": head("Host: api.example.com:443", first="CONNECT api.example.com:80 HTTP/1.1", host=False),
    "CONNECT with a body": head("Content-Length: 5", first="CONNECT api.example.com:80 HTTP/1.1") + b"12345",
    "CONNECT in chunks": head("Transfer-Encoding: chunked", first="CONNECT api.example.com:80 HTTP/1.1") + CHUNKS,
    "CONNECT to a bare IPv6 address": head("Host: [::1]:80", first="CONNECT ::1:80 HTTP/1.1", host=False),
    # Too much.
    "too many headers": head(*[f"X-{number}: y" for number in range(100)]),
    "too long a head": head("X-A: " + "b" * 32 * 1024),
    "too long a first line": head(first=f"GET /{'a' * 32 * 1024} HTTP/1.1"),
}  # fmt: skip


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN.keys())
def test_the_plain_twins_go_through(data: bytes) -> None:
    assert asked(data).host == "api.example.com"


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_a_request_with_two_meanings_is_refused(data: bytes) -> None:
    assert asked(PLAIN["head"]).host == "api.example.com", "the control must be read"
    refusal_of(data)


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_it_is_refused_in_any_pieces(data: bytes) -> None:
    codec = Http1ServerCodec()
    with pytest.raises(BadMessage):
        read_request(read(codec, data, by=max(1, len(data) // 40))[0], scheme="http")


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("0.9", []),
        ("1.2", []),
        ("2.0", []),
        ("1.0", [("Transfer-Encoding", "chunked")]),
        ("1.1", [("Transfer-Encoding", "chunked"), ("Content-Length", "1")]),
    ],
)
def test_what_another_reader_would_let_in_is_refused(
    version: str, headers: list[tuple[str, str]]
) -> None:
    def event(version: str, headers: list[tuple[str, str]]) -> RequestHead:
        named = [("host", "a.example"), *headers]
        fields = [(name.lower().encode(), value.encode()) for name, value in named]
        return RequestHead(b"GET", b"/", version.encode(), fields)

    assert read_request(event("1.1", headers[:1]), scheme="http").host == "a.example"
    with pytest.raises(BadMessage):
        read_request(event(version, headers), scheme="http")


def test_connect_within_opened_tls_is_refused() -> None:
    data = head(first="CONNECT api.example.com:80 HTTP/1.1")
    assert asked(data).form is TargetForm.AUTHORITY
    refusal_of(data, scheme="https")


def test_just_enough_headers_are_read() -> None:
    assert len(asked(head(*[f"X-{number}: y" for number in range(99)])).headers) == 100


# Bodies.


@pytest.mark.parametrize("by", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("which", ["length", "chunked"])
def test_a_body_is_read_in_any_pieces(which: str, by: int) -> None:
    event, *rest = read(Http1ServerCodec(), PLAIN[which], by=by)
    assert isinstance(event, RequestHead)
    assert rest == [b"12345", ParserSignal.END]


CHUNK_TRICKS = {
    "bare LF behind the size": b"5\n12345\r\n0\r\n\r\n",
    "bare LF behind the chunk": b"5\r\n12345\n0\r\n\r\n",
    "bare CR behind the size": b"5\r12345\r\n0\r\n\r\n",
    "space behind the size": b"5 \r\n12345\r\n0\r\n\r\n",
    "space before the size": b" 5\r\n12345\r\n0\r\n\r\n",
    "0x": b"0x5\r\n12345\r\n0\r\n\r\n",
    "sign": b"+5\r\n12345\r\n0\r\n\r\n",
    "underscore": b"1_0\r\n1234567890123456\r\n0\r\n\r\n",
    "size empty": b"\r\n12345\r\n0\r\n\r\n",
    "size enormous": b"fffffffffffffffff\r\n12345\r\n0\r\n\r\n",
    "extension": b"5;a=b\r\n12345\r\n0\r\n\r\n",
    "extension with a line break": b"5;a\nb\r\n12345\r\n0\r\n\r\n",
    "extension without end": b"5;" + b"a" * 300,
    "chunk too long": b"5\r\n123456\r\n0\r\n\r\n",
    "chunk too short": b"5\r\n1234\r\n0\r\n\r\n",
    "trailer": b"5\r\n12345\r\n0\r\nX-A: b\r\n\r\n",
    "trailer that frames": b"5\r\n12345\r\n0\r\nContent-Length: 9\r\n\r\n",
    "bare LF at the end": b"5\r\n12345\r\n0\r\n\n",
    "last chunk with bare LF": b"5\r\n12345\r\n0\n\r\n",
}


@pytest.mark.parametrize("by", [1, 5, 1000])
@pytest.mark.parametrize("body", CHUNK_TRICKS.values(), ids=CHUNK_TRICKS.keys())
def test_chunks_with_two_meanings_are_refused(body: bytes, by: int) -> None:
    lines = post("Transfer-Encoding: chunked")
    assert read(Http1ServerCodec(), lines + CHUNKS, by=by)[1:] == [b"12345", ParserSignal.END]
    with pytest.raises(BadMessage) as refused:
        read(Http1ServerCodec(), lines + body, by=by)
    assert refused.value.code == "CW-BAD-REQUEST"


def test_a_body_in_too_many_tiny_chunks_is_refused() -> None:
    lines, end = post("Transfer-Encoding: chunked"), b"0\r\n\r\n"
    few, many, large = b"1\r\nx\r\n" * 4000, b"1\r\nx\r\n" * 6000, b"10\r\n" + b"x" * 16 + b"\r\n"
    assert read(Http1ServerCodec(), lines + few + end)[1] == b"x" * 4000
    assert read(Http1ServerCodec(), lines + large * 6000 + end)[1] == b"x" * 96_000
    with pytest.raises(BadMessage):
        read(Http1ServerCodec(), lines + many + end)


@pytest.mark.parametrize("data", [PLAIN["length"][:-1], PLAIN["chunked"][:-1], PLAIN["head"][:-1]])
def test_a_request_that_ends_in_the_middle_is_refused(data: bytes) -> None:
    codec = Http1ServerCodec()
    read(codec, data)
    with pytest.raises(BadMessage):
        codec.feed(b"")
        codec.next_event()


def test_a_refused_side_stays_refused() -> None:
    codec = Http1ServerCodec()
    with pytest.raises(BadMessage):
        codec.feed(SMUGGLED["CL and TE"])
    with pytest.raises(BadMessage):
        codec.feed(PLAIN["head"])
    with pytest.raises(BadMessage):
        codec.next_event()
    assert not codec.next_cycle()


# Both sides together.


def test_requests_sent_ahead_are_read_one_by_one() -> None:
    codec = Http1ServerCodec()
    first = read(codec, PLAIN["chunked"] + PLAIN["length"] + PLAIN["head"])
    assert first[1:] == [b"12345", ParserSignal.END]
    assert codec.next_event() is ParserSignal.PAUSED
    answered = codec.send_head(204, []) + codec.send_end()
    assert answered == b"HTTP/1.1 204 \r\n\r\n"
    assert codec.next_cycle()
    event = codec.next_event()
    assert isinstance(event, RequestHead)
    assert codec.rest == PLAIN["head"]


def test_too_much_sent_ahead_is_refused() -> None:
    codec = Http1ServerCodec()
    codec.feed(PLAIN["head"])
    with pytest.raises(BadMessage):
        codec.feed(bytes(300_000))


def test_what_follows_connect_is_kept_for_the_tunnel() -> None:
    codec = Http1ServerCodec()
    read(codec, PLAIN["connect"] + b"\x16\x03\x01")
    assert codec.send_head(200, []) == b"HTTP/1.1 200 \r\n\r\n"
    assert codec.rest == b"\x16\x03\x01"
    assert not codec.next_cycle()


def test_a_client_that_waits_to_be_told_is_seen() -> None:
    codec = Http1ServerCodec()
    read(codec, post("Expect: 100-continue", "Content-Length: 5"))
    assert codec.is_waiting_to_send
    codec.send_interim(100, [])
    assert not codec.is_waiting_to_send


def test_a_client_that_has_closed_says_so() -> None:
    codec = Http1ServerCodec()
    codec.feed(b"")
    assert codec.next_event() is ParserSignal.CLOSED
    assert not codec.next_cycle()


def test_an_answer_longer_than_it_says_is_refused() -> None:
    codec = Http1ServerCodec()
    read(codec, PLAIN["head"])
    codec.send_head(200, [(b"content-length", b"1")])
    with pytest.raises(BadMessage) as refused:
        codec.send_data(b"12")
    assert refused.value.code == "CW-BAD-RESPONSE"


def server(method: str = "GET") -> Http1ClientCodec:
    codec = Http1ClientCodec()
    sent = codec.send_head(method.encode(), b"/a", [(b"host", b"a.example")])
    assert sent == f"{method} /a HTTP/1.1\r\nhost: a.example\r\n\r\n".encode()
    assert codec.send_end() == b""
    return codec


OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "length": OK + b"Content-Length: 5\r\n\r\n12345",
    "chunked": OK + b"Transfer-Encoding: Chunked\r\n\r\n" + CHUNKS,
    "extension and trailer": OK
    + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\n12345\r\n0  \r\nX-A: b\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n12345",
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    + OK
    + b"Content-Length: 5\r\n\r\n12345",
}


@pytest.mark.parametrize("by", [1, 3, 1000])
@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_read_in_any_pieces(data: bytes, by: int) -> None:
    codec = server()
    got = read(codec, data, by=by)
    assert got[-2:] == [b"12345", ParserSignal.END]
    assert isinstance(got[-3], ResponseHead)
    assert codec.next_cycle()


def test_an_answer_may_end_with_its_connection() -> None:
    codec = server()
    assert read(codec, OK + b"\r\n123")[1:] == [b"123"]
    codec.feed(b"45")
    assert codec.next_event() == b"45"
    codec.feed(b"")
    assert codec.next_event() is ParserSignal.END
    assert not codec.next_cycle()


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", "200 OK"), ("GET", "204 x"), ("GET", "304 x")]
)
def test_an_answer_without_a_body_ends_with_its_head(method: str, status: str) -> None:
    codec = server(method)
    got = read(codec, f"HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n".encode())
    assert got[1:] == [ParserSignal.END]
    assert codec.next_cycle()


BAD_ANSWERS = {
    "CL and TE": OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "CL twice": OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
    "CL as a list": OK + b"Content-Length: 5, 5\r\n\r\n12345",
    "TE gzip": OK + b"Transfer-Encoding: gzip\r\n\r\n12345",
    "TE in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 5\n\n12345",
    "folded": OK + b"X-A: b\r\n c\r\nContent-Length: 5\r\n\r\n12345",
    "space before the colon": OK + b"Content-Length : 5\r\n\r\n12345",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\n12345",
    "status of two digits": b"HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\n12345",
    "status 600": b"HTTP/1.1 600 OK\r\nContent-Length: 5\r\n\r\n12345",
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "switch nobody asked for": b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n",
    "interim without end": b"HTTP/1.1 100 x\r\n\r\n" * 17,
    "too many headers": OK + b"X-A: b\r\n" * 201 + b"\r\n",
    "too long": OK + b"X-A: " + b"b" * 65536 + b"\r\n\r\n",
    "chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n5\n12345\r\n0\r\n\r\n",
    "trailer": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX A: b\r\n\r\n",
    "trailers without end": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: b\r\n" * 2000,
}  # fmt: skip


@pytest.mark.parametrize("data", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_an_answer_with_two_meanings_is_refused(data: bytes) -> None:
    assert read(server(), ANSWERS["length"])[1:] == [b"12345", ParserSignal.END]
    with pytest.raises(BadMessage) as refused:
        read(server(), data)
    assert refused.value.code == "CW-BAD-RESPONSE"


@pytest.mark.parametrize("data", [ANSWERS["length"][:-1], ANSWERS["chunked"][:-1]])
def test_an_answer_that_ends_too_early_is_refused(data: bytes) -> None:
    codec = server()
    read(codec, data)
    with pytest.raises(BadMessage):
        codec.feed(b"")
        codec.next_event()


def test_an_answer_before_its_request_is_refused() -> None:
    """It would be taken for the answer to whatever is asked next."""
    with pytest.raises(BadMessage):
        Http1ClientCodec().feed(ANSWERS["length"])
    codec = server()
    read(codec, ANSWERS["length"])
    assert codec.next_cycle()
    with pytest.raises(BadMessage):
        codec.feed(ANSWERS["length"])


def test_a_connection_with_a_second_answer_in_it_is_not_used_again() -> None:
    codec = server()
    read(codec, ANSWERS["length"] + ANSWERS["length"])
    assert not codec.next_cycle()


def test_after_a_switch_the_rest_belongs_to_the_other_protocol() -> None:
    codec = Http1ClientCodec()
    upgrade = [(b"host", b"a.example"), (b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    codec.send_head(b"GET", b"/", upgrade)
    codec.send_end()
    got = read(
        codec, b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00"
    )
    assert [event.status for event in got] == [101]
    assert codec.rest == b"\x81\x00"


def test_a_body_that_does_not_fit_is_not_sent() -> None:
    codec = Http1ClientCodec()
    headers = [(b"host", b"a.example"), (b"content-length", b"1")]
    codec.send_head(b"POST", b"/", headers)
    with pytest.raises(BadMessage):
        codec.send_data(b"12")


# What goes on.


def test_headers_for_us_end_here() -> None:
    sent = [
        (b"host", b"a.example"),
        (b"connection", b"close, X-Mine"),
        (b"x-mine", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-authorization", b"Basic eA=="),
        (b"proxy-connection", b"keep-alive"),
        (b"te", b"trailers"),
        (b"trailer", b"x-sum"),
        (b"upgrade", b"h2c"),
        (b"transfer-encoding", b"chunked"),
        (b"authorization", b"Bearer x"),
        (b"accept", b"*/*"),
    ]
    assert end_to_end_headers(sent, bad=bad_request) == [
        (b"host", b"a.example"),
        (b"transfer-encoding", b"chunked"),
        (b"authorization", b"Bearer x"),
        (b"accept", b"*/*"),
    ]


@pytest.mark.parametrize(
    "word", [b"authorization", b"Host", b"close, CONTENT-LENGTH", b"transfer-encoding", b"cookie"]
)
def test_connection_cannot_take_away_what_was_judged(word: bytes) -> None:
    headers = [(b"host", b"a.example"), (b"authorization", b"x")]
    assert end_to_end_headers([*headers, (b"connection", b"close")], bad=bad_request) == headers
    with pytest.raises(BadMessage) as refused:
        end_to_end_headers([*headers, (b"connection", word)], bad=bad_request)
    assert refused.value.code == "CW-BAD-REQUEST"
    with pytest.raises(BadMessage) as refused:
        end_to_end_headers([*headers, (b"connection", word)], bad=bad_response)
    assert refused.value.code == "CW-BAD-RESPONSE"


@pytest.mark.requirement("ERR-1")
def test_no_refusal_repeats_what_was_sent() -> None:
    secret = "s3cr3t-value"
    told = [
        refusal_of(head(f"X-A: {secret}\x01")),
        refusal_of(head(first=f"GET http://{secret}@api.example.com/ HTTP/1.1")),
        refusal_of(head(f"Host: {secret}\u00e4", host=False)),
        refusal_of(post(f"Transfer-Encoding: {secret}")),
    ]
    assert not any(secret in str(error) for error in told)
