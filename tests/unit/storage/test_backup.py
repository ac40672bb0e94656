"""Backup while in use, and restore: whole or not at all, from a true backup only (SRV-4)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.core.accounts import (
    Budget,
    Charge,
    ExternalIdentity,
    Meter,
    Passkey,
    PendingFlow,
    Rotation,
)
from cellwall.core.errors import BadInput, StorageError
from cellwall.storage import backup as backup_module
from cellwall.storage.backup import backup, restore
from cellwall.storage.engine import StorageSettings
from cellwall.storage.inspection import check
from cellwall.storage.schema import HEAD
from cellwall.storage.store import Store
from databases import in_store
from unit.storage import records
from unit.storage.records import NOW_S

pytestmark = pytest.mark.requirement("SRV-4")

ANN, BLUE = records.user("ann", password_hash="$argon2id$é"), records.team("blue")
SESSION, APPROVAL = records.session(ANN.id, BLUE.id), records.approval(ANN.id)
FLOW = PendingFlow(flow_hash=b"\x00\xffflow", kind="oidc", sealed=b"x", expires_s=NOW_S + 60)
IDENTITY = ExternalIdentity(
    issuer="https://login.example", subject="é", user_id=ANN.id, is_managed=True, created_s=NOW_S
)
PASSKEY = Passkey(
    id="pky_1", credential_id=b"\x00\xff", user_id=ANN.id, name="laptop", public_key=b"\xff\x00",
    sign_count=7, created_s=NOW_S, used_s=None,
)  # fmt: skip
RUNS = Meter("user", ANN.id, "runs")
BUDGET = Budget(meter=RUNS, limit=9.0, period_s=3600.0)


async def fill(store: Store) -> None:
    await store.add_user(ANN)
    await store.add_team(BLUE)
    await store.add_member(BLUE.id, ANN.id)
    await store.add_session(SESSION, max_live=5)
    await store.add_approval(APPROVAL)
    await store.set_budget(BUDGET)
    await store.reserve([Charge(budget=BUDGET, amount=2.5, period_start_s=NOW_S)])
    await store.add_family(records.family(ANN.id), token_hash=b"refresh", generation=1)
    await store.add_service_token(records.token(ANN.id, b"\x00\xfftoken"), generation=1)
    await store.add_signing_key(records.signing_key(), others_until_s=NOW_S)
    await store.add_link(records.link(b"link", ANN.id))
    await store.add_flow(FLOW, max_live=5, now_s=NOW_S)
    await store.add_identity(IDENTITY, new_user=None)
    await store.add_passkey(PASSKEY, max_per_user=5)


async def is_restored(store: Store) -> None:
    """Everything is there, and no credential but the password counts."""
    assert await store.list_users() == (ANN,)
    assert await store.list_teams() == (BLUE,)
    assert await store.teams_of(ANN.id) == {BLUE.id}
    assert await store.list_sessions(user_id=ANN.id, teams=frozenset()) == (SESSION,)
    assert await store.find_approval(APPROVAL.id, seen_by=records.viewer(ANN.id)) == APPROVAL
    assert await store.usage(RUNS, period_start_s=NOW_S) == 2.5
    assert (await store.rotate(b"refresh", successor=b"x", now_s=NOW_S))[0] is Rotation.UNKNOWN
    assert await store.signing_keys() == ()
    found = await store.find_service_token(b"\x00\xfftoken")
    assert found is not None
    assert found[0].is_revoked
    used = await store.use_link(b"link", password_hash="h", now_s=NOW_S, first_owner=None)
    assert used is None
    assert await store.take_flow(FLOW.flow_hash, kind=FLOW.kind, now_s=NOW_S) is None
    assert await store.find_identity(IDENTITY.issuer, IDENTITY.subject) == IDENTITY
    assert await store.list_passkeys(ANN.id) == (PASSKEY,)


async def state(store: Store) -> tuple[int, int]:
    found = await store.access_state(user_id=ANN.id, family_id="", jti="")
    assert found is not None
    return await store.revision(), found.generation


@pytest.mark.slow
def test_a_backup_restores_everything_but_credentials(settings, tmp_path):
    file = tmp_path / "backup.db"
    in_store(settings, fill)
    before = in_store(settings, state)
    assert backup(settings, str(file)) == HEAD
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["backup.db"]

    async def change(store: Store) -> None:
        await store.add_user(records.user("late"))
        await store.revoke_everybody()

    in_store(settings, change)
    report = restore(settings, str(file))
    assert (report.problems, report.rows["users"], report.rows["sessions"]) == ((), 1, 1)
    in_store(settings, is_restored)
    # Neither goes back: a token of any time before is refused.
    revision, generation = in_store(settings, state)
    assert (revision > before[0] + 1, generation) == (True, before[1] + 2)
    assert [name for name in os.listdir(settings.home) if "backup" in name] == []


@pytest.mark.slow
def test_a_backup_of_one_kind_restores_into_the_other(settings, tmp_path, request, state_home):
    file = tmp_path / "backup.db"
    in_store(settings, fill)
    backup(settings, str(file))
    if settings.is_sqlite:
        url = request.getfixturevalue("postgres").new_url()
        other = StorageSettings(home=settings.home, url=url)
    else:
        other = StorageSettings(home=state_home)
    assert restore(other, str(file)).problems == ()  # also into one without a schema
    in_store(other, is_restored)


@pytest.mark.slow
def test_a_backup_is_consistent_while_users_are_written(settings, tmp_path):
    """Each transaction adds a user and its sign-in; a backup never has one without the other."""
    file = tmp_path / "backup.db"

    async def go(store: Store) -> None:
        is_done = anyio.Event()

        async def write() -> None:
            number = 0
            while not is_done.is_set():
                number += 1
                await store.revoke_everybody()  # the state and every user in one transaction
                if number == 3:
                    is_begun.set()

        is_begun = anyio.Event()
        for n in range(3):
            await store.add_user(records.user(f"user{n}"))
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await is_begun.wait()
            await anyio.to_thread.run_sync(backup, settings, str(file))
            is_done.set()

    in_store(settings, go)
    with sqlite3.connect(file) as copy:
        (general,) = copy.execute("SELECT generation FROM state").fetchone()
        assert copy.execute("SELECT DISTINCT generation FROM users").fetchall() == [(general,)]
    copy.close()
    assert general > 1


@pytest.mark.slow
def test_a_restore_that_fails_midway_changes_nothing(settings, tmp_path, monkeypatch):
    file = tmp_path / "backup.db"
    in_store(settings, fill)
    backup(settings, str(file))
    copied = backup_module._copy_rows

    def fail(*arguments) -> None:
        copied(*arguments)
        raise OSError("no space left")

    monkeypatch.setattr(backup_module, "_copy_rows", fail)
    before = in_store(settings, state)
    with pytest.raises(StorageError):
        restore(settings, str(file))
    assert in_store(settings, state) == before
    found = in_store(settings, lambda store: store.signing_keys())
    assert len(found) == 1


def test_a_backup_never_replaces_a_file(settings, tmp_path):
    file = tmp_path / "backup.db"
    file.write_text("precious")
    with pytest.raises(BadInput):
        backup(settings, str(file))
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == ["backup.db"]


@pytest.fixture
def file(state_home, migrated_file, tmp_path) -> Path:
    """A good backup of an empty SQLite database."""
    made = StorageSettings(home=state_home)
    shutil.copyfile(migrated_file, made.path)
    os.chmod(made.path, 0o600)
    backup(made, str(tmp_path / "backup.db"))
    return tmp_path / "backup.db"


FORGERIES = {
    "newer": ("UPDATE alembic_version SET version_num = '9999'", "CW-STORAGE-NEWER"),
    "two versions": ("INSERT INTO alembic_version VALUES ('0000')", "CW-STORAGE-NEWER"),
    "no version": ("DROP TABLE alembic_version", "CW-STORAGE-BACKUP"),
    "another program": ("PRAGMA application_id = 7", "CW-STORAGE-BACKUP"),
    "trigger": (
        "CREATE TRIGGER t AFTER INSERT ON users BEGIN DELETE FROM users; END",
        "CW-STORAGE-BACKUP",
    ),
    "view": ("CREATE VIEW v AS SELECT * FROM users", "CW-STORAGE-BACKUP"),
    "column": ("ALTER TABLE users ADD COLUMN more TEXT", "CW-STORAGE-BACKUP"),
    "table": ("CREATE TABLE more (a)", "CW-STORAGE-BACKUP"),
    "no state": ("DELETE FROM state", "CW-STORAGE-BACKUP"),
    "counter": ("UPDATE state SET generation = 9223372036854775807", "CW-STORAGE-BACKUP"),
    "no counter": ("UPDATE state SET revision = 'x'", "CW-STORAGE-BACKUP"),
    "orphan": ("INSERT INTO sign_in_links VALUES (x'00', 'usr_none', 1.0)", "CW-STORAGE-BACKUP"),
    "in use": ("PRAGMA journal_mode = WAL", "CW-STORAGE-BACKUP"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_file_that_is_no_true_backup_is_refused(file, state_home, name):
    statement, code = FORGERIES[name]
    made = StorageSettings(home=state_home)
    assert restore(made, str(file)).problems == ()  # the control: it is a good one so far
    forged = sqlite3.connect(file, isolation_level=None)
    forged.execute(statement)
    forged.close()
    in_store(made, lambda store: store.add_user(ANN))
    with pytest.raises(StorageError) as caught:
        restore(made, str(file))
    assert caught.value.code == code
    assert str(file.parent) not in str(caught.value)
    assert in_store(made, lambda store: store.list_users()) == (ANN,)


@pytest.mark.parametrize("how", ["empty", "text", "torn", "flipped", "folder", "missing"])
def test_a_damaged_file_is_refused(file, state_home, how):
    made = StorageSettings(home=state_home)
    content = file.read_bytes()
    match how:
        case "empty":
            file.write_bytes(b"")
        case "text":
            file.write_text("dear diary" * 100)
        case "torn":
            file.write_bytes(content[: len(content) // 2])
        case "flipped":
            middle = len(content) // 2 & ~4095
            file.write_bytes(content[:middle] + b"\xff" * 4096 + content[middle + 4096 :])
        case "folder":
            file.unlink()
            file.mkdir()
        case "missing":
            file.unlink()
    with pytest.raises(StorageError) as caught:
        restore(made, str(file))
    assert caught.value.code == "CW-STORAGE-BACKUP"
    assert "unchanged" in caught.value.hint


def test_the_database_itself_is_not_opened_beside_sqlite(file, state_home):
    """Closing a descriptor of the file would end the locks of a connection in this process."""
    made = StorageSettings(home=state_home)
    with pytest.raises(StorageError, match="it is the database itself"):
        restore(made, made.path)
    other = file.parent / "other"
    os.symlink(made.path, other)
    with pytest.raises(StorageError, match="it is the database itself"):
        restore(made, str(other))


def test_check_tells_the_schema_the_rows_and_what_is_wrong(settings, tmp_path):
    in_store(settings, fill)
    report = check(settings)
    kind = "sqlite" if settings.is_sqlite else "postgresql"
    assert (report.kind, report.revision, report.problems) == (kind, HEAD, ())
    assert (report.rows["users"], report.rows["refresh_tokens"]) == (1, 1)
    missing = replace(settings, home=str(tmp_path), url="")
    assert check(missing).problems == ("there is no database yet",)
    assert os.listdir(tmp_path) == []


_DIES = """
import sys, time
from cellwall.storage.drafts import private_draft
with private_draft(sys.argv[1]) as path:
    for side in ("", "-wal", "-journal"):
        open(path + side, "ab").write(b"hash of a password")
    print("open", flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
def test_the_next_backup_removes_what_a_killed_one_has_left(sqlite_settings, tmp_path):
    def begin() -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [sys.executable, "-c", _DIES, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert started.stdout is not None
        assert started.stdout.readline() == b"open\n"
        return started

    (tmp_path / ".cellwall-backup.not-ours").write_text("x")
    killed = begin()
    killed.kill()
    killed.communicate()
    assert len(os.listdir(tmp_path)) == 4  # the control
    with begin() as running:
        backup(sqlite_settings, str(tmp_path / "one.db"))
        # Of a backup under way nothing is removed.
        assert len(os.listdir(tmp_path)) == 5
        running.kill()
    backup(sqlite_settings, str(tmp_path / "two.db"))
    assert sorted(os.listdir(tmp_path)) == [".cellwall-backup.not-ours", "one.db", "two.db"]
