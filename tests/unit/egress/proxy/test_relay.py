"""Bytes from socket to socket: complete, both ways, bounded, and nothing left open."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.limits import ConnectionSlots, EgressSettings, SessionBudget
from cellwall.egress.proxy.relay import GuardCheck, PipePool, SocketRelay
from cellwall.egress.proxy.streams import PeerClosed
from unit.egress.loopback import WAIT_S, everything, final_bytes

PLENTY = 1 << 50


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Real TCP: what `splice` and resets do differs on other sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname()[:2], timeout=WAIT_S)
        other, _ = listener.accept()
    other.settimeout(WAIT_S)
    return one, other


class Line:
    """A relay between two TCP connections, and the far ends of both."""

    def __init__(
        self, *, guard: GuardCheck | None = None, first_up: bytes = b"", **bounds: Any
    ) -> None:
        self.client, self._inner_client = tcp_pair()
        self.server, self._inner_server = tcp_pair()
        idle_timeout_s = bounds.pop("idle_timeout_s", WAIT_S)
        self._guard_timeout_s = bounds.pop("guard_timeout_s", None)
        most = {"max_upload_bytes": PLENTY, "max_download_bytes": PLENTY, "bytes_per_s": PLENTY}
        self._settings = EgressSettings(idle_timeout_s=idle_timeout_s, **{**most, **bounds})
        self._guard = guard
        self._first_up = first_up
        self._failure: BaseException | None = None
        self.received_bytes = (0, 0)
        self.thread = threading.Thread(target=lambda: asyncio.run(self._relay()))

    async def _relay(self) -> None:
        pipes = PipePool()
        relay = SocketRelay(
            self._inner_client,
            self._inner_server,
            pipes=pipes,
            budget=SessionBudget(self._settings, ConnectionSlots()),
            idle_timeout_s=self._settings.idle_timeout_s,
            first_up=self._first_up,
            guard=self._guard,
            guard_timeout_s=self._guard_timeout_s,
        )
        try:
            await relay.run()
        except (PeerClosed, EgressRefused) as error:
            self._failure = error
        finally:
            self.received_bytes = relay.received_bytes
            self._inner_client.close()
            pipes.close()

    def ended(self) -> BaseException | None:
        """How it ended, once it has."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return self._failure


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    open_lines: list[Line] = []
    yield open_lines
    for line in open_lines:
        line.client.close()
        line.server.close()
        line.ended()


def start(lines: list[Line], **how: Any) -> Line:
    line = Line(**how)
    lines.append(line)
    line.thread.start()
    return line


def send_all(sock: socket.socket, data: bytes) -> threading.Thread:
    def send() -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_bulk_goes_both_ways_at_once_and_arrives_whole(lines: list[Line]) -> None:
    up, down = os.urandom(1 << 20) * 6, os.urandom(1 << 20) * 5
    line = start(lines)
    threads = [send_all(line.client, up), send_all(line.server, down)]
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(everything(line.server)))
    reader.start()
    assert everything(line.client) == down
    for thread in (*threads, reader):
        thread.join(WAIT_S)
    assert received == [up]
    assert line.ended() is None
    assert line.received_bytes == (len(up), len(down))


def test_half_closed_connection_still_carries_the_other_way(lines: list[Line]) -> None:
    line = start(lines, first_up=b"early ")
    line.client.sendall(b"question")
    line.client.shutdown(socket.SHUT_WR)
    assert everything(line.server) == b"early question"
    line.server.sendall(b"answer")
    line.server.close()
    assert everything(line.client) == b"answer"
    assert line.ended() is None
    assert line.received_bytes == (14, 6)


def test_reset_of_one_side_resets_the_other(lines: list[Line]) -> None:
    line = start(lines)
    line.client.sendall(b"x")
    assert line.server.recv(1) == b"x"
    line.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    line.server.close()
    with pytest.raises(ConnectionResetError):
        everything(line.client)
    assert isinstance(line.ended(), PeerClosed)


def test_no_more_than_the_budget_goes_up_or_down(lines: list[Line]) -> None:
    line = start(lines, max_upload_bytes=100_000)
    line.client.setblocking(False)
    sent = 0
    try:
        while sent < 1_000_000:
            sent += line.client.send(bytes(10_000))
    except (BlockingIOError, ConnectionError):
        pass
    line.client.settimeout(WAIT_S)
    assert len(final_bytes(line.server)) <= 100_000
    error = line.ended()
    assert isinstance(error, EgressRefused)
    assert error.code == "CW-NET-LIMIT"
    assert line.received_bytes[0] == 100_000


def test_bandwidth_is_shared_out_over_time(lines: list[Line]) -> None:
    waits: list[float] = []
    now_s = 0.0
    settings = EgressSettings(bytes_per_s=1000)
    budget = SessionBudget(settings, ConnectionSlots(), clock=lambda: now_s)
    for _ in range(4):
        waits.append(budget.spend("up", 500))
        now_s += 0.25
    # The first quarter of a second is free; then a debt grows by what is over the rate.
    assert waits == [0.25, 0.5, 0.75, 1.0]
    assert budget.spend("down", 0) == 0.75
    # The relay waits as long as it is told to, and loses nothing by it.
    line = start(lines, bytes_per_s=2_000_000)
    data = os.urandom(600_000)
    thread = send_all(line.client, data)
    assert everything(line.server) == data
    thread.join(WAIT_S)


def test_relay_in_which_nothing_moves_is_ended(lines: list[Line]) -> None:
    line = start(lines, idle_timeout_s=0.1)
    with pytest.raises(ConnectionResetError):
        everything(line.client)
    error = line.ended()
    assert isinstance(error, EgressRefused)
    assert error.code == "CW-LATE"


def test_guard_sees_everything_before_anything_is_sent(lines: list[Line]) -> None:
    seen: list[bytes] = []

    def guard(data: bytes) -> bool:
        seen.append(data)
        return b"." in data

    line = start(lines, guard=guard)
    line.server.sendall(b"the other way is open")
    assert line.client.recv(100) == b"the other way is open"
    line.client.sendall(b"one")
    line.client.sendall(b" two.")
    line.client.sendall(b" three")
    line.client.shutdown(socket.SHUT_WR)
    assert everything(line.server) == b"one two. three"
    assert seen[-1].startswith(b"one two.")


def test_guard_that_refuses_lets_nothing_through_and_leaves_the_client_to_be_told(
    lines: list[Line],
) -> None:
    def guard(data: bytes) -> bool:
        raise EgressRefused("no", code="CW-SNI")

    line = start(lines, guard=guard)
    line.client.sendall(b"anything")
    assert final_bytes(line.server) == b""
    error = line.ended()
    assert isinstance(error, EgressRefused)
    assert error.code == "CW-SNI"
    # Closed in order by whoever told it, not reset.
    assert everything(line.client) == b""


def test_guard_that_waits_too_long_is_ended_however_often_a_byte_comes(lines: list[Line]) -> None:
    line = start(lines, guard=lambda _data: False, guard_timeout_s=0.2)
    line.client.sendall(b"a")
    while line.thread.is_alive():
        try:
            line.client.sendall(b"a")
        except ConnectionError:
            break
    error = line.ended()
    assert isinstance(error, EgressRefused)
    assert error.code == "CW-LATE"
    assert final_bytes(line.server) == b""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_async(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_cancelled_relay_leaves_no_descriptor_and_no_watch_behind() -> None:
    async def many() -> None:
        before = open_descriptors()
        pipes = PipePool()
        budget = SessionBudget(
            EgressSettings(bytes_per_s=PLENTY, max_upload_bytes=PLENTY), ConnectionSlots()
        )
        for _ in range(3):
            client, inner_client = tcp_pair()
            server, inner_server = tcp_pair()
            relay = SocketRelay(
                inner_client, inner_server, pipes=pipes, budget=budget, idle_timeout_s=9
            )
            task = asyncio.create_task(relay.run())
            client.setblocking(False)
            # Enough for a pipe, and more than the server's side takes: something is under way.
            while relay.received_bytes[0] < 2 << 20:
                try:
                    client.send(bytes(65536))
                except BlockingIOError:
                    server.recv(65536)
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            client.close()
            server.close()
        pipes.close()
        assert open_descriptors() == before

    run_async(many())


@pytest.mark.requirement("NET-2", "NET-5")
def test_inspected_bytes_wait_for_their_inspection_and_keep_their_order() -> None:
    async def one() -> None:
        client, inner_client = tcp_pair()
        server, inner_server = tcp_pair()
        plenty = EgressSettings(bytes_per_s=PLENTY, max_upload_bytes=PLENTY)
        pipes = PipePool()
        relay = SocketRelay(
            inner_client,
            inner_server,
            pipes=pipes,
            budget=SessionBudget(plenty, ConnectionSlots()),
            idle_timeout_s=WAIT_S,
        )
        seen = b""
        asked, go = asyncio.Queue[bytes](), asyncio.Event()

        async def look(data: bytes) -> None:
            nonlocal seen
            asked.put_nowait(data)
            await go.wait()
            seen += data
            if b"refused" in data:
                raise EgressRefused("refused")

        relay.look_at(look)
        task = asyncio.create_task(relay.run())
        sent = os.urandom(3 << 20)
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, sent))
        first = await asked.get()
        server.setblocking(False)
        for _ in range(20):  # turns in which more could be read or sent
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        assert asked.empty()
        go.set()
        server.setblocking(True)
        server.settimeout(WAIT_S)
        came = b""
        while len(came) < len(sent):
            came += await asyncio.to_thread(server.recv, 1 << 20)
        await sending
        assert came == sent == seen
        assert sent.startswith(first)
        client.sendall(b"this is refused")
        with pytest.raises(EgressRefused):
            await task
        assert final_bytes(server) == b""
        client.close()
        server.close()
        pipes.close()

    run_async(one())
