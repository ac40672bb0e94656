"""A host answers each call once, on an event loop that its callers cannot block (SRV-6)."""

from __future__ import annotations

import asyncio
import time

import pytest

from cellwall.fleet.ray_host import RayHost

pytestmark = pytest.mark.requirement("SRV-6")
SCOPE = {"type": "http", "path": "/", "headers": []}


async def ask(host: RayHost, call: str) -> bytes:
    part = await host.answer(call, SCOPE, b"")
    assert part["is_last"]
    return bytes(part["messages"][-1]["body"])


def test_a_call_that_comes_twice_is_executed_once():
    async def go() -> None:
        host = RayHost("unit.fleet.counting_host:open_host", {})
        assert "pid" in await host.start()
        assert [await ask(host, "call_1"), await ask(host, "call_2")] == [b"1", b"2"]
        with pytest.raises(RuntimeError, match="twice"):
            await ask(host, "call_1")
        assert await ask(host, "call_3") == b"3"
        assert host._exchanges == {}
        await host.stop()

    asyncio.run(go())


def test_a_blocked_loop_of_the_caller_does_not_block_the_service():
    """As Ray's does while a front that has called is gone; the host renews its lease meanwhile."""

    async def go() -> None:
        host = RayHost("unit.fleet.counting_host:open_host", {})
        await host.start()
        ticks: list[float] = []

        async def renew() -> None:
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.005)

        renewal = asyncio.run_coroutine_threadsafe(renew(), host._loop)
        while not ticks:
            await asyncio.sleep(0.001)
        before = len(ticks)
        while len(ticks) < before + 3:
            time.sleep(0.005)  # blocks this loop, and not that of the service
        renewal.cancel()
        await host.stop()

    asyncio.run(asyncio.wait_for(go(), 30))
