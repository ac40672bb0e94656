"""The second reader, by itself and where it does not agree with the first one."""

from __future__ import annotations

import pytest

from cellwall.egress.protocols.http1_codec import (
    Parser,
    ParserSignal,
    RequestHead,
    ResponseHead,
    Unreadable,
)
from cellwall.egress.protocols.http1_connection import Http1ClientCodec, Http1ServerCodec
from cellwall.egress.protocols.http1_framing import BadMessage

pytestmark = pytest.mark.requirement("NET-2")


def test_requests_are_read_one_after_the_other() -> None:
    parser = Parser(is_response=False)
    assert parser.read(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n12") == [
        RequestHead(b"POST", b"/a", b"1.1", [(b"host", b"x"), (b"content-length", b"2")]),
        b"12",
    ]
    assert parser.is_complete
    parser.begin()
    assert parser.read(b"GET /b HTTP/1.1\r\nHo") == []
    assert not parser.is_complete
    assert parser.read(b"st: x\r\n\r\n") == [RequestHead(b"GET", b"/b", b"1.1", [(b"host", b"x")])]


def test_an_answer_after_one_whose_body_never_came_is_read_anew() -> None:
    parser = Parser(is_response=True)
    head = b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 5\r\n\r\n"
    fields = [(b"x-a", b"b"), (b"content-length", b"5")]
    written = [(b"X-A", b"b"), (b"Content-Length", b"5")]
    read = ResponseHead(200, b"OK", b"1.1", fields, written)
    for _ in range(2):  # as to HEAD
        assert parser.read(head) == [read]
        assert not parser.is_complete
        parser.begin()


def test_interim_answers_are_heads_of_their_own() -> None:
    parser = Parser(is_response=True)
    data = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
    assert [head[0] for head in parser.read(data) if isinstance(head, ResponseHead)] == [103]
    assert not parser.is_complete
    assert len(parser.read(b"HTTP/1.1 204 No\r\n\r\n")) == 1
    assert parser.is_complete


@pytest.mark.parametrize(
    "data", [b"HELLO / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"\r \n"]
)
def test_what_makes_no_sense_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        Parser(is_response=False).read(data)


def test_a_method_that_only_one_of_them_knows_is_refused() -> None:
    control = Http1ServerCodec()
    control.feed(b"PROPFIND / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert isinstance(control.next_event(), RequestHead)
    with pytest.raises(BadMessage):
        Http1ServerCodec().feed(b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    "altered",
    [
        RequestHead(b"PUT", b"/a", b"1.1", [(b"host", b"x")]),
        RequestHead(b"GET", b"/b", b"1.1", [(b"host", b"x")]),
        RequestHead(b"GET", b"/a", b"1.0", [(b"host", b"x")]),
        RequestHead(b"GET", b"/a", b"1.1", [(b"host", b"y")]),
        RequestHead(b"GET", b"/a", b"1.1", []),
        ResponseHead(200, b"", b"1.1", [], []),
    ],
)
def test_a_request_that_is_read_in_two_ways_is_refused(
    altered: RequestHead | ResponseHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    codec = Http1ServerCodec()
    codec.feed(data)
    assert codec.next_event() == RequestHead(b"GET", b"/a", b"1.1", [(b"host", b"x")])
    monkeypatch.setattr(Parser, "_head", lambda *_: altered)
    with pytest.raises(BadMessage):
        Http1ServerCodec().feed(data)


def test_a_body_that_ends_elsewhere_for_the_other_reader_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked() -> Http1ClientCodec:
        codec = Http1ClientCodec()
        codec.send_head(b"GET", b"/", [(b"host", b"x")])
        return codec

    data = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n12"
    control = asked()
    control.feed(data)
    assert [control.next_event() for _ in range(3)][1:] == [b"12", ParserSignal.END]
    monkeypatch.setattr(Parser, "on_message_complete", lambda _: None)
    with pytest.raises(BadMessage):
        asked().feed(data)


def test_a_body_behind_an_upgrade_is_still_the_body() -> None:
    """As curl asks with --http2: the other protocol is not switched to, and nothing is lost."""
    codec = Http1ServerCodec()
    codec.feed(
        b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 3\r\n\r\nabc"
    )
    head, *rest = [codec.next_event() for _ in range(3)]
    assert isinstance(head, RequestHead)
    assert (b"upgrade", b"h2c") in head.headers
    assert rest == [b"abc", ParserSignal.END]
