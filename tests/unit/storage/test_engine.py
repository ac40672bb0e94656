"""The database file is private, what was acknowledged survives kill -9, and no error tells more
than it should."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from cellwall.core.errors import StorageError
from cellwall.storage.engine import Database, StorageSettings, blocking_engine
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store, open_store
from databases import in_store
from unit.storage import records

TESTS = Path(__file__).parents[2]
ACKNOWLEDGED = 30


@pytest.mark.requirement("SRV-4")
@pytest.mark.slow
def test_kill_9_during_writes_loses_no_acknowledged_user(settings):
    program = subprocess.Popen(
        [sys.executable, "-m", "unit.storage.writing", settings.home, settings.url],
        stdout=subprocess.PIPE,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert program.stdout is not None
    names = [program.stdout.readline().decode().strip() for _ in range(ACKNOWLEDGED)]
    os.kill(program.pid, signal.SIGKILL)
    names += program.stdout.read().decode().splitlines()
    program.stdout.close()
    assert program.wait(60) == -signal.SIGKILL
    assert all(names)

    async def stored(store: Store) -> set[str]:
        return {each.name for each in await store.list_users(limit=100_000)}

    found = in_store(settings, stored)
    assert set(names) <= found
    assert len(found) <= len(names) + 3  # at most one more of each task was not acknowledged


@pytest.mark.requirement("SRV-4")
def test_the_file_and_its_journal_are_private_whatever_the_umask(state_home):
    made = StorageSettings(home=state_home)
    before = os.umask(0)
    try:
        migrate(made)

        async def modes(store: Store) -> dict[str, int]:
            await store.add_user(records.user())
            found = [each for each in os.listdir(state_home) if each.startswith("cellwall.db")]
            return {each: stat.S_IMODE(os.stat(f"{state_home}/{each}").st_mode) for each in found}

        assert in_store(made, modes) == {
            "cellwall.db": 0o600,
            "cellwall.db-wal": 0o600,
            "cellwall.db-shm": 0o600,
        }
    finally:
        os.umask(before)


@pytest.mark.requirement("SRV-4")
@pytest.mark.parametrize("how", ["readable", "linked", "symlink", "folder"])
def test_a_file_that_others_can_reach_is_refused(state_home, tmp_path, how):
    made = StorageSettings(home=state_home)
    migrate(made)
    match how:
        case "readable":
            os.chmod(made.path, 0o640)
        case "linked":
            os.link(made.path, f"{state_home}/other")
        case "symlink":
            os.rename(made.path, f"{state_home}/real")
            os.symlink(f"{state_home}/real", made.path)
        case "folder":
            os.unlink(made.path)
            os.mkdir(made.path)
    with pytest.raises(StorageError) as caught:
        Database(made)
    assert caught.value.code in {"CW-STORAGE-UNSAFE", "CW-STORAGE-UNUSABLE"}
    assert state_home not in str(caught.value)


@pytest.mark.requirement("ERR-1")
def test_a_server_that_cannot_be_reached_is_an_error_without_its_address(state_home):
    url = "postgresql://cellwall@/cellwall?host=%2Fno%2Fsuch%2Ffolder"

    async def go() -> None:
        async with open_store(StorageSettings(home=state_home, url=url, timeout_s=60.0)):
            pass

    with pytest.raises(StorageError) as caught:
        anyio.run(go)
    assert caught.value.code == "CW-STORAGE-UNUSABLE"
    assert "such" not in str(caught.value)
    assert "/no/such/folder" in caught.value.detail


def test_a_writer_waits_a_bounded_time_for_another(state_home):
    made = StorageSettings(home=state_home, timeout_s=0.2)
    migrate(made)
    holder = sqlite3.connect(made.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def go(store: Store) -> None:
        with pytest.raises(StorageError) as caught:
            await store.add_user(records.user())
        assert caught.value.code == "CW-STORAGE-BUSY"
        assert await store.list_users() == ()  # a reader does not wait
        holder.execute("ROLLBACK")

    in_store(made, go)
    holder.close()

    async def again(store: Store) -> None:
        await store.add_user(records.user())

    in_store(replace(made, timeout_s=60.0), again)


def test_opening_the_database_again_keeps_the_lock_of_a_writer(state_home):
    """POSIX locks end when a process closes any descriptor of the file; so none is opened."""
    made = StorageSettings(home=state_home)
    migrate(made)
    holder = sqlite3.connect(made.path, isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")  # whose lock is on the database file itself
    holder.execute("BEGIN IMMEDIATE")
    Database(made)
    script = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    )
    words = [sys.executable, "-c", script, made.path]
    other = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert "database is locked" in other.stderr
    with open(made.path, "rb"):
        pass  # the control: this is what must not happen
    other = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert other.stderr == ""
    holder.close()


@pytest.mark.requirement("ERR-1")
def test_a_damaged_file_is_an_error_and_not_an_empty_database(state_home):
    made = StorageSettings(home=state_home)
    migrate(made)
    for journal in ("-wal", "-shm"):
        Path(made.path + journal).unlink(missing_ok=True)
    Path(made.path).write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError) as caught:
        in_store(made, lambda store: store.list_users())
    assert caught.value.code.startswith("CW-STORAGE")


def test_the_revision_is_read_again_after_the_connection_was_lost(migrated_postgres, state_home):
    made = StorageSettings(home=state_home, url=migrated_postgres)

    async def go(store: Store) -> None:
        before = await store.revision()
        engine = blocking_engine(made)
        with engine.begin() as connection:
            ended = connection.execute(
                text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            ).scalar_one()
        engine.dispose()
        assert ended >= 1
        assert await store.revision() == before
        await store.revoke_everybody()
        assert await store.revision() == before + 1

    in_store(made, go)


def test_settings_become_arguments_of_the_driver(state_home):
    url = "postgresql://cellwall@db.example.com:5433/cw?sslmode=verify-full"
    made = StorageSettings(home=state_home, url=url, password_file="/etc/pgpass", timeout_s=7.0)
    found = made.driver_url(is_async=True)
    assert (found.drivername, found.host, found.port) == (
        "postgresql+psycopg",
        "db.example.com",
        5433,
    )
    assert made.arguments() == {
        "connect_timeout": 7,
        "tcp_user_timeout": 7000,
        "application_name": "cellwall",
        "options": "-c statement_timeout=7000 -c lock_timeout=7000 "
        "-c idle_in_transaction_session_timeout=4000",
        "passfile": "/etc/pgpass",
    }
