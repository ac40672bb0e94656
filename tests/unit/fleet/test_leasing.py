"""A host keeps its lease while it is busy or stands still for a moment, and not longer (SRV-6).

The clock is that of the test; the threads of the lease and the event loop are real.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cellwall.core.errors import Busy
from cellwall.core.hosts import HostRecord
from cellwall.fleet import leasing

pytestmark = pytest.mark.requirement("SRV-6")
LEASE_S = 2.5
RENEWED_BEFORE_S = 0.5
"""At most, before a host stands still."""
DEADLINE_S = 30.0
"""Of each wait, in real time: the threads of the lease may get little of a busy host."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Hosts:
    """The database, which can be away."""

    def __init__(self) -> None:
        self.renewals, self.is_away, self.is_lost = 0, False, False

    async def join_host(self, *_: object, **__: object) -> None: ...

    async def leave_host(self, incarnation: str) -> None: ...

    async def renew_host(self, incarnation: str, about: Mapping[str, Any]) -> HostRecord | None:
        if self.is_away:
            raise Busy("the database does not answer")
        self.renewals += 1
        if self.is_lost:
            return None
        return HostRecord(
            id="svc_1", incarnation=incarnation, about=about, unseen_s=0.0, is_draining=True,
            is_lost=False,
        )  # fmt: skip


class Host:
    def __init__(self, clock: Clock) -> None:
        self.is_draining, self.fenced = False, 0
        self.clock, self.described_at_s = clock, 0.0

    def describe(self) -> Mapping[str, Any]:
        self.described_at_s = self.clock.now_s
        return {"sessions": 1}

    def set_draining(self, *, is_draining: bool) -> None:
        self.is_draining = is_draining

    async def fence(self) -> None:
        self.fenced += 1


class Leased:
    """A lease with all that it uses."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.hosts, self.host = clock, Hosts(), Host(clock)
        self.has_ended = asyncio.Event()
        self.is_renewing = threading.Event()
        """From here on, the thread that renews measures from the present time."""
        self.lease = leasing.HostLease(
            self.hosts, self.host, "inc_1", lease_s=LEASE_S, open_hosts=self._open,
            end_process=self._end,
        )  # fmt: skip

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        self.is_renewing.set()
        yield self.hosts

    async def _end(self) -> None:
        self.has_ended.set()

    async def renewed(self) -> None:
        """A renewal has begun at the present time of the clock, at which the event loop ran, too.
        The clock stands still meanwhile: however late a thread runs, it sees this time."""
        await until(self.is_renewing.is_set)
        before = self.hosts.renewals
        self.clock.now_s += LEASE_S / 4
        await until(lambda: self.hosts.renewals > before)
        await until(lambda: self.host.described_at_s == self.clock.now_s)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def stand_still_until(condition: Callable[[], object]) -> None:
    """The event loop does not run meanwhile."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen while the event loop stood still"
        time.sleep(0.01)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the process would have ended."""
    found = threading.Event()
    monkeypatch.setattr(leasing.os, "_exit", lambda _code: found.set())
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(leasing, "_now", found)
    return found


def run(clock: Clock, test: Callable[[Leased], Any]) -> None:
    async def go() -> None:
        leased = Leased(clock)
        await leased.lease.join()
        keeping = asyncio.ensure_future(leased.lease.keep())
        try:
            await test(leased)
        finally:
            keeping.cancel()
            await leased.lease.leave()

    asyncio.run(asyncio.wait_for(go(), 4 * DEADLINE_S))


def test_a_host_that_stood_still_for_three_seconds_serves_again(clock, exits):
    async def go(leased: Leased) -> None:
        await leased.renewed()
        leased.hosts.is_away = True
        clock.now_s += RENEWED_BEFORE_S
        time.sleep(0.3)  # a renewal fails, or has not begun: it stands still
        clock.now_s += 3.0
        assert not leased.lease.is_valid
        leased.hosts.is_away = False  # it goes on: the next renewal comes by itself
        assert await leased.lease.prove()
        assert not exits.is_set()
        assert leased.host.fenced == 0
        assert leasing.lost_after_s(LEASE_S) > 3.0 + RENEWED_BEFORE_S  # the others have waited

    run(clock, go)


def test_a_host_that_stood_still_until_others_may_take_over_ends(clock, exits):
    """The control."""

    async def go(leased: Leased) -> None:
        await leased.renewed()
        leased.hosts.is_away = True
        clock.now_s += leasing.lost_after_s(LEASE_S) - 0.1
        stand_still_until(exits.is_set)

    run(clock, go)


def test_a_host_that_does_not_reach_the_database_is_fenced_and_refuses(clock, exits):
    async def go(leased: Leased) -> None:
        await leased.renewed()
        leased.hosts.is_away = True
        clock.now_s += 1.5 * LEASE_S + 0.01
        assert not await leased.lease.prove()
        await until(lambda: leased.host.fenced)
        clock.now_s += 100
        await asyncio.sleep(0.3)
        assert not exits.is_set()  # sessions that reach nothing outside go on
        leased.hosts.is_away = False
        await until(lambda: leased.lease.is_valid and leased.host.is_draining)

    run(clock, go)


def test_an_event_loop_that_hangs_gets_no_renewal_and_one_that_is_busy_does(clock, exits):
    async def go(leased: Leased) -> None:
        await leased.renewed()
        before = leased.hosts.renewals
        clock.now_s += 0.4 * LEASE_S
        stand_still_until(lambda: leased.hosts.renewals > before)
        clock.now_s += 0.2 * LEASE_S
        before = leased.hosts.renewals
        time.sleep(0.5)
        assert leased.hosts.renewals == before
        await until(lambda: leased.hosts.renewals > before)
        assert not exits.is_set()

    run(clock, go)


def test_a_host_that_was_declared_lost_ends(clock, exits):
    async def go(leased: Leased) -> None:
        await leased.renewed()
        leased.hosts.is_lost = True
        clock.now_s += LEASE_S / 5
        await leased.has_ended.wait()
        assert leased.host.fenced == 1
        assert not await leased.lease.prove()

    run(clock, go)
