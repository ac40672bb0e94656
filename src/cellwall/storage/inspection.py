"""What a database or a backup holds, and whether it is intact."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.pool import NullPool, StaticPool

from cellwall.storage import failures
from cellwall.storage.engine import (
    APPLICATION_ID,
    StorageSettings,
    blocking_engine,
    prepare_sqlite,
    reading,
    sqlite_url,
)
from cellwall.storage.models import StateRow
from cellwall.storage.schema import (
    REVISIONS,
    SchemaState,
    migrate_engine,
    read_revision,
    schema_state,
)
from cellwall.storage.tables import TABLES

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_VERSION_BYTES = slice(18, 20)
_ROLLBACK_JOURNAL = bytes([1, 1])
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master"
_FILE_TIMEOUT_S = 60.0

SchemaText = frozenset[tuple[str, str, str, str | None]]
"""Every object of a SQLite schema with the statement that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseReport:
    """What a database holds, and what is wrong with it."""

    kind: str
    revision: str
    rows: dict[str, int]
    problems: tuple[str, ...] = ()


def open_file(path: str, *, is_read_only: bool = False) -> sqlite3.Connection:
    """A SQLite file, without SQLAlchemy."""
    mode = "?mode=ro&immutable=1" if is_read_only else ""
    return sqlite3.connect(
        f"{Path(path).as_uri()}{mode}", uri=True, timeout=_FILE_TIMEOUT_S, isolation_level=None
    )


@contextmanager
def engine_of(settings: StorageSettings) -> Iterator[Engine]:
    """The database of these settings."""
    engine = blocking_engine(settings)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def engine_of_file(path: str) -> Iterator[Engine]:
    """A SQLite file that is private already."""
    engine = create_engine(sqlite_url(path), poolclass=NullPool, hide_parameters=True)
    prepare_sqlite(engine)
    try:
        yield engine
    finally:
        engine.dispose()


def check(settings: StorageSettings) -> DatabaseReport:
    """Schema, integrity and row counts."""
    kind = "sqlite" if settings.is_sqlite else "postgresql"
    if settings.is_missing:
        problem = failures.no_schema().message
        return DatabaseReport(kind=kind, revision="", rows={}, problems=(problem,))
    with failures.mapped_errors(), engine_of(settings) as engine, reading(engine) as connection:
        revision = read_revision(connection)
        state = schema_state(revision)
        refusal = state.refusal()
        problems: tuple[str, ...] = () if refusal is None else (refusal.message,)
        if settings.is_sqlite:
            problems += tuple(_find_damage(connection))
        rows = _count(connection) if state is SchemaState.CURRENT else {}
        if rows and rows[StateRow.__tablename__] != 1:
            problems += ("the state row is missing",)
    return DatabaseReport(kind=kind, revision=revision or "", rows=rows, problems=problems)


def _find_damage(connection: Connection) -> Iterator[str]:
    if connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar() != "ok":
        yield "the file is damaged"
    if connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
        yield "a row refers to one that does not exist"


def _count(connection: Connection) -> dict[str, int]:
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in TABLES
    }


def inspect_backup(path: str) -> str:
    """The version of an intact backup; raises `StorageError` for any other file.

    The file may be forged. It is opened read-only, nothing in its schema is trusted, and the schema
    must be exactly that of its version: no trigger, no view, no further table.
    """
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header.startswith(_MAGIC):
        raise failures.no_backup("it is not a database file")
    if header[_VERSION_BYTES] != _ROLLBACK_JOURNAL:
        # The newest rows of such a file are in its journal.
        raise failures.no_backup("it is the file of a database in use")
    try:
        with closing(open_file(path, is_read_only=True)) as database:
            return _inspect(database)
    except sqlite3.Error as error:
        raise failures.no_backup("it is damaged", str(error)) from None


def _inspect(database: sqlite3.Connection) -> str:
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise failures.no_backup("it is not a database of Cellwall")
    if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise failures.no_backup("it is damaged")
    found = database.execute("SELECT version_num FROM alembic_version").fetchall()
    if len(found) != 1 or found[0][0] not in REVISIONS:
        raise failures.new_schema("the backup")
    revision = str(found[0][0])
    if frozenset(database.execute(_SCHEMA)) != _schema_of(revision):
        raise failures.no_backup("its schema is not that of its version")
    if database.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise failures.no_backup("a row refers to one that does not exist")
    if database.execute("SELECT count(*) FROM state").fetchone() != (1,):
        raise failures.no_backup("its state row is missing")
    return revision


@cache
def _schema_of(revision: str) -> SchemaText:
    """The schema that the migrations make, in memory."""
    engine = create_engine("sqlite+pysqlite://", poolclass=StaticPool)
    prepare_sqlite(engine)
    try:
        migrate_engine(engine, to=revision)
        with engine.connect() as connection:
            return frozenset(tuple(row) for row in connection.exec_driver_sql(_SCHEMA))
    finally:
        engine.dispose()
