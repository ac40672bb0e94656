"""The running actions of a sandbox, which can be ended from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import anyio
import anyio.from_thread
import anyio.lowlevel

_END_WITHIN_S = 30.0


class LiveActions:
    """All running actions, each with its event loop, so that `kill` works from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._live: dict[anyio.CancelScope, Callable[[Callable[[], None]], object]] = {}
        self._is_over = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block is left early, without an exception, once `end` is called."""
        with anyio.CancelScope() as scope:
            with self._changed:
                self._live[scope] = _soon()
                if self._is_over:  # `end` was called by another thread meanwhile
                    scope.cancel()
            try:
                yield
            finally:
                with self._changed:
                    del self._live[scope]
                    self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self._live)

    def end_if_idle(self) -> bool:
        """Whether no action runs; then none begins any more. Never blocks."""
        with self._changed:
            self._is_over = self._is_over or not self._live
            return not self._live

    def end(self) -> None:
        """Cancel all actions and wait for their cleanup. Must not be called on an event loop."""
        with self._changed:
            self._is_over = True
            # No action can leave while the lock is held, so their loops still run. No wait here: a
            # busy or ending loop must not keep the sandbox alive.
            for scope, soon in self._live.items():
                with suppress(RuntimeError):
                    soon(scope.cancel)
            self._changed.wait_for(lambda: not self._live, _END_WITHIN_S)


def _soon() -> Callable[[Callable[[], None]], object]:
    """Schedules a call on this event loop from another thread, without waiting."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:  # another kind of loop
        token = anyio.lowlevel.current_token()
        return partial(anyio.from_thread.run_sync, token=token)
