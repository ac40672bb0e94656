"""Work that runs once, within the bounds of a session."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.packages.registry.shared_work import (
    MAX_SESSION_WORK,
    SessionBounds,
    SharedWork,
    SizedCache,
    Task,
    run_bounded,
)


def test_waiters_share_one_task_and_one_that_leaves_does_not_stop_it():
    async def run():
        work, calls, gate = SharedWork(), [], asyncio.Event()

        async def start():
            calls.append(1)
            await gate.wait()
            return "done"

        waiting = [asyncio.create_task(work.run("key", SessionBounds(), start)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        return calls, results

    calls, results = asyncio.run(run())
    assert calls == [1]
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == ["done"] * 19


def test_a_session_that_connects_and_leaves_has_no_more_work_done_than_its_bound():
    async def run():
        work, running, gate, bounds = SharedWork(), set(), asyncio.Event(), SessionBounds()

        async def start(key):
            running.add(key)
            await gate.wait()

        for key in range(50):
            waiter = asyncio.create_task(work.run(key, bounds, lambda key=key: start(key)))
            for _ in range(3):
                await asyncio.sleep(0)
            waiter.cancel()
        begun = len(running)
        other = asyncio.create_task(work.run("other", SessionBounds(), lambda: start("other")))
        for _ in range(3):
            await asyncio.sleep(0)
        has_other = "other" in running
        gate.set()
        await other
        await work.run("later", bounds, lambda: start("later"))
        return begun, has_other, "later" in running

    assert asyncio.run(run()) == (MAX_SESSION_WORK, True, True)


def test_a_failure_reaches_every_waiter_and_the_next_call_tries_again():
    async def run():
        work, bounds = SharedWork(), SessionBounds()

        async def fail():
            raise ValueError("no")

        async def succeed():
            return 1

        tried = [work.run("key", bounds, fail) for _ in range(3)]
        failed = await asyncio.gather(*tried, return_exceptions=True)
        return failed, await work.run("key", bounds, succeed)

    failed, result = asyncio.run(run())
    assert [type(each) for each in failed] == [ValueError] * 3
    assert result == 1


def test_bytes_of_a_session_are_bounded():
    bounds = SessionBounds(100)
    bounds.count_bytes(100)
    with pytest.raises(EgressRefused) as error:
        bounds.count_bytes(1)
    assert error.value.code == "CW-NET-LIMIT"


def test_threads_are_bounded_and_inspections_do_not_delay_documents():
    async def run():
        gate, running = threading.Event(), []

        def block():
            running.append(1)
            gate.wait(10)

        blocked = [asyncio.create_task(run_bounded(Task.INSPECT, block)) for _ in range(10)]
        read = await run_bounded(Task.READ, lambda value: value, "read")
        while not running:
            await asyncio.sleep(0.001)
        begun = len(running)
        gate.set()
        await asyncio.gather(*blocked)
        return read, begun, len(running)

    read, begun, total = asyncio.run(run())
    assert (read, total) == ("read", 10)
    assert begun <= 2


def test_a_cache_is_bounded_by_size_and_age(monkeypatch):
    cache = SizedCache(100, 60.0)
    for number in range(5):
        cache.put(number, f"value {number}", 40)
    assert [cache.get(number) for number in range(5)] == [None, None, None, "value 3", "value 4"]
    cache.put("large", "value", 1000)
    assert (cache.get(4), cache.get("large")) == (None, "value")
    cache.put("large", "small", 10)
    cache.put("next", "value", 90)
    assert (cache.get("large"), cache.get("next")) == ("small", "value")
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 61)
    assert cache.get("next") is None


@pytest.mark.requirement("PKG-1")
def test_the_spent_bytes_of_one_session_do_not_fail_the_work_of_another():
    async def run():
        work, spent, other = SharedWork(), SessionBounds(0), SessionBounds(10)
        gate, calls = asyncio.Event(), []

        async def start(bounds, name):
            calls.append(name)
            await gate.wait()
            bounds.count_bytes(1)
            return name

        def ask(bounds, name):
            return asyncio.create_task(work.run("key", bounds, lambda: start(bounds, name)))

        waiting = [ask(spent, "first"), ask(spent, "same")]
        waiting += [ask(other, "other") for _ in range(MAX_SESSION_WORK)]
        for _ in range(3):
            await asyncio.sleep(0)
        gate.set()
        first, same, *rest = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(first, EgressRefused)
        assert isinstance(same, EgressRefused)
        for _ in range(MAX_SESSION_WORK):  # every slot was given back
            await asyncio.wait_for(other.slots.acquire(), 60)
        return calls, rest

    assert asyncio.run(run()) == (["first", "other"], ["other"] * MAX_SESSION_WORK)
