"""What leaves is written anew, and cannot say more than was judged."""

from __future__ import annotations

import pytest

from cellwall.egress.protocols.http1_codec import Body, request_head, response_head
from cellwall.egress.protocols.http1_connection import Http1ServerCodec
from cellwall.egress.protocols.http1_framing import BadMessage, BodyEnd, bad_request, bad_response

pytestmark = pytest.mark.requirement("NET-2")

HOST = (b"host", b"a.example")


def test_heads_are_written_as_they_are_told() -> None:
    assert request_head(b"GET", b"/a?b", [HOST, (b"x", b"\xe4 b")], bad=bad_request) == (
        b"GET /a?b HTTP/1.1\r\nhost: a.example\r\nx: \xe4 b\r\n\r\n"
    )
    assert response_head(404, b"Not Found", [], bad=bad_response) == (
        b"HTTP/1.1 404 Not Found\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x", b"a\r\nauthorization: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x: y\r\nz", b"a"),
        (b"x y", b"a"),
        (b"x:", b"a"),
        (b"", b"a"),
    ],
)
def test_a_header_cannot_become_two(name: bytes, value: bytes) -> None:
    """A secret that is put in on the way may hold whatever it was stored with."""
    assert request_head(b"GET", b"/", [HOST, (b"x", b"a")], bad=bad_request)
    with pytest.raises(BadMessage):
        request_head(b"GET", b"/", [HOST, (name, value)], bad=bad_request)
    with pytest.raises(BadMessage):
        response_head(200, b"OK", [(name, value)], bad=bad_response)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"GET /x", b"/"),
        (b"", b"/"),
        (b"GET", b""),
        (b"GET", b"/ HTTP/1.1\r\nx: y"),
        (b"G\n", b"/"),
    ],
)
def test_a_first_line_cannot_become_two(method: bytes, target: bytes) -> None:
    with pytest.raises(BadMessage):
        request_head(method, target, [HOST], bad=bad_request)
    with pytest.raises(BadMessage):
        response_head(200, b"OK\r\nx: y", [], bad=bad_response)


def test_bodies_are_written_as_their_head_says() -> None:
    chunked = Body(BodyEnd.CHUNKED, bad=bad_request)
    told = [chunked.piece(b"x" * 16), chunked.piece(b""), chunked.end()]
    assert told == [b"10\r\n" + b"x" * 16 + b"\r\n", b"", b"0\r\n\r\n"]
    counted = Body(3, bad=bad_request)
    assert [counted.piece(b"ab"), counted.piece(b"c"), counted.end()] == [b"ab", b"c", b""]
    until_closed = Body(BodyEnd.CLOSE, bad=bad_request)
    assert [until_closed.piece(b"ab"), until_closed.end()] == [b"ab", b""]


def test_a_body_that_does_not_fit_is_refused() -> None:
    counted = Body(3, bad=bad_response)
    counted.piece(b"ab")
    with pytest.raises(BadMessage):
        counted.end()
    with pytest.raises(BadMessage):
        counted.piece(b"cd")
    ended = Body(BodyEnd.CHUNKED, bad=bad_response)
    ended.end()
    for timeout_error in (lambda: ended.piece(b"x"), ended.end):
        with pytest.raises(BadMessage):
            timeout_error()


@pytest.mark.parametrize(
    ("asked", "status", "headers", "written"),
    [
        # Without a length: in chunks for a new client, until the end of the connection for an old one.
        ("GET / HTTP/1.1", 200, [], b"transfer-encoding: chunked\r\n"),
        ("GET / HTTP/1.0", 200, [], b"connection: close\r\n"),
        ("GET / HTTP/1.1", 200, [(b"content-length", b"0")], b"content-length: 0\r\n"),
        ("HEAD / HTTP/1.1", 200, [(b"content-length", b"9")], b"content-length: 9\r\n"),
        ("GET / HTTP/1.1", 304, [], b""),
    ],
)
def test_an_answer_is_framed_for_who_asked(
    asked: str, status: int, headers: list[tuple[bytes, bytes]], written: bytes
) -> None:
    codec = Http1ServerCodec()
    codec.feed(f"{asked}\r\nHost: a.example\r\n\r\n".encode())
    expected = b"HTTP/1.1 %d \r\n%b\r\n" % (status, written)
    assert codec.send_head(status, headers) == expected


def test_a_client_that_wants_to_close_is_told_so() -> None:
    codec = Http1ServerCodec()
    codec.feed(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Close\r\n\r\n")
    events = [codec.next_event() for _ in range(2)]
    sent = codec.send_head(204, []) + codec.send_end()
    assert (len(events), sent) == (2, b"HTTP/1.1 204 \r\nconnection: close\r\n\r\n")
    assert not codec.next_cycle()


def test_nothing_is_answered_before_it_is_asked_or_twice() -> None:
    codec = Http1ServerCodec()
    with pytest.raises(BadMessage):
        codec.send_head(200, [])
    with pytest.raises(BadMessage):
        codec.send_data(b"x")
    codec.feed(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    codec.send_head(204, [])
    with pytest.raises(BadMessage):
        codec.send_head(204, [])
