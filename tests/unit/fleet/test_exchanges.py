"""Requests as plain messages between the front and a host (SRV-6)."""

import asyncio

import pytest

from cellwall.fleet.engine import Message, Receive, Scope, Send
from cellwall.fleet.exchanges import HostExchange

pytestmark = pytest.mark.requirement("SRV-6")
WEBSOCKET = {"type": "websocket", "path": "/", "headers": []}
FRAME = {"type": "websocket.receive", "bytes": b"x"}


def test_frames_that_the_application_does_not_take_wait_at_the_front() -> None:
    taken: list[Message] = []

    async def go() -> None:
        may_read = asyncio.Event()

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            await may_read.wait()
            while (message := await receive())["type"] != "websocket.disconnect":
                taken.append(message)
            await send({"type": "websocket.close"})

        exchange = HostExchange(application, dict(WEBSOCKET), b"")

        async def client() -> int:
            for _ in range(1000):
                await exchange.feed(dict(FRAME))
            await exchange.feed({"type": "websocket.disconnect"})
            return 1000

        sending = asyncio.ensure_future(client())
        answers = exchange.answer()
        first = asyncio.ensure_future(anext(answers))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not sending.done()  # most of the frames are not with the host
        assert exchange._incoming.qsize() <= 64
        may_read.set()  # the control: all of them arrive once the application reads
        assert await sending == 1000
        assert (await first)["messages"] == [{"type": "websocket.close"}]
        await answers.aclose()

    asyncio.run(go())
    assert len(taken) == 1000


def test_the_end_of_the_connection_needs_no_room() -> None:
    async def go() -> None:
        async def application(_scope: Scope, _receive: Receive, _send: Send) -> None:
            await asyncio.Event().wait()

        exchange = HostExchange(application, dict(WEBSOCKET), b"")
        for _ in range(64):
            await exchange.feed(dict(FRAME))
        async with asyncio.timeout(5):
            await exchange.feed({"type": "websocket.disconnect"})
        with pytest.raises(TimeoutError):  # the control: a frame waits
            async with asyncio.timeout(0.05):
                await exchange.feed(dict(FRAME))

    asyncio.run(go())
