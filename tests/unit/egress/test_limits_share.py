"""Sessions take turns: what one does in many places at once is one piece in each round (NET-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cellwall.egress.limits import EgressSettings, FairShare


async def work(turn: Callable[[], Awaitable[None]], log: list[str], name: str, count: int) -> None:
    for _ in range(count):
        await turn()
        log.append(name)


async def plain() -> None:
    await asyncio.sleep(0)


async def max_between(of_greedy: Callable[[], Awaitable[None]], other: FairShare) -> int:
    """Pieces of a hundred tasks between two of a neighbour's."""
    log: list[str] = []
    greedy = [asyncio.create_task(work(of_greedy, log, "greedy", 20)) for _ in range(100)]
    await work(other.wait_turn, log, "other", 10)
    for task in greedy:
        await task
    gaps = "".join(name[0] for name in log).split("o")
    assert len(log) == 100 * 20 + 10
    return max(map(len, gaps[1:-1]))


@pytest.mark.requirement("NET-2")
def test_hundred_tasks_of_one_session_are_one_for_its_neighbour() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        one, other = FairShare(EgressSettings(), loop), FairShare(EgressSettings(), loop)
        assert await max_between(plain, other) >= 100  # so it is where nobody takes turns
        assert await max_between(one.wait_turn, other) <= 2

    asyncio.run(run())


def test_turn_of_who_was_cancelled_is_the_next_ones() -> None:
    async def run() -> list[str]:
        share = FairShare(EgressSettings(), asyncio.get_running_loop())
        log: list[str] = []
        tasks = [asyncio.create_task(work(share.wait_turn, log, name, 1)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()  # while it waits for the first one's round to end
        await asyncio.wait(tasks)
        await share.wait_turn()
        return log

    assert asyncio.run(run()) == ["a", "c"]
