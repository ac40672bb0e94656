"""A call ends with its host, once, and only its own (SRV-6)."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.fleet.open_calls import HostGone, OpenCalls

pytestmark = pytest.mark.requirement("SRV-6")


def test_a_call_ends_when_its_host_is_lost_and_the_calls_of_other_hosts_go_on():
    async def go() -> None:
        calls, answered = OpenCalls(), asyncio.Event()

        async def call(host: str) -> str:
            try:
                async with calls.breakable(host):
                    await answered.wait()
            except HostGone:
                return "lost"
            return "answered"

        running = [asyncio.ensure_future(call(host)) for host in ("a", "a", "b")]
        await asyncio.sleep(0)
        calls.end("a")
        assert await asyncio.gather(*running[:2]) == ["lost", "lost"]
        answered.set()
        assert await running[2] == "answered"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_timeout_within_the_call_is_not_the_loss_of_the_host():
    async def go() -> None:
        with pytest.raises(TimeoutError):
            async with OpenCalls().breakable("a"):
                raise TimeoutError

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_call_that_has_failed_and_still_cleans_up_is_not_ended_again():
    """The front would end with the exception: asyncio refuses to change an ended timeout."""

    async def go() -> None:
        calls, cleaned = OpenCalls(), asyncio.Event()

        async def call() -> str:
            try:
                async with calls.breakable("a"):
                    raise ValueError("as when the engine says that the process is gone")
            except ValueError:
                return "failed"
            finally:
                await cleaned.wait()

        running = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        calls.end("a")
        cleaned.set()
        assert await running == "failed"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_call_is_ended_once_though_the_host_is_told_lost_again():
    async def go() -> None:
        calls, cleaned = OpenCalls(), asyncio.Event()

        async def call() -> None:
            async with calls.breakable("a"):
                try:
                    await asyncio.sleep(60)
                finally:
                    await cleaned.wait()

        running = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        calls.end("a")
        await asyncio.sleep(0)
        calls.end("a")
        cleaned.set()
        with pytest.raises(HostGone):
            await running

    asyncio.run(asyncio.wait_for(go(), 30))
