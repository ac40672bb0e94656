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
        assert len(exchange._incoming._messages) <= 64
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
        with pytest.raises(TimeoutError):  # the control: a frame waits
            async with asyncio.timeout(0.05):
                await exchange.feed(dict(FRAME))
        async with asyncio.timeout(5):
            await exchange.feed({"type": "websocket.disconnect"})

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


def test_a_part_of_an_answer_is_small_enough_for_a_slow_client() -> None:
    """A file is read in pieces, each of which must be taken within a time."""

    async def go() -> None:
        piece = bytes(256 * 1024)

        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send(START)
            for _ in range(64):
                await send(body(piece, more=True))
            await send(body(b"", more=False))

        exchange = exchange_of(application, HTTP)
        number, sizes, part = 0, list[int](), {"is_last": False}
        while not part["is_last"]:
            part = await exchange.next_part(number)
            sizes.append(sum(len(each.get("body", b"")) for each in part["messages"]))
            await asyncio.sleep(0)
            number += 1
        assert sum(sizes) == 64 * len(piece)
        assert max(sizes) <= 3 * len(piece)

    asyncio.run(go())


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyError])
def test_an_application_that_fails_ends_its_answer(error: type[BaseException]) -> None:
    async def go() -> None:
        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send(START)
            raise error

        async with asyncio.timeout(5):
            part = await exchange_of(application, HTTP).next_part(0)
        assert part == {"messages": [START], "is_last": True}

    asyncio.run(go())


def test_an_application_is_told_each_time_that_its_client_is_gone() -> None:
    async def go() -> None:
        found: list[str] = []
        is_taken = asyncio.Event()

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            found.extend([(await receive())["type"] for _ in range(3)])
            await send(body(b"", more=False))
            await is_taken.wait()
            for _ in range(100):
                await send(START)  # behind its end: without effect
            found.append((await receive())["type"])

        exchange = exchange_of(application, HTTP)
        await exchange.feed({"type": "http.disconnect"})
        part = await exchange.next_part(0)
        assert part == {"messages": [body(b"", more=False)], "is_last": True}
        is_taken.set()
        while len(found) < 4:
            await asyncio.sleep(0)
        assert found == ["http.request", *["http.disconnect"] * 3]

    asyncio.run(asyncio.wait_for(go(), 5))


def test_a_call_that_was_given_up_before_it_began_is_not_executed() -> None:
    async def go() -> None:
        async def application(_scope: Scope, _receive: Receive, _send: Send) -> None:
            raise AssertionError

        has_ended: list[str] = []
        exchange = exchange_of(application, HTTP, lambda: has_ended.append("ended"))
        exchange.abandon()
        with pytest.raises(RuntimeError, match="left"):
            await exchange.next_part(0)
        assert has_ended == ["ended"]

    asyncio.run(go())
