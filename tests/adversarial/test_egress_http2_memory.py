"""Streams that only wait: what they hold in the proxy is bounded for a session (NET-2, LIM-6).

Windows bound bodies; heads have none. The bound is lowered here, so that few streams reach it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from cellwall.egress.proxy import stream_memory
from http2 import Answer, Client, Got, Reply, ServerSide
from unit.egress.loopback import WAIT_S, Cell, House
from unit.egress.loopback import house as a_house
from unit.egress.proxy.test_h2_proxy import HOST, Outside, opened

pytestmark = pytest.mark.only_on("cold", reason="the proxy is one and the same on both")

BOUND = 400 * 1024
LARGE = [(b"x-large-%d" % number, b"x" * 1000) for number in range(20)]
"""In fields of this size, since the clients of the tests use Huffman coding."""
STREAMS = 40
REFUSED_STREAM, CANCEL = 7, 8


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(stream_memory, "_MAX_BYTES", BOUND)
    with a_house() as found:
        yield found


@pytest.fixture
def outside(house: House) -> Outside:
    return Outside(house)


class Waiting(ServerSide):
    """Answers `/v1/wait` when it is told to, and with a large head if it is asked for one."""

    go: Event

    def ended(self, got: Got) -> None:
        if (got[":path"] or b"").startswith(b"/v1/wait") and not self.go.wait(WAIT_S):
            raise AssertionError
        super().ended(got)


def replied(got: Got) -> Reply:
    return Reply(headers=LARGE if got[":path"] == b"/v1/wait?large" else [], body=b"x")


def talk(go: Event) -> Callable[[ssl.SSLSocket], None]:
    def serve(sock: ssl.SSLSocket) -> None:
        side = Waiting(sock, replied, [])
        side.go = go
        side.run()

    return serve


def cells(house: House, outside: Outside, go: Event) -> tuple[Cell, Cell, int]:
    server = outside.server(talk(go))  # type: ignore[arg-type]  # with TLS
    rule = f"GET {HOST}:{server.port}/v1"
    one, other = (house.cell(rule, upstream_tls=outside.trust) for _ in range(2))
    return one, other, server.port


def is_free(cell: Cell) -> bool:
    """Whether the session counts nothing any more."""
    memory, until = cell.network.session.stream_memory, time.monotonic() + WAIT_S
    while memory.held_bytes and time.monotonic() < until:
        time.sleep(0.01)
    return memory.held_bytes == 0


def refused(answers: list[Answer]) -> int:
    return sum(answer.reset == REFUSED_STREAM for answer in answers)


@pytest.mark.requirement("NET-2", "LIM-6")
def test_heads_of_requests_that_wait_are_bounded(house: House, outside: Outside) -> None:
    go = Event()
    cell, neighbour, port = cells(house, outside, go)
    clients = [opened(house, cell, port) for _ in range(2)]
    asked: list[tuple[Client, int]] = []
    for client in clients:
        asked += [(client, client.begin(client.head("/v1/wait", *LARGE))) for _ in range(STREAMS)]
    # By then all heads before them have been read.
    ended = [client.ask("/v1/none", *LARGE) for client in clients]
    assert [answer.reset for answer in ended] == [REFUSED_STREAM] * 2
    assert opened(house, neighbour, port).ask("/v1/free").body == b"x", "a session of its own"
    held = cell.network.session.stream_memory.held_bytes
    assert BOUND - 30_000 < held <= BOUND
    go.set()
    answers = [client.answer(stream) for client, stream in asked]
    served = [answer for answer in answers if answer.is_whole]
    assert 10 < len(served) < 20
    assert refused(answers) == 2 * STREAMS - len(served)
    assert clients[0].ask("/v1/free").body == b"x", "the bytes are given back"
    assert is_free(cell)


@pytest.mark.requirement("NET-2", "LIM-6")
def test_heads_of_responses_that_nobody_takes_are_bounded(house: House, outside: Outside) -> None:
    go = Event()
    cell, _, port = cells(house, outside, go)
    client = opened(house, cell, port, window=0)
    streams = [client.begin(client.head("/v1/wait?large")) for _ in range(20)]
    assert client.ask("/v2/denied").status == 403  # by then all heads before it have been read
    go.set()
    answers = [client.answers[stream] for stream in streams]
    while not all(answer.status for answer in answers):
        client.read()
        assert not client.is_over
    assert {answer.status for answer in answers} == {200, 429}
    assert 5 < sum(answer.status == 200 for answer in answers) < 15
    for stream in streams:
        client.h2.increment_flow_control_window(1000, stream)
    client.flush()
    for stream in streams:
        answer = client.answer(stream)
        assert answer.body == b"x" if answer.status == 200 else answer.refusal[1] == "CW-NET-LIMIT"
    assert is_free(cell)


@pytest.mark.requirement("NET-2", "LIM-6")
def test_clients_that_leave_give_back_what_their_streams_held(
    house: House, outside: Outside
) -> None:
    go = Event()
    cell, _, port = cells(house, outside, go)
    client = opened(house, cell, port)
    for number in range(20):
        stream = client.begin(client.head("/v1/wait", *LARGE))
        if number % 2:
            client.h2.reset_stream(stream, CANCEL)
    client.flush()
    client.ask("/v2/denied")  # by then all heads before it have been read
    assert cell.network.session.stream_memory.held_bytes > BOUND / 2
    client.sock.close()
    go.set()
    assert is_free(cell)
