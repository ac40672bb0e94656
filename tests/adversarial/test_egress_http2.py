"""HTTP/2 that means two things, floods its reader or never ends, from inside and from a server.

Each attack goes by a connection by which a good request went first: what refuses it is what it is.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hpack import Encoder

from cellwall.egress.proxy.certificate_authority import Authority
from http2 import Client, Got, Reply, ServerSide, frame, told
from unit.egress.loopback import WAIT_S, Cell, House, Server
from unit.egress.loopback import house as a_house

pytestmark = pytest.mark.only_on("cold", reason="the proxy is one and the same on both")

HOST = "api.example.com"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, MORE = range(10)
END_STREAM, END_HEADERS = 1, 4


@dataclass
class World:
    """One server that tells what it got, one cell that may send GET and POST below /v1 to it."""

    house: House
    trust: ssl.SSLContext
    authority: Authority
    seen: list[Got] = field(default_factory=list)
    server: Server | None = None
    cell: Cell | None = None
    kept: Client | None = None
    """A connection that went well so far."""

    def client(self, cell: Cell, port: int, *, window: int | None = None) -> Client:
        context = cell.trust()
        context.set_alpn_protocols(["h2"])
        sock = context.wrap_socket(cell.tunnel(HOST, port), server_hostname=HOST)
        self.house.stack.callback(sock.close)
        assert sock.selected_alpn_protocol() == "h2"
        return Client(sock, f"{HOST}:{port}", window=window)

    def usual(self) -> Client:
        """A connection by which a request has gone and come back."""
        assert self.cell is not None
        assert self.server is not None
        client = self.kept
        if client is None or client.goodbye is not None or client.is_over:
            client = self.kept = self.client(self.cell, self.server.port)
        assert client.ask("/v1/good").told["path"] == "/v1/good"
        self.seen.clear()
        self.refused()
        return client

    def refused(self, cell: Cell | None = None) -> list[str]:
        """The codes of what was refused since this was asked last."""
        cell = cell or self.cell
        assert cell is not None
        texts = [finding.message for finding in cell.network.take_findings()]
        return [text.partition("(")[2].partition(")")[0] for text in texts]

    def serving(self, talk: Callable[[ssl.SSLSocket], None], **settings: Any) -> tuple[Cell, int]:
        """Another server and another cell."""
        context = self.authority.context_for(HOST, "h2")
        server = self.house.server(talk, HOST, tls=context)  # type: ignore[arg-type]  # with TLS
        rule = f"GET,POST {HOST}:{server.port}/v1"
        return self.house.cell(rule, upstream_tls=self.trust, **settings), server.port


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    authority = Authority()
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    with a_house() as house:
        world = World(house, trust, authority)
        world.server = house.server(
            lambda sock: ServerSide(sock, told, world.seen).run(),
            HOST,
            tls=authority.context_for(HOST, "h2"),
        )
        world.cell = house.cell(f"GET,POST {HOST}:{world.server.port}/v1", upstream_tls=trust)
        yield world


def changed(head: list[tuple[bytes, bytes]], **values: bytes | None) -> list[tuple[bytes, bytes]]:
    """With other pseudo-headers; None takes one away."""
    found = [(name, values.get(name[1:].decode(), value)) for name, value in head]
    return [(name, value) for name, value in found if value is not None]


Head = list[tuple[bytes, bytes]]
HEADS: dict[str, Callable[[Head], Head]] = {
    "two methods": lambda head: [(b":method", b"GET"), *head],
    "two authorities": lambda head: [*head, (b":authority", b"evil.example.net")],
    "pseudo-header behind others": lambda head: [(b"x-a", b"1"), *head],
    "pseudo-header of its own": lambda head: [*head, (b":admin", b"1")],
    "status": lambda head: [*head, (b":status", b"200")],
    "no path": lambda head: changed(head, path=None),
    "no authority": lambda head: changed(head, authority=None),
    "no authority but Host": lambda head: [*changed(head, authority=None), (b"host", HOST.encode())],
    "no scheme": lambda head: changed(head, scheme=None),
    "no method": lambda head: changed(head, method=None),
    "empty path": lambda head: changed(head, path=b""),
    "star": lambda head: changed(head, path=b"*", method=b"OPTIONS"),
    "whole URL": lambda head: changed(head, path=b"https://evil.example.net/v1"),
    "path with a space": lambda head: changed(head, path=b"/v1 HTTP/1.1"),
    "path with a line end": lambda head: changed(head, path=b"/v1\r\nx-admin: 1"),
    "path with a fragment": lambda head: changed(head, path=b"/v1#x"),
    "path beyond ASCII": lambda head: changed(head, path="/v1/ü".encode()),
    "other scheme": lambda head: changed(head, scheme=b"http"),
    "another host": lambda head: changed(head, authority=b"evil.example.net"),
    "user in the authority": lambda head: changed(head, authority=b"a@" + HOST.encode()),
    "another Host": lambda head: [*head, (b"host", b"evil.example.net")],
    "two Hosts": lambda head: [*head, (b"host", head[2][1]), (b"host", head[2][1])],
    "CONNECT": lambda head: changed(head, method=b"CONNECT", path=None, scheme=None),
    "CONNECT with a protocol": lambda head: [
        *changed(head, method=b"CONNECT"), (b":protocol", b"websocket"),
    ],
    "a protocol": lambda head: [*head, (b":protocol", b"websocket")],
    "TRACE": lambda head: changed(head, method=b"TRACE"),
    "method with a space": lambda head: changed(head, method=b"GET /v2"),
    "method that says to mean another": lambda head: [*head, (b"x-http-method-override", b"PUT")],
    "header that names another path": lambda head: [*head, (b"x-original-url", b"/v2")],
    "path of no rule": lambda head: changed(head, path=b"/v2"),
    "dots": lambda head: changed(head, path=b"/v1/../v2"),
    "capitals": lambda head: [*head, (b"X-Admin", b"1")],
    "empty name": lambda head: [*head, (b"", b"1")],
    "name with a colon": lambda head: [*head, (b"x:y", b"1")],
    "name with a line end": lambda head: [*head, (b"x\r\ny", b"1")],
    "name with a space": lambda head: [*head, (b"x y", b"1")],
    "value with a line end": lambda head: [*head, (b"x-a", b"1\r\nx-admin: 1")],
    "value with a line feed": lambda head: [*head, (b"x-a", b"1\nx-admin: 1")],
    "value with NUL": lambda head: [*head, (b"x-a", b"1\x002")],
    "value with another control": lambda head: [*head, (b"x-a", b"1\x1b2")],
    "value after a space": lambda head: [*head, (b"x-a", b" 1")],
    "connection": lambda head: [*head, (b"connection", b"x-a"), (b"x-a", b"1")],
    "keep-alive": lambda head: [*head, (b"keep-alive", b"5")],
    "transfer-encoding": lambda head: [*head, (b"transfer-encoding", b"chunked")],
    "upgrade": lambda head: [*head, (b"upgrade", b"h2c")],
    "te": lambda head: [*head, (b"te", b"gzip")],
    "two lengths": lambda head: [*head, (b"content-length", b"0"), (b"content-length", b"0")],
    "a length with a sign": lambda head: [*head, (b"content-length", b"+0")],
    "a length that is none": lambda head: [*head, (b"content-length", b"5x")],
    "name that imitates": lambda head: [*head, (b"content_length", b"5")],
    "too many": lambda head: [*head, *((b"x-%d" % number, b"1") for number in range(101))],
    "too long": lambda head: [*head, *((b"x-%d" % number, b"x" * 4000) for number in range(9))],
}  # fmt: skip


@pytest.mark.requirement("NET-2", "NET-6")
@pytest.mark.parametrize("case", HEADS)
def test_head_with_more_than_one_meaning_is_refused(world: World, case: str) -> None:
    client = world.usual()
    stream = client.begin(HEADS[case](client.head("/v1/good")))
    answer = client.answer(stream)
    if answer.status:
        assert answer.status in (400, 403)
        assert client.ask("/v1/good").status == 200, "a refusal is its stream's alone"
        world.seen.pop()
    else:
        assert client.goodbye not in (None, 0)
    assert world.seen == []
    assert len(world.refused()) == 1


BODIES = {
    "as long as it says": 4,
    "none at all": 0,
    "shorter than it says": 3,
    "longer than it says": 5,
}


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("case", BODIES)
def test_body_is_as_long_as_its_head_says(world: World, case: str) -> None:
    client = world.usual()
    head = client.head("/v1", (b"content-length", b"4"), method="POST")
    answer = client.answer(client.begin(head, b"x" * BODIES[case]))
    is_good = BODIES[case] == 4
    assert (answer.status == 200, len(world.seen)) == (is_good, int(is_good))


def block(client: Client, path: str = "/v1/good", *more: tuple[bytes, bytes]) -> bytes:
    """Packed by a table of its own, which the other side does not share: nothing is kept in it."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode([*client.head(path), *more], huffman=False))


def _headers(client: Client, number: int, flags: int = END_STREAM | END_HEADERS) -> bytes:
    return frame(HEADERS, flags, 3 + 2 * number, block(client))


def _continued(client: Client) -> bytes:
    start = frame(HEADERS, END_STREAM, 3, block(client))
    return start + frame(MORE, 0, 3, b"") * 40


def _bomb(client: Client) -> bytes:
    encoder = Encoder()
    once = bytes(encoder.encode([*client.head("/v1"), (b"x-bomb", b"x" * 3900)], huffman=False))
    again = bytes(encoder.encode([(b"x-bomb", b"x" * 3900)]))
    return frame(HEADERS, END_STREAM | END_HEADERS, 3, once + again * 4000)


FLOODS: dict[str, Callable[[Client], bytes]] = {
    "pings": lambda _: frame(PING, 0, 0, bytes(8)) * 3000,
    "answers to no ping": lambda _: frame(PING, 1, 0, bytes(8)) * 3000,
    "settings": lambda _: frame(SETTINGS, 0, 0) * 3000,
    "one list of settings": lambda _: frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\x01" * 2000),
    "windows": lambda _: frame(WINDOW, 0, 0, (1).to_bytes(4, "big")) * 3000,
    "priorities": lambda _: frame(PRIORITY, 0, 5, b"\0\0\0\0\x10") * 3000,
    "unknown frames": lambda _: frame(0x42, 0, 0, b"x") * 3000,
    "resets of no stream": lambda _: frame(RESET, 0, 99, bytes(4)) * 3000,
    "empty data": lambda client: _headers(client, 0, END_HEADERS) + frame(DATA, 0, 3) * 3000,
    "padding alone": lambda client: (
        _headers(client, 0, END_HEADERS) + frame(DATA, 8, 3, b"\xff" + bytes(255)) * 3000
    ),
    "tiny data": lambda client: _headers(client, 0, END_HEADERS) + frame(DATA, 0, 3, b"x") * 6000,
    "streams that are reset": lambda client: b"".join(
        _headers(client, number) + frame(RESET, 0, 3 + 2 * number, (8).to_bytes(4, "big"))
        for number in range(1500)
    ),
    "streams reset by a window beyond all": lambda client: b"".join(
        _headers(client, number) + frame(WINDOW, 0, 3 + 2 * number, b"\x7f\xff\xff\xff")
        for number in range(900)
    ),
    "streams reset by a second head": lambda client: b"".join(
        _headers(client, number) * 2 for number in range(1500)
    ),
    "streams reset by data after their end": lambda client: b"".join(
        _headers(client, number) + frame(DATA, END_STREAM, 3 + 2 * number, b"12345678")
        for number in range(1500)
    ),
    "streams at once": lambda client: b"".join(
        _headers(client, number, END_HEADERS) for number in range(1500)
    ),
    "head without an end": lambda client: (
        frame(HEADERS, END_STREAM, 3, block(client))
        + frame(MORE, 0, 3, b"\x00\x01x\x011" * 3000) * 20
    ),
    "head in crumbs": _continued,
    "head that unpacks to much": _bomb,
}


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("case", FLOODS)
def test_flood_ends_the_connection_and_nothing_else(world: World, case: str) -> None:
    """CVE-2023-44487, CVE-2025-8671 (the proxy is made to reset), CVE-2024-27316 and others."""
    neighbour, world.kept = world.usual(), None
    client, world.kept = world.usual(), neighbour
    client.say(FLOODS[case](client))
    assert client.end() not in (None, 0)
    assert world.refused() == ["CW-BAD-REQUEST"]
    # Not each of a thousand streams has become a request outside.
    assert len(world.seen) < 300
    assert neighbour.ask("/v1/good").status == 200


BROKEN: dict[str, Callable[[Client], bytes]] = {
    "frame that is too long": lambda _: frame(DATA, 0, 1, bytes(16_385)),
    "push": lambda client: frame(PUSH, END_HEADERS, 1, (2).to_bytes(4, "big") + block(client)),
    "data of no stream": lambda _: frame(DATA, 0, 101, b"x"),
    "data of the connection": lambda _: frame(DATA, 0, 0, b"x"),
    "even stream": lambda client: frame(HEADERS, END_STREAM | END_HEADERS, 2, block(client)),
    "stream of before": lambda client: frame(HEADERS, END_STREAM | END_HEADERS, 1, block(client)),
    "head that goes on elsewhere": lambda client: (
        frame(HEADERS, 0, 3, block(client)) + frame(MORE, END_HEADERS, 5)
    ),
    "head that is interrupted": lambda client: (
        frame(HEADERS, 0, 3, block(client)) + frame(PING, 0, 0, bytes(8))
    ),
    "more of no head": lambda _: frame(MORE, END_HEADERS, 3, b""),
    "head that cannot be unpacked": lambda _: frame(
        HEADERS, END_STREAM | END_HEADERS, 3, b"\xff" * 9
    ),
    "window of nothing": lambda _: frame(WINDOW, 0, 0, bytes(4)),
    "window beyond all": lambda _: frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2,
    "short goodbye": lambda _: frame(GOAWAY, 0, 0, b"x"),
    "short ping": lambda _: frame(PING, 0, 0, b"x"),
    "settings of a stream": lambda _: frame(SETTINGS, 0, 1),
    "padding beyond its frame": lambda client: (
        frame(HEADERS, END_HEADERS, 3, block(client)) + frame(DATA, 8, 3, b"\xff")
    ),
    "frame size that none may ask for": lambda _: frame(SETTINGS, 0, 0, b"\0\x05\0\0\0\x01"),
}


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("case", BROKEN)
def test_who_breaks_the_protocol_loses_the_connection(world: World, case: str) -> None:
    world.kept = None
    client = world.usual()
    client.say(BROKEN[case](client))
    assert client.end() not in (None, 0)
    assert world.seen == []
    assert world.refused() == ["CW-BAD-REQUEST"]


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("opening", [b"GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(PING, 0, 0, bytes(8)), bytes(64)])  # fmt: skip
def test_connection_begins_as_it_has_to(world: World, opening: bytes) -> None:
    usual = world.usual()
    assert world.cell is not None
    context = world.cell.trust()
    context.set_alpn_protocols(["h2"])
    port = int(usual.authority.partition(":")[2])
    with context.wrap_socket(world.cell.tunnel(HOST, port), server_hostname=HOST) as sock:
        sock.sendall(opening)
        said = b""
        while data := sock.recv(65536):
            said += data
    assert b"HTTP/1.1" not in said
    assert world.seen == []
    assert world.refused() == ["CW-BAD-REQUEST"]


@pytest.mark.requirement("NET-2")
def test_stream_that_takes_nothing_is_ended_and_others_go_on(world: World) -> None:
    talk = lambda sock: ServerSide(sock, lambda _: Reply(body=b"x" * 99), []).run()  # noqa: E731
    cell, port = world.serving(talk, idle_timeout_s=0.5)
    client = world.client(cell, port, window=0)
    stalled = client.begin(client.head("/v1"))
    going = client.begin(client.head("/v1"))
    client.h2.increment_flow_control_window(1000, going)
    client.flush()
    assert client.answer(going).body == b"x" * 99
    answer = client.answer(stalled)
    assert (answer.status, answer.body, answer.reset is None) == (200, b"", False)


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("case", ["no request", "half a head", "half a frame"])
def test_slow_client_is_ended(world: World, case: str) -> None:
    talk = lambda sock: ServerSide(sock, told, []).run()  # noqa: E731
    cell, port = world.serving(talk, head_timeout_s=1.0)
    client = world.client(cell, port)
    if case != "no request":
        assert client.ask("/v1").status == 200
        whole = frame(HEADERS, END_STREAM, 3, block(client))
        client.say(whole if case == "half a head" else whole[:20])
    client.end()
    assert world.refused(cell) == ["CW-LATE"]


class Hostile(ServerSide):
    """Answers `/v1/good` as it should, and all else as `attack` says."""

    attack: Callable[[Hostile, int], bytes]

    def ended(self, got: Got) -> None:
        if got[":path"] == b"/v1/good":
            super().ended(got)
        else:
            self.sock.sendall(self.h2.data_to_send() + self.attack(self, got.stream_id))


def packed(*headers: tuple[bytes, bytes]) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(list(headers), huffman=False))


def _ok(stream: int, *more: tuple[bytes, bytes], flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, packed((b":status", b"200"), *more))


ANSWERS: dict[str, Callable[[Hostile, int], bytes]] = {
    "line end in a header": lambda _, stream: _ok(stream, (b"x-a", b"1\r\nx-b: 2")),
    "no status": lambda _, stream: frame(HEADERS, END_HEADERS, stream, packed((b"x-a", b"1"))),
    "switch of protocols": lambda _, stream: frame(
        HEADERS, END_HEADERS, stream, packed((b":status", b"101"))
    ),
    "connection": lambda _, stream: _ok(stream, (b"connection", b"close")),
    "data before its head": lambda _, stream: frame(DATA, END_STREAM, stream, b"x"),
    "longer than it says": lambda _, stream: (
        _ok(stream, (b"content-length", b"1")) + frame(DATA, END_STREAM, stream, b"xx")
    ),
    "shorter than it says": lambda _, stream: (
        _ok(stream, (b"content-length", b"9")) + frame(DATA, END_STREAM, stream, b"x")
    ),
    "nothing though it says": lambda _, stream: _ok(
        stream, (b"content-length", b"9"), flags=END_STREAM | END_HEADERS
    ),
    "push": lambda _, stream: frame(
        PUSH, END_HEADERS, stream, (2).to_bytes(4, "big") + packed((b":method", b"GET"))
    ),
    "interim answers": lambda _, stream: (
        frame(HEADERS, END_HEADERS, stream, packed((b":status", b"103"))) * 40
    ),
    "pings": lambda _, _stream: frame(PING, 0, 0, bytes(8)) * 3000,
    "settings": lambda _, _stream: frame(SETTINGS, 0, 0) * 3000,
    "empty data": lambda _, stream: _ok(stream) + frame(DATA, 0, stream) * 3000,
    "head without an end": lambda _, stream: _ok(stream, flags=0) + frame(MORE, 0, stream) * 40,
    "head that is too long": lambda _, stream: (
        frame(HEADERS, 0, stream, packed((b":status", b"200")))
        + frame(MORE, 0, stream, b"\x00\x01x\x011" * 3000) * 6
    ),
    "more than its window": lambda _, stream: (
        _ok(stream) + frame(DATA, 0, stream, bytes(16_384)) * 320
    ),
    "pseudo-header in trailers": lambda _, stream: (
        _ok(stream) + frame(HEADERS, END_STREAM | END_HEADERS, stream, packed((b":status", b"200")))
    ),
}


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("case", ANSWERS)
def test_server_that_breaks_the_protocol_is_not_passed_on(world: World, case: str) -> None:
    sides: list[Hostile] = []

    def talk(sock: ssl.SSLSocket) -> None:
        side = Hostile(sock, told, [])
        side.attack = ANSWERS[case]
        sides.append(side)
        side.run()

    cell, port = world.serving(talk, idle_timeout_s=WAIT_S)
    client = world.client(cell, port, window=0 if case == "more than its window" else None)
    if case != "more than its window":
        assert client.ask("/v1/good").status == 200
    answer = client.answer(client.begin(client.head("/v1/bad")))
    if answer.status not in (0, 200):
        assert answer.refusal == (502, "CW-BAD-RESPONSE")
    assert not answer.is_whole or answer.status == 502
    assert client.pushes == 0
    assert (b"x-b", b"2") not in answer.headers
    assert world.refused(cell) == ["CW-BAD-RESPONSE"]


def test_events_of_many_threads_are_no_matter(world: World) -> None:
    """Several connections at once, each with all the streams it may have."""
    found: list[int] = []

    def work() -> None:
        assert world.cell is not None
        assert world.server is not None
        client = world.client(world.cell, world.server.port)
        streams = [client.begin(client.head("/v1")) for _ in range(100)]
        found.extend(client.answer(stream).status for stream in streams)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [200] * 300
