"""Sessions are stored by one statement: within their number, durably, and with the same errors."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from functools import partial

import anyio
import pytest

from cellwall.core.errors import StorageError
from cellwall.storage.quick_writes import SqliteWriter
from cellwall.storage.store import Store, open_store
from databases import in_store
from unit.storage import records
from unit.storage.records import NOW_S
from unit.storage.test_store import race

pytestmark = pytest.mark.requirement("SRV-4")


def test_of_sessions_added_at_once_no_more_than_the_number_are_stored(settings):
    ann, bob = records.user("ann"), records.user("bob")

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        async with open_store(settings) as other:  # as another process would
            wanted = [records.session(ann.id) for _ in range(8)]
            calls = [
                partial((store, other)[index % 2].add_session, each, max_live=3)
                for index, each in enumerate(wanted)
            ]
            added = await race(calls)
            assert sorted(added) == [False] * 5 + [True] * 3
            assert await store.add_session(records.session(bob.id), max_live=3)
        stored = await store.list_sessions(user_id=ann.id, teams=frozenset())
        assert {each.id for each in stored} == {
            each.id for each, is_there in zip(wanted, added, strict=True) if is_there
        }

    in_store(settings, go)


def test_an_unknown_or_disabled_owner_gets_no_session(settings):
    ann = records.user("ann", is_disabled=True)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert not await store.add_session(records.session(ann.id), max_live=3)
        assert not await store.add_session(records.session("usr_nobody"), max_live=3)

    in_store(settings, go)


def test_a_second_session_of_one_id_or_of_no_team_is_refused_and_the_first_stays(settings):
    ann = records.user("ann")
    first = records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.add_session(first, max_live=3)
        for wrong in (replace(first, created_s=NOW_S + 1), records.session(ann.id, "team_none")):
            with pytest.raises(StorageError) as caught:
                await store.add_session(wrong, max_live=3)
            assert caught.value.code == "CW-STORAGE-BROKEN"
        assert await store.find_session(first.id, user_id=ann.id, teams=frozenset()) == first
        assert await store.end_session(first.id, now_s=NOW_S + 2)

    in_store(settings, go)


def test_a_locked_file_is_busy_and_the_next_session_is_stored(sqlite_settings):
    ann = records.user("ann")

    async def go(store: Store) -> None:
        await store.add_user(ann)
        holder = sqlite3.connect(sqlite_settings.path, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError) as caught:
                await store.add_session(records.session(ann.id), max_live=3)
            assert caught.value.code == "CW-STORAGE-BUSY"
            holder.execute("ROLLBACK")
        finally:
            holder.close()
        assert await store.add_session(records.session(ann.id), max_live=3)

    in_store(replace(sqlite_settings, timeout_s=0.05), go)


def test_a_removed_file_is_not_made_again(tmp_path):
    path = tmp_path / "cellwall.db"

    async def go() -> None:
        writer = SqliteWriter(str(path), timeout_s=1.0)
        with pytest.raises(StorageError) as caught:
            await writer.execute("CREATE TABLE sessions (id)", ())
        assert caught.value.code == "CW-STORAGE-UNUSABLE"
        await writer.close()

    anyio.run(go)
    assert os.listdir(tmp_path) == []


def test_a_cancelled_caller_finds_its_session_stored_or_not_and_the_writer_works(sqlite_settings):
    ann = records.user("ann")
    session = records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        with anyio.CancelScope() as scope:
            scope.cancel()
            assert await store.add_session(session, max_live=3)  # shielded: done as a whole
        found = await store.find_session(session.id, user_id=ann.id, teams=frozenset())
        assert found == session
        assert await store.end_session(session.id, now_s=NOW_S + 1)

    in_store(sqlite_settings, go)


def test_its_connection_flushes_each_commit_and_checks_keys_as_all_others(sqlite_settings):
    async def go(store: Store) -> list[int]:
        await store.end_session("ses_none", now_s=NOW_S)  # connects
        writer = store._database.sqlite_writer
        assert writer is not None
        assert writer._connection is not None
        names = ("synchronous", "foreign_keys", "trusted_schema", "secure_delete")
        found = [writer._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
        async with store._database.write() as connection:
            others = [
                (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in names
            ]
        assert found == others
        return found

    assert in_store(sqlite_settings, go) == [2, 1, 0, 1]  # 2: FULL
