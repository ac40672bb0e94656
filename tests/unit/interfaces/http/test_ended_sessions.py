"""The end of a session is stored once: it may have been started again by the time of a second one."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from cellwall.core.errors import StorageError
from cellwall.interfaces.http.ended_sessions import EndedSessions

pytestmark = pytest.mark.requirement("SRV-6")


class Sessions:
    """The database, in which each write waits for its turn."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.ended: list[str] = []
        self.is_away = False
        self.goes_on = anyio.Event()

    async def lose_session(self, session_id: str, **_: Any) -> bool:
        await self._write(session_id, self.lost)
        return True

    async def end_session(self, session_id: str, **_: Any) -> bool:
        await self._write(session_id, self.ended)
        return True

    async def _write(self, session_id: str, into: list[str]) -> None:
        await self.goes_on.wait()
        if self.is_away:
            raise StorageError("the database is away")
        into.append(session_id)


def test_two_calls_at_once_store_each_end_once():
    async def main() -> tuple[Sessions, list[str]]:
        store, told = Sessions(), list[str]()
        ends = EndedSessions(store)  # type: ignore[arg-type]  # what it uses of a store

        async def tell() -> None:
            told.append("two")

        async with anyio.create_task_group() as tasks:
            ends.add("one", is_lost=True)
            tasks.start_soon(ends.save)
            tasks.start_soon(ends.save)
            await anyio.wait_all_tasks_blocked()
            ends.add("two", afterwards=tell)  # the control: the second call has something to do
            store.goes_on.set()
        await ends.save()
        return store, told

    store, told = anyio.run(main)
    assert (store.lost, store.ended, told) == (["one"], ["two"], ["two"])


def test_an_end_that_could_not_be_stored_is_stored_by_the_next_call():
    async def main() -> list[list[str]]:
        store, seen = Sessions(), []
        store.goes_on.set()
        ends = EndedSessions(store)  # type: ignore[arg-type]  # as above
        ends.add("one")
        for store.is_away in (True, False, False):
            await ends.save()
            seen.append(list(store.ended))
        return seen

    assert anyio.run(main) == [[], ["one"], ["one"]]
