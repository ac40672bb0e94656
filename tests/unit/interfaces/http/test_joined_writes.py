"""Writes of one turn of the event loop leave together, in order, and none is lost."""

from __future__ import annotations

import asyncio
import socket

from cellwall.interfaces.http.joined_writes import MAX_JOINED_BYTES, JoinedWrites


class CountedTransport:
    """Counts the writes that reach a real transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def connect() -> tuple[JoinedWrites, CountedTransport, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    counted = CountedTransport(transport)
    return JoinedWrites(counted, loop), counted, theirs  # type: ignore[arg-type]  # stands for one


async def receive_all(line: socket.socket) -> bytes:
    found = b""
    while chunk := await asyncio.get_running_loop().sock_recv(line, 1 << 20):
        found += chunk
    line.close()
    return found


def test_what_is_written_in_one_turn_leaves_at_once_and_in_order():
    async def main() -> None:
        joined, counted, line = await connect()
        joined.write(b"head ")
        joined.writelines([b"body ", b"more "])
        assert counted.writes == []
        await asyncio.sleep(0)
        assert counted.writes == [15]
        joined.write(b"second turn")
        joined.close()  # sends it first
        assert await receive_all(line) == b"head body more second turn"
        assert counted.writes == [15, 11]

    asyncio.run(main())


def test_much_data_does_not_wait_for_the_end_of_the_turn():
    async def main() -> None:
        joined, counted, line = await connect()
        written = 0
        while not counted.writes:
            joined.write(b"x" * 10_000)
            written += 10_000
        assert MAX_JOINED_BYTES < written <= MAX_JOINED_BYTES + 10_000
        joined.write(b"y")
        assert joined.get_write_buffer_size() >= 1  # what is not sent yet counts
        joined.close()
        assert await receive_all(line) == b"x" * written + b"y"

    asyncio.run(main())


def test_an_aborted_connection_sends_nothing_more():
    async def main() -> None:
        joined, counted, line = await connect()
        joined.write(b"too late")
        joined.abort()
        await asyncio.sleep(0)
        assert counted.writes == []
        assert await receive_all(line) == b""

    asyncio.run(main())
