"""Work that several cells wait for runs once, in bounds; results are kept in bounds.

A cell that leaves does not stop the work that it began: others may wait for the same, and a cell
that connects and leaves again must not get more work done than the bounds of its session.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from enum import Enum
from typing import Any, Generic, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from cellwall.core.errors import EgressRefused
from cellwall.core.limits import MIB

MAX_SESSION_WORK = 8
MAX_SESSION_BYTES = 4096 * MIB
_SPENT = "CW-NET-LIMIT"
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_Arguments = TypeVarTuple("_Arguments")


class SessionBounds:
    """What one session may have the host do: concurrent work, and bytes from a registry."""

    def __init__(self, max_bytes: int = MAX_SESSION_BYTES) -> None:
        self.slots = asyncio.Semaphore(MAX_SESSION_WORK)
        self._bytes_left = max_bytes

    def count_bytes(self, count: int) -> None:
        """Count what the registry sent for this session."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise EgressRefused(
                "this sandbox has had too many bytes downloaded from package registries",
                hint="Raise egress.max_download_bytes, or use another sandbox.",
                code=_SPENT,
            )

    @property
    def is_spent(self) -> bool:
        return self._bytes_left < 0


class Task(Enum):
    """What threads do, each within its own bound: an inspection may take minutes."""

    READ = "read"
    INSPECT = "inspect"


_MAX_THREADS = 2
_limiters: RunVar[dict[Task, CapacityLimiter]] = RunVar("package_work")


async def run_bounded(
    task: Task, function: Callable[[*_Arguments], _V], *arguments: *_Arguments
) -> _V:
    """Call the function in a thread. The threads of the loop's own executor resolve names."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {each: CapacityLimiter(_MAX_THREADS) for each in Task}
        _limiters.set(limiters)
    return await to_thread.run_sync(function, *arguments, limiter=limiters[task])


class SharedWork(Generic[_K, _V]):
    """At most one task for each key. Used on one event loop."""

    def __init__(self) -> None:
        self._running: dict[_K, asyncio.Task[_V]] = {}

    async def run(
        self, key: _K, bounds: SessionBounds, start: Callable[[], Coroutine[Any, Any, _V]]
    ) -> _V:
        """The result of `start`, which may have been called for another waiter.

        The slot of the session that began the work is taken until the end of the work.
        """
        await bounds.slots.acquire()
        is_slot_needed = False
        try:
            while (task := self._running.get(key)) is not None:
                try:
                    return await asyncio.shield(task)
                except EgressRefused as error:
                    # The bytes of the session that began the work are spent: one session must
                    # not be able to fail the downloads of another. `end` ran already.
                    if error.code != _SPENT or bounds.is_spent:
                        raise
            is_slot_needed = True
        finally:
            if not is_slot_needed:
                bounds.slots.release()
        task = self._running[key] = asyncio.get_running_loop().create_task(start())

        def end(done: asyncio.Task[_V]) -> None:
            del self._running[key]
            bounds.slots.release()
            if not done.cancelled():
                done.exception()  # mark as retrieved: every waiter may have left

        task.add_done_callback(end)
        return await asyncio.shield(task)


class SizedCache(Generic[_K, _V]):
    """Values for a time, the least recently used ones removed first. Bounded by their sizes."""

    def __init__(self, max_bytes: int, fresh_s: float) -> None:
        self._max_bytes = max_bytes
        self._fresh_s = fresh_s
        self._entries: OrderedDict[_K, tuple[float, int, _V]] = OrderedDict()
        self._bytes = 0

    def get(self, key: _K) -> _V | None:
        entry = self._entries.get(key)
        if entry is None or time.monotonic() >= entry[0]:
            return None
        self._entries.move_to_end(key)
        return entry[2]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Keep the value; one that is larger than the cache is kept alone."""
        self._bytes += size - (self._entries[key][1] if key in self._entries else 0)
        self._entries[key] = time.monotonic() + self._fresh_s, size, value
        self._entries.move_to_end(key)
        while self._bytes > self._max_bytes and len(self._entries) > 1:
            _, (_, removed, _) = self._entries.popitem(last=False)
            self._bytes -= removed
