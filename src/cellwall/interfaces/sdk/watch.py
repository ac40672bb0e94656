"""Changes of a workspace as a loop sees them: the async core and its thin blocking face (FS-7)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar, cast

import anyio

from cellwall.core.files import FileChange, Watching

Result = TypeVar("Result")


class Caller(Protocol):
    """Runs a coroutine to its end for a thread that has no loop to await it on."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result: ...


class Living(Protocol):
    """The sandbox, as far as a watch has to do with it."""

    @property
    def alive(self) -> bool: ...

    def waiting(self) -> AbstractContextManager[None]: ...


class AsyncWatch:
    """An iterator over `FileChange`; it can be left and taken up again until it is closed."""

    def __init__(
        self, sandbox: Living, start: Callable[[], Awaitable[object]], *, timeout_s: float | None
    ) -> None:
        self._sandbox = sandbox
        self._start = start
        self._timeout_s = timeout_s
        self._ready: deque[FileChange] = deque()
        self._watching: Watching | None = None
        self._lock = threading.Lock()  # `close` may come from another thread
        self._closed = self._in_use = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        change = await self.next_change()
        if change is None:
            raise StopAsyncIteration
        return change

    async def open(self) -> None:
        """Watch from now on; an iteration does it by itself."""
        if self._watching is None and not self._closed:
            self._watching = cast("Watching", await self._start())  # the port's meaning of "watch"

    async def next_change(self) -> FileChange | None:
        """The next one; None when there is none in time, or will be none at all."""
        await self.open()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not self._ready:
            watching = self._taken()
            if watching is None:
                return None
            try:
                woken = False
                with self._sandbox.waiting():
                    await _readable(watching, deadline)
                    woken = True
                    # Into `_ready` in the thread itself: a cancelled wait loses no change.
                    await anyio.to_thread.run_sync(self._collect, watching)
            finally:
                self._give_back(watching)
            if not woken or (deadline is not None and time.monotonic() >= deadline):
                break
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """End the watch; a loop over it in another task or thread ends, too."""
        with self._lock:
            self._closed = True
            if self._watching is None:
                return
            if self._in_use:
                self._watching.stop()  # whoever waits closes it
            else:
                self._watching.close()

    def _collect(self, watching: Watching) -> None:
        self._ready.extend(watching.take())

    def _taken(self) -> Watching | None:
        with self._lock:
            if self._watching is None or self._closed:
                return None
            if self._watching.ended or not self._sandbox.alive:
                self._closed = True
                self._watching.close()
                return None
            self._in_use = True
            return self._watching

    def _give_back(self, watching: Watching) -> None:
        with self._lock:
            self._in_use = False
            if self._closed:
                watching.close()


async def _readable(watching: Watching, deadline: float | None) -> None:
    waits = [] if deadline is None else [max(deadline - time.monotonic(), 0.0)]
    if watching.patience_s is not None:
        waits.append(watching.patience_s)
    with anyio.move_on_after(min(waits, default=None)):
        await anyio.wait_readable(watching.fileno())


class Watch:
    """An iterator over `FileChange`; use it as a context manager, or call `close` when done."""

    def __init__(self, changes: AsyncWatch, call: Caller) -> None:
        self._changes = changes
        self._call = call
        call(changes.open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileChange:
        change = self._call(self._changes.next_change)
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the watch; a loop over it in another thread ends, too."""
        self._changes.close()
