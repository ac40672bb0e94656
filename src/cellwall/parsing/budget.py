"""How long scans of one text may take (GRD-11).

Every scan is linear in its input. What a byte costs at most still differs by a factor of a thousand
between ordinary text and text that is made of nothing but beginnings of secrets, so each text has a
budget of processor time in proportion to its length. Loops over bounded steps call `checkpoint`;
where the budget is spent it raises, and the caller gives the answer that is safe: what was not
looked at is not shown.

Time is that of the thread: what else the machine does is not counted against a text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from itertools import count
from typing import TypeVar

Item = TypeVar("Item")

BASE_S = 1.0
PER_BYTE_S = 2e-6
"""Ordinary text takes a twentieth of this."""
MAX_S = 10.0
NOT_SCANNED = "not scanned in time"
"""Stands in a mark for the rest of a text whose budget was spent."""


class AttemptBudget:
    """A number of attempts on one text: an operation that is cheap once is not when a text consists
    of nothing but its triggers."""

    __slots__ = ("left",)

    def __init__(self, attempts: int) -> None:
        self.left = attempts

    def spend(self) -> bool:
        """Take one attempt; False if none was left."""
        self.left -= 1
        return self.left >= 0

    def spend_many(self, attempts: int) -> None:
        """Take so many, of which the last may be one more than were left."""
        self.left = max(self.left - attempts, -1)

    def exhaust(self) -> None:
        """Record that part of the text was skipped."""
        self.left = -1

    @property
    def is_spent(self) -> bool:
        return self.left < 0


class ScanUnfinished(Exception):
    """The budget of a text is spent before its end. Never leaves the part that scans."""


class ScanBudget:
    """Processor time that is left for one text, or for a stream as it comes."""

    __slots__ = ("_begun_s", "_granted_s", "_spent_s", "max_s", "per_byte_s")

    def __init__(
        self, *, base_s: float = BASE_S, per_byte_s: float = PER_BYTE_S, max_s: float = MAX_S
    ) -> None:
        self._granted_s = base_s
        self._spent_s = 0.0
        self._begun_s: float | None = None
        self.per_byte_s = per_byte_s
        self.max_s = max_s

    def grant(self, size_bytes: int) -> None:
        """So many bytes more are to be scanned."""
        self._granted_s += size_bytes * self.per_byte_s

    @property
    def spent_s(self) -> float:
        running = 0.0 if self._begun_s is None else time.thread_time() - self._begun_s
        return self._spent_s + running

    def check(self) -> None:
        """Raises `ScanUnfinished` where nothing is left."""
        if self.spent_s > min(self._granted_s, self.max_s):
            raise ScanUnfinished

    def resume(self) -> None:
        """Processor time counts from now on."""
        self._begun_s = time.thread_time()

    def pause(self) -> None:
        """Processor time does not count any more."""
        self._spent_s, self._begun_s = self.spent_s, None

    def running(self) -> AbstractContextManager[None]:
        """`checkpoint` checks this budget within; an outer one goes first: its text is larger."""
        return _Running(self)


class _Running:
    """A class and no generator: each chunk of output enters it."""

    __slots__ = ("_budget", "_token")

    def __init__(self, budget: ScanBudget) -> None:
        self._budget = budget
        self._token: Token[ScanBudget | None] | None = None

    def __enter__(self) -> None:
        if _current.get() is None:
            self._token = _current.set(self._budget)
            self._budget.resume()

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            self._budget.pause()
            _current.reset(self._token)


_current: ContextVar[ScanBudget | None] = ContextVar("scan_budget", default=None)


def checkpoint() -> None:
    """Called between steps of bounded length."""
    budget = _current.get()
    if budget is not None:
        budget.check()


def checked(items: Iterable[Item], *, every: int = 64) -> Iterator[Item]:
    """The same items, with a checkpoint before each `every` of them."""
    if isinstance(items, list):  # the nodes of a module, several times for each: no counting
        for start in count(0, every):
            if start >= len(items):
                return
            checkpoint()
            yield from items[start : start + every]
    for number, item in enumerate(items):
        if number % every == 0:
            checkpoint()
        yield item


def grant(budget: ScanBudget, size_bytes: int) -> None:
    """To the budget that is in force: the outer one, if there is one."""
    (_current.get() or budget).grant(size_bytes)
