"""Backup, restore and check.

A backup is one SQLite file, whatever database it was made from: it can be opened and checked
anywhere, and restored into either kind, which is also the way from SQLite to PostgreSQL.

A restore goes:
  (1) copy the file into the state folder, so that it cannot change while it is checked;
  (2) it is an intact backup, with exactly the schema of a known version;
  (3) migrate the copy to the newest version, and the database as well;
  (4) in one transaction: replace all rows, and end every token. A kill leaves the old rows.
An old backup would bring back revoked tokens, and keys that may have been stolen since: signing
keys, sign-ins and links are dropped, service tokens are revoked, and generations only increase.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import closing, suppress

from sqlalchemy import Connection, delete, insert, select, text, update

from cellwall.core.errors import BadInput
from cellwall.storage import failures
from cellwall.storage.drafts import private_draft
from cellwall.storage.engine import StorageSettings, reading
from cellwall.storage.fleet_models import JoinTokenRow
from cellwall.storage.inspection import (
    DatabaseReport,
    check,
    engine_of,
    engine_of_file,
    inspect_backup,
    open_file,
)
from cellwall.storage.models import (
    FamilyRow,
    FlowRow,
    LinkRow,
    RefreshTokenRow,
    ServiceTokenRow,
    SigningKeyRow,
    StateRow,
)
from cellwall.storage.schema import migrate, migrate_engine, read_revision, schema_state
from cellwall.storage.tables import TABLES

_BATCH_ROWS = 500
_MAX_COUNT = 1 << 31


def backup(settings: StorageSettings, target: str) -> str:
    """Write a consistent copy to a new file of mode 0600; writers go on meanwhile.

    Returns the version of the schema.
    """
    folder = os.path.dirname(os.path.abspath(target))
    if os.path.lexists(target):
        raise _target_exists()
    with failures.mapped_errors(), private_draft(folder) as draft:
        _require_current(settings)
        if settings.is_sqlite:
            with closing(open_file(settings.path)) as source, closing(open_file(draft)) as copy:
                source.backup(copy)  # all pages in one read transaction
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a journal
        else:
            _export(settings, draft)
        revision = inspect_backup(draft)
        _sync(draft)
        try:
            os.link(draft, target)  # which, unlike a rename, never replaces a file
        except FileExistsError:
            raise _target_exists() from None
        _sync(folder)
    return revision


def restore(settings: StorageSettings, source: str) -> DatabaseReport:
    """Replace the rows of the database by those of a backup, and end every token."""
    with failures.mapped_errors(), private_draft(settings.home) as draft:
        _copy_backup(source, settings.path, draft)  # (1)
        inspect_backup(draft)  # (2)
        with engine_of_file(draft) as copy, engine_of(settings) as engine:
            migrate_engine(copy)  # (3)
            migrate(settings)
            with copy.connect() as old, engine.begin() as new:  # (4)
                _replace_rows(old, new)
        return check(settings)


def _require_current(settings: StorageSettings) -> None:
    if settings.is_missing:
        raise failures.no_schema()
    with engine_of(settings) as engine, reading(engine) as connection:
        refusal = schema_state(read_revision(connection)).refusal()
    if refusal is not None:
        raise refusal


def _target_exists() -> BadInput:
    return BadInput(
        "the file for the backup exists already",
        hint="Name a new file; a backup never replaces one.",
        code="CW-STORAGE-TARGET",
    )


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _export(settings: StorageSettings, draft: str) -> None:
    """Copy all rows of one snapshot into a SQLite file."""
    with engine_of_file(draft) as copy, engine_of(settings) as engine:
        migrate_engine(copy)
        snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
        with snapshot.connect() as old, copy.begin() as new:
            old.execute(text("SET TRANSACTION READ ONLY"))
            _delete_all(new)
            _copy_rows(old, new)
        with closing(open_file(draft)) as file:
            file.execute("PRAGMA journal_mode = DELETE")


def _copy_backup(source: str, path: str, draft: str) -> None:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):
        if os.path.samefile(source, path):  # never opened beside SQLite: see make_private_file
            raise failures.no_backup("it is the database itself")
    try:
        descriptor = os.open(source, flags)
    except OSError as error:
        raise failures.no_backup("it cannot be read", str(error)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise failures.no_backup("it is not a regular file")
    with open(descriptor, "rb") as file, open(draft, "r+b") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def _replace_rows(old: Connection, new: Connection) -> None:
    if new.dialect.name == "postgresql":
        names = ", ".join(table.name for table in TABLES)
        new.execute(text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
    before = new.execute(select(StateRow.revision, StateRow.generation)).one_or_none()
    _delete_all(new)
    _copy_rows(old, new)
    restored = new.execute(select(StateRow.revision, StateRow.generation)).one()
    # SQLite stores any value in any column.
    if not all(type(each) is int and 0 <= each < _MAX_COUNT for each in restored):
        raise failures.no_backup("its counters are out of range")
    for row in (RefreshTokenRow, FamilyRow, SigningKeyRow, LinkRow, FlowRow, JoinTokenRow):
        new.execute(delete(row))
    new.execute(update(ServiceTokenRow).values(is_revoked=True))
    revision, generation = (
        max(pair) + 1 for pair in zip(before or restored, restored, strict=True)
    )
    new.execute(update(StateRow).values(revision=revision, generation=generation))


def _delete_all(connection: Connection) -> None:
    for table in reversed(TABLES):
        connection.execute(delete(table))


def _copy_rows(old: Connection, new: Connection) -> None:
    for table in TABLES:
        rows = old.execution_options(yield_per=_BATCH_ROWS).execute(select(table))
        for batch in rows.mappings().partitions(_BATCH_ROWS):
            new.execute(insert(table), [dict(row) for row in batch])
