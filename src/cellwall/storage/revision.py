"""Reads the revision: one number, for every request, so without SQLAlchemy's 2 ms around it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Protocol

import anyio
import psycopg
from psycopg.conninfo import make_conninfo

from cellwall.storage import failures

_QUERY = "SELECT revision FROM state"
_TIMEOUT_S = 1.0


class RevisionReader(Protocol):
    """A connection of its own to the database."""

    async def read(self) -> int: ...

    async def close(self) -> None: ...


class SqliteRevision:
    """In the calling thread, since a switch to another takes ten times as long as the query; a
    reader of a write-ahead log waits for no writer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def read(self) -> int:
        try:
            if self._connection is None:
                uri = f"{Path(self._path).as_uri()}?mode=ro"
                self._connection = sqlite3.connect(
                    uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None
                )
            row = self._connection.execute(_QUERY).fetchone()
        except sqlite3.Error as error:
            raise failures.unusable(str(error)) from None
        return _read_row(row)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresRevision:
    """One connection in autocommit mode, with a prepared statement; a broken one is replaced."""

    def __init__(self, url: str, arguments: dict[str, str | int]) -> None:
        self._conninfo = make_conninfo(url, **arguments)
        self._connection: psycopg.AsyncConnection[tuple[int]] | None = None
        self._lock = anyio.Lock()

    async def read(self) -> int:
        # Shielded like every transaction: a cancelled query would leave the connection unusable.
        with anyio.CancelScope(shield=True):
            async with self._lock:
                return await self._read_locked()
        raise AssertionError  # a shielded scope swallows nothing

    async def _read_locked(self) -> int:
        try:
            return await self._query()
        except psycopg.OperationalError:
            await self.close()  # a restart of the server, perhaps: once more
        try:
            return await self._query()
        except psycopg.Error as error:
            await self.close()
            raise failures.unusable(str(error)) from None

    async def _query(self) -> int:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True
            )
        cursor = await self._connection.execute(_QUERY, prepare=True)
        return _read_row(await cursor.fetchone())

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with anyio.CancelScope(shield=True):
                await connection.close()


def _read_row(row: tuple[int] | None) -> int:
    if row is None:
        raise failures.broken("the state row is missing")
    return int(row[0])
