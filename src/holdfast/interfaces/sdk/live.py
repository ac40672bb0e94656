"""What runs in a sandbox right now, so that `kill` can end it from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.from_thread
import anyio.lowlevel

_END_WITHIN_S = 30.0


class LiveActions:
    """Every action between its start and its end, with the event loop it runs on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._live: dict[anyio.CancelScope, anyio.lowlevel.EventLoopToken] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block is left early, without an exception, when `end` is called."""
        with anyio.CancelScope() as scope:
            with self._changed:
                self._live[scope] = anyio.lowlevel.current_token()
            try:
                yield
            finally:
                with self._changed:
                    del self._live[scope]
                    self._changed.notify_all()

    def end(self) -> None:
        """Cancel all and wait until each has cleaned up. Not to be called on an event loop."""
        with self._changed:
            live = list(self._live.items())
        for scope, token in live:
            anyio.from_thread.run_sync(scope.cancel, token=token)
        with self._changed:
            self._changed.wait_for(lambda: not self._live, _END_WITHIN_S)
