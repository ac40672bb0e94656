"""HTTP/2 with two sides that do everything at random: no stream gets bytes of another one.

Each path has its own body. The server cuts bodies into frames of any size and order, ends streams
early, resets them before, after and together with their last frames, and adds interim heads and
trailers. The client resets streams, reads with small windows, and asks for what is denied. Random
numbers come from a seed, which a failure shows.
"""

from __future__ import annotations

import hashlib
import random
import select
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import h2.events
import h2.exceptions
import pytest
from h2.errors import ErrorCodes

from http2 import Answer, Client, ServerSide
from unit.egress.loopback import House
from unit.egress.loopback import house as a_house
from unit.egress.proxy.test_h2_proxy import HOST, Outside, opened

pytestmark = pytest.mark.only_on("cold", reason="the proxy is one and the same on both")

REQUESTS = 400
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40)))


def body_of(path: str) -> bytes:
    """The body that belongs to a path alone; up to 70 KB, the size of several frames."""
    seed = hashlib.sha256(path.encode()).digest()
    size = int.from_bytes(seed[:2], "big") + 5000 * (seed[2] % 2)
    return (seed * (size // len(seed) + 1))[:size] if seed[3] % 8 else b""


@dataclass
class Seen:
    """What the servers of one test got and sent."""

    requests: Counter[str] = field(default_factory=Counter)
    uploads: dict[str, bytes] = field(default_factory=dict)
    is_whole: set[str] = field(default_factory=set)
    """Paths whose answer was sent to its end."""


@dataclass
class _Answer:
    stream_id: int
    path: str
    rest: bytes
    has_trailers: bool
    cut_at: int | None
    """Bytes that are left when the stream is reset."""


class ChaosServer(ServerSide):
    """Sends what it likes, when it likes."""

    def __init__(self, sock: socket.socket, seen: Seen, chance: random.Random) -> None:
        super().__init__(sock, lambda _: (_ for _ in ()).throw(AssertionError), [])
        self._all, self._chance = seen, chance
        self._answers: dict[int, _Answer] = {}
        self._bodies: dict[int, tuple[str, bytearray]] = {}

    def run(self) -> None:
        with suppress(OSError, h2.exceptions.ProtocolError, ssl.SSLError):
            self.sock.sendall(self.h2.data_to_send())
            while True:
                is_busy = bool(self._answers)
                if not is_busy or self._is_readable():
                    data = self.sock.recv(65536)
                    if not data:
                        return
                    for event in self.h2.receive_data(data):
                        self.on(event)
                for _ in range(self._chance.randrange(1, 30)):
                    self._step()
                self.sock.sendall(self.h2.data_to_send())

    def _is_readable(self) -> bool:
        assert isinstance(self.sock, ssl.SSLSocket)
        return bool(self.sock.pending() or select.select([self.sock], [], [], 0.002)[0])

    def on(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                path = (dict(event.headers)[b":path"]).decode()
                self._all.requests[path] += 1
                self._bodies[event.stream_id] = path, bytearray()
            case h2.events.DataReceived():
                if event.stream_id in self._bodies:
                    self._bodies[event.stream_id][1].extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                path, sent = self._bodies.pop(event.stream_id)
                self._all.uploads[path] = bytes(sent)
                self._begin(event.stream_id, path)
            case h2.events.StreamReset():
                self._answers.pop(event.stream_id, None)
                self._bodies.pop(event.stream_id, None)

    def _begin(self, stream_id: int, path: str) -> None:
        chance, body = self._chance, body_of(path)
        with suppress(h2.exceptions.ProtocolError):
            if chance.random() < 0.1:
                self.h2.reset_stream(stream_id, chance.choice([1, 2, 7, 8]))
                return
            if chance.random() < 0.1:
                self.h2.send_headers(stream_id, [(b":status", b"103"), (b"link", b"</x>")])
            head = [(b":status", b"200"), (b"x-path", path.encode())]
            if chance.random() < 0.5:
                head.append((b"content-length", str(len(body)).encode()))
            if not body:
                self.h2.send_headers(stream_id, head, end_stream=True)
                self._end(stream_id, path)
                return
            self.h2.send_headers(stream_id, head)
            cut = chance.randrange(len(body)) if chance.random() < 0.15 else None
            self._answers[stream_id] = _Answer(stream_id, path, body, chance.random() < 0.1, cut)

    def _end(self, stream_id: int, path: str) -> None:
        self._all.is_whole.add(path)
        if self._chance.random() < 0.2:  # allowed behind the end, and sent together with it
            with suppress(h2.exceptions.ProtocolError):
                self.h2.reset_stream(stream_id, 0)

    def _step(self) -> None:
        if not self._answers:
            return
        answer = self._chance.choice(list(self._answers.values()))
        stream_id = answer.stream_id
        try:
            room = min(self.h2.local_flow_control_window(stream_id), 16384)
            size = min(room, self._chance.choice([1, 5, 100, 4000, 16384]), len(answer.rest))
            if size:
                padding = self._chance.choice([None, None, 0, 200])
                if padding is not None and size + padding + 1 > room:
                    padding = None
                self.h2.send_data(stream_id, answer.rest[:size], pad_length=padding)
                answer.rest = answer.rest[size:]
            if answer.cut_at is not None and len(answer.rest) <= answer.cut_at:
                self.h2.reset_stream(stream_id, self._chance.choice([2, 8, 11]))
                del self._answers[stream_id]
            elif not answer.rest:
                if answer.has_trailers:
                    self.h2.send_headers(stream_id, [(b"x-check", b"1")], end_stream=True)
                else:
                    self.h2.end_stream(stream_id)
                del self._answers[stream_id]
                self._end(stream_id, answer.path)
        except h2.exceptions.ProtocolError:
            self._answers.pop(stream_id, None)


@pytest.fixture
def house() -> Iterator[House]:
    with a_house() as found:
        yield found


@pytest.mark.requirement("NET-2", "NET-6")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_stream_gets_its_own_bytes_and_no_others(house: House, seed: int) -> None:
    outside, seen, chance = Outside(house), Seen(), random.Random(seed)
    server = outside.server(lambda sock: ChaosServer(sock, seen, random.Random(seed + 1)).run())  # type: ignore[arg-type]  # with TLS
    cell = house.cell(f"GET,POST {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    asked: dict[str, bytes] = {}
    results: Counter[str] = Counter()
    client: Client | None = None
    for number in range(REQUESTS // 20):
        if client is None or client.is_over or client.goodbye is not None:
            window = chance.choice([None, 1000, 20_000])
            client = opened(house, cell, server.port, window=window)
        _round(client, chance, asked, f"{seed}-{number}", results, seen)
    assert client is not None
    assert results["whole"] > REQUESTS // 10, results
    assert min(results["cut"], results["denied"]) > 0, results
    assert max(seen.requests.values()) == 1, "a request arrived twice"
    assert set(seen.requests) <= set(asked)
    assert not [path for path in seen.requests if path.startswith("/v2")]
    for path, body in seen.uploads.items():
        assert body == asked[path], path
    # Another session is served all the while.
    neighbour = house.cell(f"GET {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    other = opened(house, neighbour, server.port)
    for number in range(30):
        path = f"/v1/neighbour-{number}"
        answer = other.answer(other.begin(other.head(path)))
        assert body_of(path).startswith(answer.body)


def _round(
    client: Client,
    chance: random.Random,
    asked: dict[str, bytes],
    name: str,
    results: Counter[str],
    seen: Seen,
) -> None:
    streams: dict[int, str] = {}
    cancelled: set[int] = set()
    for number in range(20):
        folder = "v2" if chance.random() < 0.1 else "v1"
        path = f"/{folder}/{name}-{number}"
        method, body = "GET", b""
        if chance.random() < 0.3:
            method, body = "POST", body_of(f"up {path}")[: chance.choice([0, 10, 3000])]
        asked[path] = body
        streams[client.begin(client.head(path, method=method), body)] = path
        if chance.random() < 0.15:
            stream = chance.choice(list(streams))
            with suppress(h2.exceptions.ProtocolError):
                client.h2.reset_stream(stream, 8)
                cancelled.add(stream)
                client.flush()
        if chance.random() < 0.3:
            client.read()
    for stream, path in streams.items():
        if stream in cancelled:
            continue
        answer = client.answer(stream)
        is_denied = path.startswith("/v2")
        if is_denied:
            _check_denied(client, answer)
            results["denied"] += 1
            continue
        headers = dict(answer.headers)
        if answer.status == 200:
            assert headers[b"x-path"] == path.encode()
            assert body_of(path).startswith(answer.body), path
        if answer.is_whole and answer.status == 200:
            assert answer.body == body_of(path), path
            assert path in seen.is_whole
            results["whole"] += 1
        else:
            results["cut"] += 1


def _check_denied(client: Client, answer: Answer) -> None:
    is_unread = answer.reset == ErrorCodes.REFUSED_STREAM and client.goodbye is not None
    if client.is_over or is_unread:  # the connection ended before this request was judged
        assert answer.status in (0, 403)
        return
    # The body of a refusal has two seconds; on a busy host this client may not read in time.
    is_cut = answer.reset == ErrorCodes.INTERNAL_ERROR and not answer.body
    assert answer.status == 403
    assert (b"x-cellwall-refused", b"CW-NOT-ALLOWED") in answer.headers
    assert is_cut or answer.refusal == (403, "CW-NOT-ALLOWED")
