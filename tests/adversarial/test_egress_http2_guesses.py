"""Guesses at secrets whose answer somebody tries to learn without being counted, and echoes.

Code inside and the server that it may reach work together in all of these.
"""

from __future__ import annotations

import gzip
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue

import h2.events
import pytest

from http2 import Got, Reply, ServerSide, told
from unit.egress.loopback import WAIT_S, Cell, House, Known, head_of
from unit.egress.loopback import house as a_house
from unit.egress.proxy.test_h2_proxy import (
    HOST,
    PLACEHOLDER,
    VALUE,
    Outside,
    opened,
    secret,
    tls,
)

pytestmark = pytest.mark.only_on("cold", reason="the proxy is one and the same on both")

RIGHT = b"hunter2-correct-horse"
WRONG = b"hunter2-another-horse"
LIMIT = 5


@pytest.fixture
def house() -> Iterator[House]:
    with a_house() as found:
        yield found


@pytest.fixture
def outside(house: House) -> Outside:
    return Outside(house)


def guesser(house: House, outside: Outside, port: int) -> Cell:
    known = Known(PASSWORD=RIGHT)
    return house.cell(f"GET,POST {HOST}:{port}/v1", upstream_tls=outside.trust, known=known)


def leaks(house: House) -> list[str]:
    return [body["secret"] for body in house.record.of("leak-refused")]


class Early(ServerSide):
    """Answers each request at its head, and tells what becomes of its body."""

    verdicts: Queue[str]

    def begun(self, got: Got) -> None:
        self.answer(got.stream_id, Reply(body=b"x"))

    def ended(self, got: Got) -> None:
        self.verdicts.put(f"whole: {got.body.decode()}")

    def on(self, event: h2.events.Event) -> None:
        super().on(event)
        if isinstance(event, h2.events.StreamReset):
            self.verdicts.put("cut")


@pytest.mark.requirement("NET-5")
def test_guess_counts_although_its_answer_came_before(house: House, outside: Outside) -> None:
    verdicts: Queue[str] = Queue()

    def talk(sock: ssl.SSLSocket) -> None:
        side = Early(sock, told, [])
        side.verdicts = verdicts
        side.run()

    server = outside.server(talk)  # type: ignore[arg-type]  # with TLS
    # The client has no room for an answer's body, so that each answer waits for the client.
    client = opened(house, guesser(house, outside, server.port), server.port, window=0)

    def guess(value: bytes) -> tuple[str, int]:
        stream = client.begin(client.head("/v1", method="POST"), b"begin ", is_end=False)
        while not client.answers[stream].status:
            client.read()
        status = client.answers[stream].status
        if status != 200:
            return "", status
        client.more(stream, value, is_end=True)
        verdict = verdicts.get(timeout=WAIT_S)
        client.h2.increment_flow_control_window(10, stream)
        client.flush()
        client.answer(stream)
        return verdict, status

    # A wrong one goes through whole, so what cuts the others is that they are right.
    assert guess(WRONG) == (f"whole: begin {WRONG.decode()}", 200)
    assert leaks(house) == []
    for _ in range(LIMIT):
        assert guess(RIGHT) == ("cut", 200)
    assert guess(RIGHT) == guess(WRONG) == ("", 403)
    assert leaks(house) == ["PASSWORD"] * LIMIT
    assert verdicts.empty()


@pytest.mark.requirement("NET-5")
def test_guess_by_http_1_counts_although_nobody_reads_its_answer(
    house: House, outside: Outside
) -> None:
    stuck: Queue[None] = Queue()
    verdicts: Queue[str] = Queue()

    def talk(sock: ssl.SSLSocket) -> None:
        if not head_of(sock):
            return
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        sock.settimeout(0.1)
        with suppress(TimeoutError):
            while True:  # until nothing fits into any of the sockets on the way
                sock.sendall(bytes(1 << 20))
        stuck.put(None)
        sock.settimeout(WAIT_S)
        came = b""
        with suppress(OSError):
            while not came.endswith(b"z") and (piece := sock.recv(65536)):
                came += piece
        verdicts.put("whole" if came.endswith(b"z") else "cut")

    server = outside.server(talk, protocol="http/1.1")  # type: ignore[arg-type]  # with TLS
    cell = guesser(house, outside, server.port)

    def guess(value: bytes) -> str:
        with tls(cell, server.port, "http/1.1") as sock:
            sock.settimeout(WAIT_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            body = value + b"z" * 600
            head = f"POST /v1 HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n"
            sock.sendall(f"{head}Content-Length: {400 + len(body)}\r\n\r\n".encode() + b"b" * 400)
            stuck.get(timeout=WAIT_S)
            sock.sendall(body)
            return verdicts.get(timeout=WAIT_S)

    assert guess(WRONG) == "whole"
    assert leaks(house) == []
    for _ in range(LIMIT):
        assert guess(RIGHT) == "cut"
    with pytest.raises(AssertionError, match="CW-LEAK-LIMIT"):
        cell.tunnel(HOST, server.port)
    assert leaks(house) == ["PASSWORD"] * LIMIT


class Waiting(ServerSide):
    """Tells of each head that came."""

    heads: Queue[int]

    def begun(self, got: Got) -> None:
        self.heads.put(got.stream_id)


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("way", ["in a body that goes on", "packed"])
@pytest.mark.parametrize("value", [RIGHT, WRONG])
def test_of_many_guesses_at_once_no_more_are_answered(
    house: House, outside: Outside, way: str, value: bytes
) -> None:
    count = 30
    heads: Queue[int] = Queue()

    def talk(sock: ssl.SSLSocket) -> None:
        side = Waiting(sock, told, [])
        side.heads = heads
        side.run()

    server = outside.server(talk)  # type: ignore[arg-type]  # with TLS
    client = opened(house, guesser(house, outside, server.port), server.port)
    if way == "packed":
        head = client.head("/v1", (b"content-encoding", b"gzip"), method="POST")
        packed = gzip.compress(b"a" * (64 * 1024 * 3) + value)
        streams = [client.begin(head, packed) for _ in range(count)]
    else:
        head = client.head("/v1", method="POST")
        streams = [client.begin(head, b"begin ", is_end=False) for _ in range(count)]
        for _ in range(count):
            heads.get(timeout=WAIT_S)
        for stream in streams:
            client.h2.send_data(stream, value, end_stream=True)
        client.flush()
    answers = [client.answer(stream) for stream in streams]
    found = Counter(200 if each.status == 200 else each.refusal for each in answers)
    if value == WRONG:
        assert found == {200: count}
        assert leaks(house) == []
    else:
        assert found == {(403, "CW-LEAK"): LIMIT, (403, "CW-LEAK-LIMIT"): count - LIMIT}
        assert leaks(house) == ["PASSWORD"] * LIMIT


class Showing(ServerSide):
    """Shows the secret in a body, whatever status the path names."""

    def ended(self, got: Got) -> None:
        status, _, body = (got[":path"] or b"").removeprefix(b"/v1/").partition(b"/")
        self.h2.send_headers(got.stream_id, [(b":status", status)], end_stream=not body)
        if body:
            shown = b"you said " + (got["authorization"] or b"")
            self.h2.send_data(got.stream_id, shown, end_stream=True)


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("status", [204, 304])
def test_secret_does_not_come_back_in_a_body_that_cannot_be(
    house: House, outside: Outside, status: int
) -> None:
    server = outside.server(lambda sock: Showing(sock, told, []).run())
    cell = house.cell(
        f"{HOST}:{server.port}",
        upstream_tls=outside.trust,
        secrets=[secret(server.port, place="header", name="authorization")],
        known=Known(TOKEN=VALUE),
    )
    client = opened(house, cell, server.port)
    said = b"authorization", b"Bearer " + PLACEHOLDER.encode()
    usual = client.ask("/v1/200/body", said)
    assert (usual.status, usual.body) == (200, b"you said " + said[1])
    empty = client.ask(f"/v1/{status}/", said)
    assert (empty.status, empty.body, empty.is_whole) == (status, b"", True)
    assert cell.network.take_findings() == ()
    hidden = client.ask(f"/v1/{status}/body", said)
    assert (hidden.status, hidden.body, hidden.is_whole) == (status, b"", False)
    assert hidden.reset is not None
    assert [finding.message.partition("(")[2][:15] for finding in cell.network.take_findings()] == [
        "CW-BAD-RESPONSE"
    ]
