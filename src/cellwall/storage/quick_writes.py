"""Transactions of one statement on SQLite, on a connection of their own, in one call of a thread.

SQLAlchemy's driver for asyncio calls its thread for each step of a transaction: begin, cursor,
statement, close, commit. Creating a sandbox and ending it took 21 such calls. PostgreSQL needs no
thread, and its transactions stay with SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from cellwall.storage import failures

if TYPE_CHECKING:
    from cellwall.core.types import Json

SQLITE_SETTINGS = (
    "PRAGMA synchronous = FULL",  # NORMAL may lose the last commits in a power cut
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",  # no functions with side effects from a forged schema
    "PRAGMA secure_delete = ON",
)
"""Of every connection that writes."""


class SqliteWriter:
    """Each call is a transaction: SQLite begins and commits one around a statement by itself."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._connection: sqlite3.Connection | None = None
        self._lock = anyio.Lock()

    async def execute(self, statement: str, values: Sequence[Json]) -> int:
        """The number of changed rows; durable when this returns."""
        # Shielded: a cancelled commit would be neither done nor undone for its caller. The wait for
        # the lock of another process ends by itself.
        with failures.mapped_errors(), anyio.CancelScope(shield=True):
            async with self._lock:
                return await anyio.to_thread.run_sync(partial(self._execute, statement, values))
        raise AssertionError  # a shielded scope swallows nothing

    def _execute(self, statement: str, values: Sequence[Json]) -> int:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection.execute(statement, values).rowcount

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{Path(self._path).as_uri()}?mode=rw",  # a removed file is not made again, open to all
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,
            check_same_thread=False,  # any worker thread, one at a time
        )
        try:
            for statement in SQLITE_SETTINGS:
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
