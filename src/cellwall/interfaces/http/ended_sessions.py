"""Ends of sessions, until the database has them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import anyio

from cellwall.core.errors import StorageError
from cellwall.core.messages import SessionStore

_log = logging.getLogger("cellwall.http")


class EndedSessions:
    """A session whose end is not stored would count against its owner, so `save` is repeated."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._unsaved: set[str] = set()

    def add(self, *session_ids: str) -> None:
        self._unsaved.update(session_ids)

    async def save(self) -> None:
        """Store all ends that are not stored yet; a failure is left to the next call."""
        try:
            for name in list(self._unsaved):
                await self._store.end_session(name, now_s=time.time())
                self._unsaved.discard(name)
        except StorageError as error:
            _log.warning("the end of a session was not stored: %s", error.code)

    async def save_beside(self, end: Callable[[], Awaitable[None]]) -> None:
        """`save` while `end` ends the sandbox: both wait for the disk, in threads."""
        problem: Exception | None = None
        async with anyio.create_task_group() as saving:
            saving.start_soon(self.save)
            try:
                await end()
            except Exception as error:  # noqa: BLE001  # raised below, not as a group
                problem = error
        if problem is not None:
            raise problem
