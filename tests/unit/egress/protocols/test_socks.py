"""SOCKS5 from the server's side: one way in, and the right answer for everything else."""

from __future__ import annotations

import pytest

from cellwall.egress.protocols.socks import (
    ADDRESS_TYPE_NOT_SUPPORTED,
    COMMAND_NOT_SUPPORTED,
    FAILED,
    NOT_ALLOWED,
    OK,
    Handshake,
    SocksRefused,
    reply,
)

pytestmark = pytest.mark.requirement("NET-2")

GREETING = b"\x05\x01\x00"
WELCOME = b"\x05\x00"


def domain(name: bytes, port: int = 443, *, command: int = 1, reserved: int = 0) -> bytes:
    head = bytes([5, command, reserved, 3, len(name)])
    return head + name + port.to_bytes(2, "big")


GOOD = domain(b"api.example.com")


def refusal_of(request: bytes) -> SocksRefused:
    handshake = Handshake()
    assert handshake.feed(GREETING) == [WELCOME]
    with pytest.raises(SocksRefused) as refused:
        handshake.feed(request)
    assert handshake.target is None
    with pytest.raises(SocksRefused):
        handshake.feed(GOOD)
    return refused.value


@pytest.mark.parametrize(
    ("request_bytes", "target"),
    [
        (GOOD, ("api.example.com", 443)),
        (domain(b"[::1]"), ("[::1]", 443)),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", ("127.0.0.1", 80)),
        (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\xff\xff", ("[::1]", 65535)),
        (
            b"\x05\x01\x00\x04" + bytes(10) + b"\xff\xff\xa9\xfe\xa9\xfe\x00\x50",
            ("[::ffff:a9fe:a9fe]", 80),
        ),
    ],
)
def test_connect_names_its_target(request_bytes: bytes, target: tuple[str, int]) -> None:
    handshake = Handshake()
    assert handshake.feed(GREETING) == [WELCOME]
    assert handshake.feed(request_bytes) == []
    assert handshake.target is not None
    host, port = handshake.target
    assert (host.replace("::ffff:169.254.169.254", "::ffff:a9fe:a9fe"), port) == target
    assert handshake.rest == b""


def test_bytes_may_come_one_by_one() -> None:
    handshake = Handshake()
    sent = [piece for byte in GREETING + GOOD for piece in handshake.feed(bytes([byte]))]
    assert (sent, handshake.target) == ([WELCOME], ("api.example.com", 443))


def test_everything_may_come_at_once_and_the_rest_is_kept() -> None:
    handshake = Handshake()
    assert handshake.feed(GREETING + GOOD + b"hello") == [WELCOME]
    assert handshake.feed(b" there") == []
    assert (handshake.target, handshake.rest) == (("api.example.com", 443), b"hello there")


def test_a_client_that_could_also_log_in_need_not() -> None:
    assert Handshake().feed(b"\x05\x03\x01\x02\x00") == [WELCOME]


@pytest.mark.parametrize("greeting", [b"\x05\x01\x02", b"\x05\x00", b"\x05\x02\x01\xff"])
def test_a_client_that_insists_on_a_login_is_told_so(greeting: bytes) -> None:
    with pytest.raises(SocksRefused) as refused:
        Handshake().feed(greeting)
    assert (refused.value.code, refused.value.answer) == ("CW-SOCKS-LOGIN", b"\x05\xff")


@pytest.mark.parametrize("greeting", [b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b"G", b"\x16"])
def test_another_version_gets_no_answer(greeting: bytes) -> None:
    with pytest.raises(SocksRefused) as refused:
        Handshake().feed(greeting)
    assert (refused.value.code, refused.value.answer) == ("CW-SOCKS", b"")


REFUSED = {
    "bind": (domain(b"api.example.com", command=2), "CW-SOCKS-COMMAND", COMMAND_NOT_SUPPORTED),
    "udp": (domain(b"api.example.com", command=3), "CW-SOCKS-COMMAND", COMMAND_NOT_SUPPORTED),
    "bind, at once": (b"\x05\x02", "CW-SOCKS-COMMAND", COMMAND_NOT_SUPPORTED),
    "unknown command": (b"\x05\x09\x00\x03", "CW-SOCKS-COMMAND", COMMAND_NOT_SUPPORTED),
    "unknown address": (b"\x05\x01\x00\x02", "CW-SOCKS-ADDRESS", ADDRESS_TYPE_NOT_SUPPORTED),
    "reserved byte": (domain(b"api.example.com", reserved=1), "CW-SOCKS", FAILED),
    "version": (b"\x04" + GOOD[1:], "CW-SOCKS", FAILED),
    "empty name": (domain(b""), "CW-SOCKS", FAILED),
    "NUL": (domain(b"evil.example.net\0.example.com"), "CW-SOCKS", FAILED),
    "line break": (domain(b"api.example.com\r\n"), "CW-SOCKS", FAILED),
    "space": (domain(b"api.example.com "), "CW-SOCKS", FAILED),
    "not ASCII": (domain("ä.example.com".encode()), "CW-SOCKS", FAILED),
    "port 0": (domain(b"api.example.com", 0), "CW-SOCKS", FAILED),
}


@pytest.mark.parametrize(("request_bytes", "code", "answer"), REFUSED.values(), ids=REFUSED.keys())
def test_other_requests_are_refused_by_the_right_code(
    request_bytes: bytes, code: str, answer: int
) -> None:
    refusal = refusal_of(request_bytes)
    assert (refusal.code, refusal.answer) == (code, reply(answer))
    assert refusal.hint


def test_a_refusal_of_what_came_at_once_is_sent_behind_the_welcome() -> None:
    with pytest.raises(SocksRefused) as refused:
        Handshake().feed(GREETING + domain(b"x", command=2))
    assert refused.value.answer == WELCOME + reply(COMMAND_NOT_SUPPORTED)


def test_a_reply_tells_nothing_about_us() -> None:
    assert reply(OK) == b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    assert reply(NOT_ALLOWED) == b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"
