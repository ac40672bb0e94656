"""Keeps the text index of the audit log up to date in the background of a service, so that searches
for a text need not scan."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cellwall.audit.text_indexing import (
    IndexingStopped,
    remove_damaged,
    remove_erased,
    update_text_index,
)
from cellwall.core.errors import CellwallError
from cellwall.runtime.recording import audit_directory
from cellwall.secrets.session_keys import SessionKeys

_log = logging.getLogger("cellwall")
_EVERY_S = 10.0
_REPAIR_EVERY_S = 3600.0
_REST_PER_WORK = 3.0
"""Seconds of rest for each second of work: requests of the service come first."""
_JOIN_S = 2.0


class TextIndexer:
    """A thread that indexes new records until it is stopped.

    It has keys of its own: keys remember that a vault did not open, and requests of the service
    must not depend on what this thread has tried at the start."""

    def __init__(
        self, home: str, open_keys: Callable[[], SessionKeys], *, every_s: float = _EVERY_S
    ) -> None:
        self._directory, self._open_keys, self._every_s = audit_directory(home), open_keys, every_s
        self._keys = open_keys()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cellwall-text-index", daemon=True)
        self._rested_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and wait a moment; a chunk that was begun is built anew later."""
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._keys.close()

    def _work(self) -> None:
        repaired_s = -_REPAIR_EVERY_S
        while not self._stop.is_set():
            try:
                if time.monotonic() - repaired_s >= _REPAIR_EVERY_S:
                    repaired_s = time.monotonic()
                    self._repair()
                self._rested_s = time.thread_time()
                update_text_index(self._directory, self._keys, rest=self._rest)
            except IndexingStopped:
                return
            except CellwallError as error:  # searches scan meanwhile
                _log.warning("the text of the audit log was not indexed: %s", error.code)
            except OSError as error:
                _log.warning("the text of the audit log was not indexed: %s", type(error).__name__)
            self._stop.wait(self._every_s)

    def _repair(self) -> None:
        self._keys.close()
        self._keys = self._open_keys()  # the vault may open by now
        remove_erased(self._directory, self._keys)
        remove_damaged(self._directory, self._keys)

    def _rest(self) -> None:
        worked_s = time.thread_time() - self._rested_s
        if self._stop.wait(worked_s * _REST_PER_WORK):
            raise IndexingStopped
        self._rested_s = time.thread_time()
