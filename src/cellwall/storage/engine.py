"""Connections to the database and its transactions.

SQLite: a private file, WAL, every commit on disk before it returns; a writing transaction takes
the lock when it begins (BEGIN IMMEDIATE), since one that starts by reading and then writes fails
when another process wrote in between. PostgreSQL: psycopg 3, READ COMMITTED; the statements are
written for that.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from cellwall.storage import failures
from cellwall.storage.quick_reads import PostgresReader, QuickReader, SqliteReader
from cellwall.storage.quick_writes import SQLITE_SETTINGS, SqliteWriter
from cellwall.storage.service_id import service_id_of

FILE_NAME = "cellwall.db"
APPLICATION_ID = 0x43574442  # "CWDB", in the header of the file
_READ_ONLY = "cellwall_read_only"
_PAUSE_S = 0.01
_MAX_IDLE_S = 4.0
"""Between two statements of a transaction. PostgreSQL keeps the locks of a client that is cut off
in the middle of one until then, and those who wait for them must not wait for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where the database is."""

    home: str
    url: str = ""
    """A PostgreSQL database; empty for the SQLite file in `home`."""
    password_file: str | None = None
    pool_size: int = 5
    timeout_s: float = 30.0

    @property
    def is_sqlite(self) -> bool:
        return not self.url

    @property
    def path(self) -> str:
        """The SQLite file."""
        return os.path.join(self.home, FILE_NAME)

    @property
    def is_missing(self) -> bool:
        """Whether there is no SQLite file; a connection would create one."""
        return self.is_sqlite and not os.path.lexists(self.path)

    def driver_url(self, *, is_async: bool) -> URL:
        """The URL for SQLAlchemy; psycopg serves both kinds."""
        if self.is_sqlite:
            return sqlite_url(self.path, is_async=is_async)
        return make_url(self.url).set(drivername="postgresql+psycopg")

    def arguments(self) -> Mapping[str, Any]:
        """Arguments of the driver."""
        if self.is_sqlite:
            return {"timeout": self.timeout_s}
        milliseconds = int(self.timeout_s * 1000)
        found: dict[str, Any] = {
            "connect_timeout": max(2, int(self.timeout_s)),
            "tcp_user_timeout": milliseconds,
            "application_name": "cellwall",
            "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} "
            f"-c idle_in_transaction_session_timeout={int(_MAX_IDLE_S * 1000)}",
        }
        if self.password_file is not None:
            found["passfile"] = self.password_file
        return found


def sqlite_url(path: str, *, is_async: bool = False) -> URL:
    """The URL of a SQLite file."""
    return URL.create("sqlite+aiosqlite" if is_async else "sqlite+pysqlite", database=path)


def make_private_file(path: str) -> None:
    """Create the file with mode 0600, or refuse one that another user can reach.

    SQLite gives its journal and its shared memory the mode of the database. An existing file is not
    opened: closing any descriptor of it ends the locks that SQLite holds in this process (POSIX
    locks, fcntl(2)), and two writers would then damage the file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise failures.unusable(str(error)) from None
    info = os.lstat(path)
    is_ours = info.st_uid == os.geteuid() and info.st_nlink == 1 and stat.S_ISREG(info.st_mode)
    if not is_ours or stat.S_IMODE(info.st_mode) & 0o077:
        raise failures.unsafe()


def enable_wal(path: str, *, timeout_s: float) -> None:
    """Switch the file to a write-ahead log, which stays so.

    Retried by hand: SQLite does not wait for a lock here, and another process may do the same.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            else:
                return
        if time.monotonic() > deadline_s:
            raise failures.busy()
        time.sleep(_PAUSE_S)


def prepare_sqlite(engine: Engine) -> None:
    """Set up each connection of a SQLite engine, and begin its transactions by hand."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:  # noqa: ANN401  # of either driver
        connection.isolation_level = None  # the driver begins no transaction of its own
        cursor = connection.cursor()
        for statement in SQLITE_SETTINGS:
            cursor.execute(statement)
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Any) -> None:  # noqa: ANN401  # SQLAlchemy's own
        is_read_only = connection.get_execution_options().get(_READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")


def blocking_engine(settings: StorageSettings) -> Engine:
    """An engine without a pool, for migrations and backups."""
    if settings.is_sqlite:
        make_private_file(settings.path)
    engine = create_engine(
        settings.driver_url(is_async=False),
        connect_args=dict(settings.arguments()),
        poolclass=NullPool,
        hide_parameters=True,  # an error must not quote hashes
    )
    if settings.is_sqlite:
        prepare_sqlite(engine)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection whose transactions only read, so that they keep no writer waiting."""
    with engine.connect() as connection:
        yield connection.execution_options(**{_READ_ONLY: True})


class Database:
    """An open database, in the event loop that uses it. Close it in the same loop."""

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        if settings.is_sqlite:
            make_private_file(settings.path)
        self._engine: AsyncEngine = create_async_engine(
            settings.driver_url(is_async=True),
            connect_args=dict(settings.arguments()),
            pool_size=settings.pool_size,
            max_overflow=0,
            pool_timeout=settings.timeout_s,
            pool_pre_ping=not settings.is_sqlite,
            # `_transaction` ends each transaction itself; another rollback waits for a thread.
            pool_reset_on_return=None if settings.is_sqlite else "rollback",
            hide_parameters=True,
        )
        if settings.is_sqlite:
            prepare_sqlite(self._engine.sync_engine)
        self.quick: QuickReader = (
            SqliteReader(settings.path)
            if settings.is_sqlite
            else PostgresReader(settings.url, dict(settings.arguments()))
        )
        self.sqlite_writer: SqliteWriter | None = (
            SqliteWriter(settings.path, timeout_s=settings.timeout_s)
            if settings.is_sqlite
            else None
        )

    @functools.cached_property
    def service_id(self) -> str:
        """Read at the first use: most commands of an operator need none."""
        return service_id_of(self.settings.home)

    async def close(self) -> None:
        await self.quick.close()
        if self.sqlite_writer is not None:
            await self.sqlite_writer.close()
        with anyio.CancelScope(shield=True):
            await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that reads."""
        async with self._transaction(is_read_only=True) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes; durable when the block is left without an exception."""
        async with self._transaction(is_read_only=False) as connection:
            yield connection

    @asynccontextmanager
    async def write_at_once(self) -> AsyncIterator[AsyncConnection]:
        """For one statement that is a transaction by itself: between a statement and its commit, a
        client of PostgreSQL that is cut off would keep the locks."""
        if self.settings.is_sqlite:
            async with self.write() as connection:
                yield connection
            return
        with failures.mapped_errors(), anyio.CancelScope(shield=True):
            async with self._engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                yield connection

    @asynccontextmanager
    async def _transaction(self, *, is_read_only: bool) -> AsyncIterator[AsyncConnection]:
        # Shielded: a cancelled commit would be neither done nor undone for its caller. Every wait
        # in here ends by itself: for a connection, for a lock, for the server (`arguments`).
        with failures.mapped_errors(), anyio.CancelScope(shield=True):
            async with self._engine.connect() as connection:
                await connection.execution_options(**{_READ_ONLY: is_read_only})
                async with connection.begin():
                    yield connection
