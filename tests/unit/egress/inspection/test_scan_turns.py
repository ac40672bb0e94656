"""Bytes that are slow to scan take turns with other sessions (NET-2, NET-5).

A keyword of a credential rule costs some tens of microseconds, and a body can consist of nothing
but keywords: 64 KB of them would hold up every session for half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from cellwall.egress.inspection import leak_scan
from cellwall.egress.inspection.body_filters import BodyScan, KnownValueCache
from cellwall.egress.inspection.decompression import DecompressionBudget
from cellwall.egress.inspection.leak_scan import LeakHit, Patterns
from cellwall.egress.limits import FairShare
from cellwall.egress.proxy.audit_events import LeakRefused, LeakReporter
from cellwall.parsing.credentials import rule_set
from unit.egress.loopback import Known

KEYWORDS = 2000
SLOW = b"sk-" * KEYWORDS
USUAL = b"one line of an ordinary text\n" * 200
KNOWN = b"hunter2-correct-horse"
TOKEN = b" ghp_" + b"a1B2c3D4e5" * 3 + b"f6G7h8 "
MAX_PER_TURN = 160
"""New keywords and those in the kept end of the bytes before."""


class Share:
    """Counts turns."""

    def __init__(self) -> None:
        self.turns = 0
        self.up = DecompressionBudget(1 << 30)

    async def wait_turn(self) -> None:
        self.turns += 1


class Reporter:
    def __init__(self) -> None:
        self.turns_at_check: list[int] = []
        self.share = Share()

    def check_open(self) -> None:
        self.turns_at_check.append(self.share.turns)

    def report(self, hit: LeakHit, *, is_host: bool = False) -> LeakRefused:
        if hit.kind == "known":
            assert self.share.turns == self.turns_at_check[-1], "a guess counts before the next one"
        return LeakRefused(hit, is_host=is_host)


class Counted:
    """Counts the keywords that are looked at between two turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: Share) -> None:
        self.most = self._count = self._turns = 0
        self._share = share
        real = rule_set.is_within

        def is_within(zones: Any, place: int) -> bool:
            if share.turns != self._turns:
                self._turns, self._count = share.turns, 0
            self._count += 1
            self.most = max(self.most, self._count)
            return real(zones, place)

        monkeypatch.setattr(rule_set, "is_within", is_within)


Scan = Callable[[bytes, Reporter], Awaitable[None]]


async def scan_body(data: bytes, reporter: Reporter) -> None:
    cache = KnownValueCache(Known(PASSWORD=KNOWN))
    share = cast("FairShare", reporter.share)
    scan = BodyScan((), cache.index(), leak_reporter=cast("LeakReporter", reporter), share=share)
    await scan.look(data)


async def scan_value(data: bytes, reporter: Reporter) -> None:
    cache = KnownValueCache(Known(PASSWORD=KNOWN))
    reporter.check_open()
    await cache.check_head(
        "GET",
        "/",
        [(b"x-a", data.replace(b"\n", b" "))],
        leak_reporter=cast("LeakReporter", reporter),
        share=cast("FairShare", reporter.share),
    )


@pytest.mark.requirement("NET-2", "NET-5")
@pytest.mark.parametrize("scan", [scan_body, scan_value])
def test_no_turn_has_many_keywords(monkeypatch: pytest.MonkeyPatch, scan: Scan) -> None:
    reporter = Reporter()
    asyncio.run(scan(USUAL, reporter))
    assert reporter.share.turns <= 2, "ordinary bytes take no more turns"
    counted = Counted(monkeypatch, reporter.share)
    asyncio.run(scan(SLOW, reporter))
    assert reporter.share.turns >= KEYWORDS // MAX_PER_TURN
    assert 0 < counted.most <= 2 * MAX_PER_TURN


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("shift", range(-12, 13))
def test_token_at_the_border_of_two_searches_is_found(shift: int) -> None:
    patterns = Patterns.shipped()
    before = b" " * (leak_scan._BYTES_PER_SEARCH + shift)
    assert patterns.find(before + TOKEN) is not None
    assert patterns.find(before + TOKEN.replace(b"ghp_", b"ghx_")) is None


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("scan", [scan_body, scan_value])
@pytest.mark.parametrize("secret", [KNOWN, TOKEN])
@pytest.mark.parametrize("before", [0, KEYWORDS])
def test_secret_behind_slow_bytes_is_found(scan: Scan, secret: bytes, before: int) -> None:
    data = b"sk-" * before + b" " + secret + b" " + b"sk-" * before
    asyncio.run(scan(data.replace(secret, b""), Reporter()))
    with pytest.raises(LeakRefused):
        asyncio.run(scan(data, Reporter()))
