"""Connections share: what one does costs others a moment, and what it leaves is its own."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from cellwall.egress.limits import FairShare
from cellwall.egress.service import _context
from unit.egress.loopback import (
    WAIT_S,
    House,
    action,
    answer,
    everything,
    get,
    head_of,
    repeat_requests,
    request_of,
)

HOST = "api.example.com"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often somebody else could have had a turn."""
    count: Counter[str] = Counter()
    turn = FairShare.wait_turn

    async def counted(share: FairShare) -> None:
        count["turns"] += 1
        await turn(share)

    monkeypatch.setattr(FairShare, "wait_turn", counted)
    return count


def asked(url: str, *headers: str, method: str = "GET") -> bytes:
    """A request after which the connection stays."""
    return get(url, *headers, method=method).replace(b"Connection: close\r\n", b"")


def taking_chunks(sock: socket.socket) -> None:
    while head_of(sock):
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += sock.recv(65536)
        sock.sendall(answer(b"ok"))


@pytest.mark.requirement("NET-2")
def test_a_body_in_tiny_chunks_is_read_with_turns_for_others(
    house: House, turns: Counter[str]
) -> None:
    server = house.server(taking_chunks, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    url = f"http://{HOST}:{server.port}/"
    with cell.connect() as sock:
        found = []
        for body in (b"fa0\r\n" + b"x" * 4000 + b"\r\n", b"1\r\nx\r\n" * 4000):
            before = turns["turns"]
            head = asked(url, "Transfer-Encoding: chunked", method="POST")
            sock.sendall(head + body + b"0\r\n\r\n")
            assert request_of(sock)[1] == b"ok"
            found.append(turns["turns"] - before)
    plain, tiny = found
    assert plain < 20
    # A turn for each few dozens of pieces; a chunk is three of them.
    assert tiny > 4000 * 3 / 64


@pytest.mark.requirement("NET-2")
def test_an_answer_in_tiny_chunks_is_read_with_turns_for_others(
    house: House, turns: Counter[str]
) -> None:
    bodies = [b"fa0\r\n" + b"x" * 4000 + b"\r\n", b"1\r\nx\r\n" * 4000]

    def talk(sock: socket.socket) -> None:
        while head_of(sock):
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            sock.sendall(head + bodies.pop(0) + b"0\r\n\r\n")

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    found = []
    for _ in range(2):
        before = turns["turns"]
        said = cell.ask(get(f"http://{HOST}:{server.port}/"))
        assert said.count(b"x") >= 4000
        found.append(turns["turns"] - before)
    plain, tiny = found
    assert plain < 20
    assert tiny > 4000 * 3 / 64


@pytest.mark.requirement("NET-2")
def test_each_head_that_comes_is_read_in_a_turn(house: House, turns: Counter[str]) -> None:
    """Also one that is refused: it costs its reader more than its sender."""
    cell = house.cell("other.example.com")
    for number in range(5):
        assert b" 403 " in cell.ask(get(f"http://{HOST}/{number}"))[:20]
    assert turns["turns"] >= 5


@pytest.mark.parametrize(("count", "status"), [(60, b" 200 "), (70, b" 400 ")])
def test_a_list_with_too_many_words_is_refused(house: House, count: int, status: bytes) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    words = f"Connection: {', '.join(['x-a'] * count)}, close"
    url = f"http://{HOST}:{server.port}/"
    said = cell.ask(get(url, words).replace(b"Connection: close\r\n", b"", 1))
    assert status in said.partition(b"\r\n")[0]


@pytest.mark.requirement("AUD-1")
def test_a_connection_of_one_action_is_not_used_by_the_next(house: House) -> None:
    """That would reach out with nothing on record."""
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    url = f"http://{HOST}:{server.port}"
    later = _context(action(f"{HOST}:{server.port}"))
    with cell.connect() as sock:
        sock.sendall(asked(f"{url}/one"))
        request_of(sock)
        cell.network.renew(later, ())
        sock.sendall(asked(f"{url}/two"))
        request_of(sock)
    with cell.connect() as sock:
        sock.sendall(asked(f"{url}/three"))
        request_of(sock)
    cell.network.end()
    opened = [
        who.action_id == later.action_id
        for body, who in zip(house.record.bodies, house.record.travellers, strict=True)
        if body["event"] == "opened"
    ]
    assert opened == [False, True]
    assert sorted(body["requests"] for body in house.record.of("closed")) == [1, 2]


LARGE = b"z" * 1_500_000


@pytest.mark.parametrize(
    "ahead", [b"", b"\r\n", b"junk\x00", b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_a_bad_request_behind_a_good_one_does_not_cut_its_answer(
    house: House, ahead: bytes
) -> None:
    def talk(sock: socket.socket) -> None:
        while head_of(sock):
            sock.sendall(answer(LARGE))

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    with cell.connect() as sock:
        sock.sendall(asked(f"http://{HOST}:{server.port}/") + ahead)
        assert request_of(sock)[1] == LARGE
        if ahead:
            assert everything(sock).startswith(b"HTTP/1.1 400 ")


def test_an_answer_that_comes_before_the_whole_request_arrives(house: House) -> None:
    gone = threading.Event()

    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE)
        gone.wait(WAIT_S)

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    with cell.connect() as sock:
        sock.sendall(
            asked(f"http://{HOST}:{server.port}/", "Content-Length: 3000000", method="POST")
        )
        for _ in range(30):
            sock.sendall(b"x" * 100_000)
        assert request_of(sock)[1] == LARGE
    gone.set()


@pytest.mark.parametrize("header", [b"", b"Proxy-Connection: close\r\n"])
def test_a_header_that_only_one_reader_believes_ends_nothing(house: House, header: bytes) -> None:
    def talk(sock: socket.socket) -> None:
        while head_of(sock):
            sock.sendall(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nok" % header)

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    with cell.connect() as sock:
        for _ in range(3):
            sock.sendall(asked(f"http://{HOST}:{server.port}/"))
            assert request_of(sock)[1] == b"ok"
    assert server.connections == 1
