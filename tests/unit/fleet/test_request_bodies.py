"""Bodies of requests in the memory of a front (SRV-6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cellwall.core.errors import BadInput, Busy
from cellwall.fleet.engine import Message, Receive
from cellwall.fleet.request_bodies import RequestBodies

pytestmark = pytest.mark.requirement("SRV-6")
KIB = 1024
HTTP = {"type": "http"}


def parts(*sizes: int) -> Receive:
    def messages() -> Iterator[Message]:
        for number, size in enumerate(sizes, 1):
            yield {"type": "http.request", "body": b"x" * size, "more_body": number < len(sizes)}
        yield {"type": "http.disconnect"}

    left = messages()

    async def receive() -> Message:
        return next(left)

    return receive


def test_large_bodies_are_bounded_together_and_small_ones_go_on() -> None:
    async def go() -> None:
        bodies = RequestBodies(max_bytes=200 * KIB, max_total_bytes=250 * KIB)
        async with bodies.read(dict(HTTP), parts(100 * KIB, 60 * KIB)) as held:
            assert len(held) == 160 * KIB
            with pytest.raises(Busy):
                async with bodies.read(dict(HTTP), parts(60 * KIB, 60 * KIB)):
                    pass
            async with bodies.read(dict(HTTP), parts(60 * KIB)) as small:
                assert len(small) == 60 * KIB
        for _ in range(3):  # the control: the room is given back, also by what was refused
            async with bodies.read(dict(HTTP), parts(200 * KIB)) as held:
                assert len(held) == 200 * KIB

    asyncio.run(go())


def test_one_body_is_bounded_and_a_broken_one_is_not_passed_on() -> None:
    async def go() -> None:
        bodies = RequestBodies(max_bytes=100 * KIB, max_total_bytes=100 * KIB)
        with pytest.raises(BadInput, match="too large"):
            async with bodies.read(dict(HTTP), parts(90 * KIB, 11 * KIB)):
                pass

        async def broken() -> Message:
            return {"type": "http.disconnect"}

        with pytest.raises(BadInput, match="ended before"):
            async with bodies.read(dict(HTTP), broken):
                pass
        async with bodies.read(dict(HTTP), parts(100 * KIB)) as held:
            assert len(held) == 100 * KIB

    asyncio.run(go())


def test_a_websocket_has_no_body() -> None:
    async def never() -> Message:
        raise AssertionError

    async def go() -> None:
        async with RequestBodies(max_bytes=1, max_total_bytes=1).read(
            {"type": "websocket"}, never
        ) as body:
            assert body == b""

    asyncio.run(go())
