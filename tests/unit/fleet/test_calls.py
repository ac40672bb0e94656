"""A call of a front to a host ends on both sides, whoever ends it (SRV-6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

pytest.importorskip("ray", reason="Ray (extra fleet, Python 3.11 to 3.13)")
from starlette.responses import StreamingResponse

from cellwall.core.errors import Busy
from cellwall.fleet.bounded_messages import MAX_MESSAGES
from cellwall.fleet.engine import Message, Receive, Scope, Send
from cellwall.fleet.ray_host import RayHost
from cellwall.fleet.request_bodies import RequestBodies
from unit.fleet.local_actors import FIRST, fleet_of, started_host

pytestmark = pytest.mark.requirement("SRV-6")
HTTP = {"type": "http", "method": "GET", "path": "/", "headers": []}
WEBSOCKET = {"type": "websocket", "path": "/", "headers": []}
START = {"type": "http.response.start", "status": 200, "headers": []}
ACCEPT = {"type": "websocket.accept"}
LIMIT_S = 30


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(go())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Client:
    """What a server knows of a connection."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.has_left = asyncio.Event()
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Without effect behind the end of the connection, as in uvicorn."""
        self.got.append(message)


def request(body: bytes = b"") -> Message:
    return {"type": "http.request", "body": body, "more_body": False}


def is_idle(host: RayHost) -> bool:
    return host._exchanges == {}


def test_a_stream_ends_when_its_client_leaves() -> None:
    async def go() -> None:
        has_closed = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x"
                    await asyncio.sleep(0.001)
            finally:
                has_closed.set()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await StreamingResponse(chunks())(scope, receive, send)

        host, client = await started_host(application), Client(request())
        calling = asyncio.ensure_future(
            fleet_of(host).call(FIRST.id, dict(HTTP), client.receive, client.send)
        )
        await until(lambda: len(client.got) > 3)
        assert not calling.done()
        client.has_left.set()
        await calling
        await until(lambda: is_idle(host))
        await host.stop()

    run(go)


def test_an_answer_that_the_front_gives_up_ends_at_its_host() -> None:
    """As where a server says that a WebSocket is gone, or the front ends."""

    async def go() -> None:
        has_ended: list[str] = []

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send(dict(ACCEPT))
            try:
                while True:
                    await send({"type": "websocket.send", "text": "x"})
                    await asyncio.sleep(0)
            finally:
                has_ended.append("application")

        async def lose(message: Message) -> None:
            if message["type"] == "websocket.send":
                raise OSError("the client is gone")

        host = await started_host(application)
        client = Client({"type": "websocket.connect"})
        with pytest.raises(OSError, match="gone"):
            await fleet_of(host).call(FIRST.id, dict(WEBSOCKET), client.receive, lose)
        await until(lambda: is_idle(host) and has_ended == ["application"])
        await host.stop()

    run(go)


def test_frames_that_an_application_never_takes_hold_no_call_of_its_host() -> None:
    """A host handles a bounded number of calls at a time."""

    async def go() -> None:
        feeding: list[asyncio.Future[None]] = []

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send(dict(ACCEPT))
            await until(lambda: bool(feeding))
            await send({"type": "websocket.close", "code": 1000})

        host = await started_host(application)
        feed = host.feed

        async def watched(call_id: str, message: Message) -> None:
            task = asyncio.ensure_future(feed(call_id, dict(message)))
            done, _ = await asyncio.wait({task}, timeout=0.05)
            if not done:
                feeding.append(task)
            await task

        host.feed = watched  # type: ignore[method-assign]
        frames = [{"type": "websocket.receive", "bytes": bytes(1024)} for _ in range(1000)]
        client = Client({"type": "websocket.connect"}, *frames)
        await fleet_of(host).call(FIRST.id, dict(WEBSOCKET), client.receive, client.send)
        assert [each["type"] for each in client.got] == ["websocket.accept", "websocket.close"]
        assert len(feeding) == 1
        await feeding[0]
        await host.stop()

    run(go)


def test_a_body_counts_until_its_host_has_it() -> None:
    async def go() -> None:
        may_end = asyncio.Event()

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send(dict(START))
            while not may_end.is_set():
                await asyncio.sleep(0.001)
            await send({"type": "http.response.body", "body": b""})

        size = 100 * 1024
        bodies = RequestBodies(max_bytes=size, max_total_bytes=size)
        host, client = await started_host(application), Client(request(bytes(size)))
        fleet = fleet_of(host, bodies)
        calling = asyncio.ensure_future(
            fleet.call(FIRST.id, dict(HTTP), client.receive, client.send)
        )
        with pytest.raises(Busy):  # the control: it counts meanwhile
            await asyncio.sleep(0)
            await fleet.call(
                FIRST.id, dict(HTTP), Client(request(bytes(size))).receive, client.send
            )
        await until(lambda: bool(client.got))
        async with bodies.read(dict(HTTP), Client(request(bytes(size))).receive) as body:
            assert len(body) == size
        may_end.set()
        await calling
        await host.stop()

    run(go)


@pytest.mark.parametrize("order", [("answer", "feed"), ("feed", "answer")])
def test_messages_that_overtake_their_request_are_not_lost(order: Sequence[str]) -> None:
    """Ray keeps no order among the calls of an actor."""

    async def go() -> None:
        got: list[str] = []

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            got.extend([(await receive())["type"] for _ in range(3)])
            await send({"type": "websocket.close", "code": 1000})

        host = await started_host(application)
        answering: asyncio.Future[dict[str, object]] | None = None
        for step in order:
            if step == "answer":
                answering = asyncio.ensure_future(host.answer("call_1", dict(WEBSOCKET), b""))
                await asyncio.sleep(0)
                continue
            await host.feed("call_1", {"type": "websocket.connect"})
            await host.feed("call_1", {"type": "websocket.receive", "text": "x"})
            await host.feed("call_1", {"type": "websocket.disconnect", "code": 1000})
        assert answering is not None
        assert (await answering)["is_last"]
        assert got == ["websocket.connect", "websocket.receive", "websocket.disconnect"]
        await host.stop()

    run(go)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_call_that_the_front_has_left_is_not_executed(
    is_known: bool,
) -> None:  # a parameter of the test
    async def go() -> None:
        count = 0

        async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
            nonlocal count
            count += 1
            await send(dict(START))
            await send({"type": "http.response.body", "body": b""})

        host = await started_host(application)
        if is_known:  # the control
            assert (await host.answer("call_1", dict(HTTP), b""))["is_last"]
            await host.leave("call_1")
        else:
            await host.leave("call_1")
            with pytest.raises(RuntimeError, match="twice"):
                await host.answer("call_1", dict(HTTP), b"")
        assert count == is_known
        await host.stop()

    run(go)


@pytest.mark.parametrize("beyond", [0, 1])
def test_frames_that_overtake_their_request_are_bounded_and_do_not_hold_the_request(
    beyond: int,
) -> None:
    """No application makes room for them before it has begun."""

    async def go() -> None:
        got = 0

        async def application(_scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal got
            while (await receive())["type"] != "websocket.disconnect":
                got += 1
            await send({"type": "websocket.close", "code": 1000})

        host = await started_host(application)
        for _ in range(MAX_MESSAGES + beyond):
            await host.feed("call_1", {"type": "websocket.receive", "bytes": bytes(64 * 1024)})
        if beyond:
            with pytest.raises(RuntimeError, match="twice"):
                await host.answer("call_1", dict(WEBSOCKET), b"")
        else:
            answering = asyncio.ensure_future(host.answer("call_1", dict(WEBSOCKET), b""))
            await until(lambda: got == MAX_MESSAGES)
            await host.feed("call_1", {"type": "websocket.disconnect", "code": 1000})
            assert (await answering)["is_last"]
        await host.stop()

    run(go)
