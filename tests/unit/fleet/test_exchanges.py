"""Requests as plain messages between the front and a host (SRV-6)."""

import asyncio
from collections.abc import Callable

import pytest

from cellwall.fleet import exchanges
from cellwall.fleet.engine import Application, Message, Receive, Scope, Send
from cellwall.fleet.exchanges import HostExchange

pytestmark = pytest.mark.requirement("SRV-6")
HTTP = {"type": "http", "path": "/", "headers": []}
WEBSOCKET = {"type": "websocket", "path": "/", "headers": []}
FRAME = {"type": "websocket.receive", "bytes": b"x"}


START = {"type": "http.response.start", "status": 200, "headers": []}


def body(content: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def exchange_of(
    application: Application,
    scope: Scope = WEBSOCKET,
    on_end: Callable[[], None] = lambda: None,
) -> HostExchange:
    return HostExchange(application, dict(scope), b"", on_end)


def test_frames_that_the_application_does_not_take_wait_at_the_front() -> None:
    taken: list[Message] = []

    async def go() -> None:
        may_read = asyncio.Event()

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            await may_read.wait()
            while (message := await receive())["type"] != "websocket.disconnect":
                taken.append(message)
            await send({"type": "websocket.close"})

        exchange = exchange_of(application)

        async def client() -> int:
            for _ in range(1000):
                await exchange.feed(dict(FRAME))
            await exchange.feed({"type": "websocket.disconnect"})
            return 1000

        sending = asyncio.ensure_future(client())
        first = asyncio.ensure_future(exchange.next_part(0))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not sending.done()  # most of the frames are not with the host
        assert exchange._incoming.qsize() <= 64
        may_read.set()  # the control: all of them arrive once the application reads
        assert await sending == 1000
        assert (await first)["messages"] == [{"type": "websocket.close"}]

    asyncio.run(go())
    assert len(taken) == 1000


def test_the_end_of_the_connection_needs_no_room() -> None:
    async def go() -> None:
        async def application(_scope: Scope, _receive: Receive, _send: Send) -> None:
            await asyncio.Event().wait()

        exchange = exchange_of(application)
        for _ in range(64):
            await exchange.feed(dict(FRAME))
        async with asyncio.timeout(5):
            await exchange.feed({"type": "websocket.disconnect"})
        with pytest.raises(TimeoutError):  # the control: a frame waits
            async with asyncio.timeout(0.05):
                await exchange.feed(dict(FRAME))

    asyncio.run(go())


def test_an_answer_ends_with_its_last_message_and_the_application_cleans_up_behind_it() -> None:
    done: list[str] = []

    async def go() -> None:
        may_end, has_ended = asyncio.Event(), asyncio.Event()

        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send(START)
            await send(body(b"x", more=False))
            await may_end.wait()
            done.append("cleaned up")
            has_ended.set()

        exchange = exchange_of(application, HTTP, lambda: done.append("answered"))
        part = await exchange.next_part(0)
        assert part == {"messages": [START, body(b"x", more=False)], "is_last": True}
        assert done == ["answered"]
        may_end.set()
        await asyncio.wait_for(has_ended.wait(), 5)

    asyncio.run(go())
    assert done == ["answered", "cleaned up"]


def test_a_long_answer_comes_in_parts_and_each_is_given_once(monkeypatch) -> None:
    monkeypatch.setattr(exchanges, "_SILENT_S", 0.01)

    async def go() -> None:
        may_go_on = asyncio.Event()

        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send(START)
            await may_go_on.wait()
            for _ in range(1000):  # more than the host keeps
                await send(body(b"x", more=True))
            await send(body(b"", more=False))

        exchange = exchange_of(application, HTTP)
        assert await exchange.next_part(0) == {"messages": [START], "is_last": False}
        # The application waits; the front learns that the host is there.
        assert await exchange.next_part(1) == {"messages": [], "is_last": False}
        with pytest.raises(RuntimeError, match="twice"):
            await exchange.next_part(1)
        may_go_on.set()
        number, found, part = 2, list[Message](), {"is_last": False}
        while not part["is_last"]:
            part = await exchange.next_part(number)
            assert len(part["messages"]) <= 65
            found += part["messages"]
            number += 1
        assert found == [*[body(b"x", more=True)] * 1000, body(b"", more=False)]

    asyncio.run(go())


def test_an_answer_that_its_front_asks_no_more_for_ends(monkeypatch) -> None:
    monkeypatch.setattr(exchanges, "_ASKED_WITHIN_S", 0.01)

    async def go() -> None:
        has_ended, is_cancelled = asyncio.Event(), asyncio.Event()

        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            try:
                while True:
                    await send(START)
            except asyncio.CancelledError:
                is_cancelled.set()
                raise

        exchange = exchange_of(application, HTTP, has_ended.set)
        await exchange.next_part(0)
        async with asyncio.timeout(5):
            await has_ended.wait()
            await is_cancelled.wait()

    asyncio.run(go())
