"""Messages over a real pipe: whole lines in order, whoever is cancelled and whenever the peer reads."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from cellwall.parsing.message_streams import MessageReader, Messages, MessageWriter

pytestmark = pytest.mark.requirement("SRV-7", "INT-1")
PIPE_BYTES = 4096
LONG = "x" * 3 * PIPE_BYTES


class Pipe:
    """A small pipe, and a writer of messages at its end."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.failures: list[OSError] = []

    def writer(self) -> MessageWriter:
        """To be made in an event loop."""
        return MessageWriter(self.put_now, self.put, self.failures.append)

    def put_now(self, data: bytes) -> int:
        try:
            return os.write(self.writing, data)
        except BlockingIOError:
            return 0

    async def put(self, data: bytes) -> None:
        while data:
            if accepted := self.put_now(data):
                data = data[accepted:]
            else:
                await anyio.wait_writable(self.writing)

    async def lines(self, count: int) -> list[str]:
        """The methods of the next messages; each line must be a whole one."""
        data = b""
        while data.count(b"\n") < count:
            await anyio.wait_readable(self.reading)
            data += os.read(self.reading, 1 << 16)
        assert data.endswith(b"\n")
        return [json.loads(line)["method"] for line in data.splitlines()]

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def message(method: str, text: str = "") -> SessionMessage:
    body = JSONRPCNotification(jsonrpc="2.0", method=method, params={"text": text})
    return SessionMessage(body)


def test_a_short_message_needs_no_other_task(pipe: Pipe) -> None:
    async def main() -> list[str]:
        await pipe.writer().send(message("short"))
        return await pipe.lines(1)

    assert anyio.run(main) == ["short"]


def test_many_senders_and_a_slow_peer_get_whole_lines_in_order(pipe: Pipe) -> None:
    names = [f"m{number}" for number in range(40)]

    async def main() -> list[str]:
        writer = pipe.writer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            for number, name in enumerate(names):
                tasks.start_soon(writer.send, message(name, LONG if number % 3 else ""))
            await anyio.wait_all_tasks_blocked()
            found = await pipe.lines(len(names))
            tasks.cancel_scope.cancel()
        return found

    assert anyio.run(main) == names


def test_a_cancelled_sender_leaves_a_whole_line_or_none(pipe: Pipe) -> None:
    async def main() -> list[str]:
        writer = pipe.writer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            async with anyio.create_task_group() as senders:
                for name in ("begun", "waiting"):
                    senders.start_soon(writer.send, message(name, LONG))
                await anyio.wait_all_tasks_blocked()
                senders.cancel_scope.cancel()
            tasks.start_soon(writer.send, message("later", LONG))
            found = await pipe.lines(2)
            tasks.cancel_scope.cancel()
        return found

    assert anyio.run(main) == ["begun", "later"]


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_peer_that_has_gone_is_reported_once_and_fails_every_sender(
    pipe: Pipe, waiting: int
) -> None:
    async def main() -> int:
        writer, refused = pipe.writer(), 0

        async def send() -> None:
            nonlocal refused
            try:
                await writer.send(message("lost", LONG))
            except anyio.BrokenResourceError:
                refused += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            async with anyio.create_task_group() as senders:
                for _ in range(waiting):
                    senders.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                os.close(pipe.reading)
            if not waiting:
                await send()
            with pytest.raises(anyio.ClosedResourceError):
                await writer.send(message("after"))
        return refused

    assert anyio.run(main) == (waiting or 1)
    assert [type(error) for error in pipe.failures] == [BrokenPipeError]


def test_a_reader_goes_on_after_a_break_and_ends_with_its_source() -> None:
    async def source() -> Messages:
        for name in ("first", "second"):
            await anyio.lowlevel.checkpoint()
            yield message(name)

    async def main() -> list[SessionMessage]:
        reader, found = MessageReader(source()), []
        async for each in reader:
            found.append(each)
            break
        async with reader:
            found += [each async for each in reader]
            with pytest.raises(anyio.EndOfStream):
                await reader.receive()
        return found

    assert anyio.run(main) == [message("first"), message("second")]
