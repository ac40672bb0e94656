"""Ends of sessions, until the database has them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from cellwall.core.errors import StorageError
from cellwall.core.messages import SessionStore

_log = logging.getLogger("cellwall.http")


@dataclass(frozen=True, slots=True)
class _UnsavedEnd:
    is_lost: bool
    afterwards: Callable[[], Awaitable[None]] | None


class EndedSessions:
    """A session whose end is not stored would count against its owner, so `save` is repeated."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._unsaved: dict[str, _UnsavedEnd] = {}
        self._saving = anyio.Lock()

    def add(
        self,
        session_id: str,
        *,
        is_lost: bool = False,
        afterwards: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`is_lost`: it ended because this host may be cut off, which its owner is told.
        `afterwards`: called once the session has ended here; not where another host has it."""
        self._unsaved[session_id] = _UnsavedEnd(is_lost, afterwards)

    async def save(self) -> None:
        """Store all ends that are not stored yet; a failure is left to the next call.

        One call at a time: the second of two that store the same end could come after the session
        was started again here, and would end it.
        """
        async with self._saving:
            try:
                for name, end in list(self._unsaved.items()):
                    if end.is_lost:
                        is_ours = await self._store.lose_session(name, now_s=time.time())
                    else:
                        is_ours = await self._store.end_session(name, now_s=time.time())
                    if self._unsaved.get(name) is end:
                        del self._unsaved[name]
                    if is_ours and end.afterwards is not None:
                        await end.afterwards()
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
