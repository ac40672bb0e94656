"""The background thread of a pool: starts templates, refills, cleans up while no caller waits."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable

from cellwall.sandbox.linux.run_cgroup import RunCgroup

_REMOVE_EVERY_S = 0.002
_MAX_REMOVE_EVERY_S = 0.05
_TICK_S = 1.0
_PATIENCE_S = 5.0
_log = logging.getLogger("cellwall")


class PoolWorker:
    """Runs jobs in order, and removes cgroups of ended cells as soon as the kernel allows."""

    def __init__(self, tick: Callable[[], None], is_stopped: Callable[[], bool]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._dying: list[tuple[float, RunCgroup]] = []
        self._tick, self._is_stopped = tick, is_stopped
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        if self._is_closed or sys.is_finalizing():
            job()  # no thread can be started any more
            return
        self._jobs.put(job)
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._work, name="cellwall-worker", daemon=True
                )
                self._thread.start()

    def remove(self, group: RunCgroup | None) -> None:
        if group is None:
            return
        if self._is_closed or sys.is_finalizing():
            self._discard(group)
        else:
            self.submit(lambda: self._dying.append((time.monotonic(), group)))

    def open(self) -> None:
        """Work again after `close`: an unwatched live cell would have no limits."""
        self._is_closed = sys.is_finalizing()

    def close(self) -> None:
        """Finish the queued jobs, then stop."""
        self._is_closed = True
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(_PATIENCE_S)

    def _work(self) -> None:
        last_tick = time.monotonic()
        # Longer with each try: the kernel may take a while to release the last process of a group.
        pause_s = _REMOVE_EVERY_S
        while True:
            waiting = len(self._dying)
            try:
                job = self._jobs.get(timeout=pause_s if waiting else _TICK_S)
            except queue.Empty:
                pass
            else:
                if job is None:
                    for _since, group in self._dying:
                        self._discard(group)
                    return
                _try(job)
            _try(self._remove_groups)
            is_stuck = 0 < waiting <= len(self._dying)
            pause_s = min(2 * pause_s, _MAX_REMOVE_EVERY_S) if is_stuck else _REMOVE_EVERY_S
            now = time.monotonic()
            if now - last_tick >= _TICK_S:
                last_tick = now
                _try(self._tick)

    def _remove_groups(self) -> None:
        """Remove groups without processes; kill the processes of a group that lasts too long."""
        now, dying = time.monotonic(), self._dying
        self._dying = [each for each in dying if not each[1].try_remove()]
        for each in [each for each in self._dying if now - each[0] >= _PATIENCE_S]:
            self._dying.remove(each)
            self._discard(each[1])

    def _discard(self, group: RunCgroup) -> None:
        """Remove a group with all that is in it; during an emergency stop only an empty one, since
        its processes may be frozen as evidence. The group of their template is removed later."""
        if self._is_stopped():
            group.try_remove()
        else:
            group.discard()


def _try(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the next job must still be done
        _log.warning("background work failed: %s", type(error).__name__)
