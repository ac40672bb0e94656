"""The bytes of one HTTP/2 connection: what is sent together, and what does not wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RequestReceived
from hpack.huffman import HuffmanEncoder

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.h2_frames import GoAway
from cellwall.egress.proxy import h2_connection
from cellwall.egress.proxy.h2_connection import Http2Connection
from cellwall.egress.proxy.stream_memory import StreamMemory

HEAD = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a.example")]
REQUESTS = 20


class Peer:
    """A byte stream whose other end is the test."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.sent: list[bytes] = []

    async def recv(self, until: float) -> bytes:
        del until
        return self.arrived.pop(0) if self.arrived else b""

    async def send(self, data: bytes, until: float) -> None:
        del until
        self.sent.append(data)


class Pair:
    """A client's connection and a server's, as the proxy has them; each turn is the test's."""

    def __init__(self) -> None:
        self.near, self.far = Peer(), Peer()
        self.client = self._connection(self.near, is_client=True)
        self.server = self._connection(self.far, is_client=False)
        self.client.relays_to = self.server.relays_to = (self.client, self.server)
        own = H2Connection(H2Configuration(client_side=True))
        own.initiate_connection()
        for number in range(REQUESTS):
            head = [*HEAD, (b":path", b"/%d" % number)]
            own.send_headers(2 * number + 1, head, end_stream=True)
        self.near.arrived = [own.data_to_send()]

    def _connection(self, peer: Peer, *, is_client: bool) -> Http2Connection:
        return Http2Connection(
            peer,  # type: ignore[arg-type]  # has the two methods of a stream that a connection calls
            is_client=is_client,
            wait_turn=lambda: asyncio.sleep(0),
            idle_timeout_s=5.0,
            memory=StreamMemory(),
            window_bytes=1 << 20,
        )

    async def relay(self, *, more_bytes: int = 0) -> None:
        """Read the client's requests and pass each one on, with that many bytes more."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []

        def handle(event: Event | GoAway) -> None:
            if isinstance(event, RequestReceived):
                more = b"%d" % event.stream_id
                head = [*event.headers, (b"x-more", more.ljust(more_bytes, b"~"))]
                tasks.append(loop.create_task(self.server.open_stream(head, is_end=True)))

        writer = loop.create_task(self.server.write())
        await asyncio.sleep(0)
        self.far.sent.clear()
        assert await self.client.read(loop.time() + 5.0, handle)
        await asyncio.gather(*tasks)
        await self.server.drain()
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


def streams(sent: bytes) -> list[int]:
    """The streams that these bytes open."""
    server = H2Connection(H2Configuration(client_side=False))
    return [e.stream_id for e in server.receive_data(sent) if isinstance(e, RequestReceived)]


@pytest.mark.requirement("NET-6")
def test_requests_that_arrive_together_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2_connection, "_MAX_CORKED_S", 60.0)

    async def run() -> list[bytes]:
        pair = Pair()
        await pair.relay()
        return pair.far.sent

    sent = asyncio.run(run())
    assert streams(b"".join(sent)) == [2 * number + 1 for number in range(REQUESTS)]
    assert len(sent) == 1


@pytest.mark.requirement("NET-6")
def test_requests_do_not_wait_long_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2_connection, "_MAX_CORKED_S", -1.0)

    async def run() -> list[bytes]:
        pair = Pair()
        await pair.relay()
        return pair.far.sent

    assert len(asyncio.run(run())) == REQUESTS


@pytest.mark.requirement("NET-6")
def test_large_requests_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2_connection, "_MAX_CORKED_S", 60.0)

    async def run() -> list[bytes]:
        pair = Pair()
        await pair.relay(more_bytes=2000)
        return pair.far.sent

    sent = asyncio.run(run())
    assert 1 < len(sent) < REQUESTS
    assert max(map(len, sent)) < 24 * 1024


@pytest.mark.requirement("NET-6")
def test_nothing_stays_held_back_after_a_refused_frame() -> None:
    async def run() -> list[bytes]:
        pair = Pair()
        pair.near.arrived[0] += b"\xff\xff\xff" + bytes(6)
        with pytest.raises(EgressRefused):
            await pair.relay()
        pair.server.send_goaway()
        writer = asyncio.create_task(pair.server.write())
        await pair.server.drain()
        writer.cancel()
        return pair.far.sent

    assert asyncio.run(run())


@pytest.mark.requirement("NET-6")
@pytest.mark.parametrize(("limit_s", "sent_early"), [(60.0, 0), (-1.0, 1)])
def test_bytes_are_held_back_by_each_reader_for_a_short_time(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, sent_early: int
) -> None:
    monkeypatch.setattr(h2_connection, "_MAX_CORKED_S", limit_s)

    async def run() -> list[int]:
        pair = Pair()
        writer = asyncio.create_task(pair.server.write())
        await pair.server.drain()
        counts: list[int] = []

        async def count() -> None:
            for _ in range(4):  # the writer has its turns
                await asyncio.sleep(0)
            counts.append(len(pair.far.sent))
            pair.far.sent.clear()

        pair.server.cork()
        pair.server.cork()
        await count()
        await pair.server.open_stream([*HEAD, (b":path", b"/")], is_end=True)
        pair.server.uncork()
        await count()
        pair.server.uncork()
        await count()
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        return counts[1:]

    assert asyncio.run(run()) == [sent_early, 1 - sent_early]


@pytest.mark.requirement("NET-2")
def test_heads_are_sent_without_huffman_coding(monkeypatch: pytest.MonkeyPatch) -> None:
    """hpack's coding of one value takes time that grows with the square of its length."""

    def refuse(_coder: HuffmanEncoder, _text: bytes) -> bytes:
        raise AssertionError("a value was coded")

    async def work() -> bytes:
        pair = Pair()
        monkeypatch.setattr(HuffmanEncoder, "encode", refuse)
        await pair.relay(more_bytes=10_000)
        return b"".join(pair.far.sent)

    sent = asyncio.run(work())
    assert len(streams(sent)) == REQUESTS, "a server reads them"
    assert sent.count(b"~" * 9000) == REQUESTS
