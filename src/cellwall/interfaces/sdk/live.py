"""What runs in a sandbox right now, so that `kill` can end it from any thread."""

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
    """Every action between its start and its end, with the event loop it runs on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._live: dict[anyio.CancelScope, Callable[[Callable[[], None]], object]] = {}
        self._is_over = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block is left early, without an exception, when `end` is called, or was."""
        with anyio.CancelScope() as scope:
            with self._changed:
                self._live[scope] = _soon()
                if self._is_over:  # by another thread, after the caller had seen it alive
                    scope.cancel()
            try:
                yield
            finally:
                with self._changed:
                    del self._live[scope]
                    self._changed.notify_all()

    def end(self) -> None:
        """Cancel all and wait until each has cleaned up. Not to be called on an event loop."""
        with self._changed:
            self._is_over = True
            # None of them can leave while we hold this, so their loops still run. Nobody is waited
            # for here: a loop that is busy, or about to end, must not keep the sandbox alive.
            for scope, soon in self._live.items():
                with suppress(RuntimeError):
                    soon(scope.cancel)
            self._changed.wait_for(lambda: not self._live, _END_WITHIN_S)


def _soon() -> Callable[[Callable[[], None]], object]:
    """How another thread has something done on this event loop, without waiting for it."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:  # another kind of loop
        token = anyio.lowlevel.current_token()
        return partial(anyio.from_thread.run_sync, token=token)
