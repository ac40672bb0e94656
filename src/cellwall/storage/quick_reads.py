"""Queries of every request, on a connection of their own: SQLAlchemy takes 2 ms around each.

Whatever authenticates a request is one statement that also returns the revision, so that an unseen
token costs one round trip and the caller knows as of which revision the answer holds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
import psycopg
from psycopg.conninfo import make_conninfo

from cellwall.core.accounts import AccessState, ServiceToken, User
from cellwall.storage import failures

_TIMEOUT_S = 1.0
_REVISION = "SELECT revision FROM state"
# `?` is the parameter of SQLite; `_postgres` writes the same for psycopg. The teams are a
# subquery that makes one text: ids contain no comma.
_STATE = """
state.revision, state.generation,
users.id, users.name, users.role, users.password_hash, users.is_disabled, users.generation,
users.created_s,
(SELECT group_concat(team_id, ',') FROM team_members WHERE team_members.user_id = users.id)
"""
_BY_ACCESS_TOKEN = f"""
SELECT {_STATE},
EXISTS (SELECT 1 FROM refresh_families WHERE refresh_families.id = ?
        AND refresh_families.user_id = users.id AND NOT refresh_families.is_revoked),
EXISTS (SELECT 1 FROM revoked_tokens WHERE revoked_tokens.jti = ?)
FROM state LEFT JOIN users ON users.id = ?
"""  # noqa: S608  # no value is part of the text
_BY_SERVICE_TOKEN = f"""
SELECT {_STATE},
tokens.id, tokens.user_id, tokens.name, tokens.token_hash, tokens.scopes, tokens.created_s,
tokens.expires_s, tokens.is_revoked
FROM state LEFT JOIN service_tokens AS tokens ON tokens.token_hash = ?
LEFT JOIN users ON users.id = tokens.user_id
"""  # noqa: S608  # constants; the token's hash is a parameter


class QuickReader(Protocol):
    """A connection that only reads single rows."""

    async def fetch(self, query: str, values: Sequence[str | bytes] = ()) -> tuple[Any, ...]:
        """The row; every query has exactly one, that of the state."""

    async def close(self) -> None: ...


class SqliteReader:
    """In the calling thread, since a switch to another takes ten times as long as the query; a
    reader of a write-ahead log waits for no writer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def fetch(self, query: str, values: Sequence[str | bytes] = ()) -> tuple[Any, ...]:
        try:
            if self._connection is None:
                uri = f"{Path(self._path).as_uri()}?mode=ro"
                self._connection = sqlite3.connect(
                    uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None
                )
            row = self._connection.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise failures.unusable(str(error)) from None
        return _require_row(row)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresReader:
    """One connection in autocommit mode, with prepared statements; a broken one is replaced."""

    def __init__(self, url: str, arguments: dict[str, str | int]) -> None:
        self._conninfo = make_conninfo(url, **arguments)
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = anyio.Lock()

    async def fetch(self, query: str, values: Sequence[str | bytes] = ()) -> tuple[Any, ...]:
        # Shielded like every transaction: a cancelled query would leave the connection unusable.
        with anyio.CancelScope(shield=True):
            async with self._lock:
                return await self._fetch_locked(_postgres(query), values)
        raise AssertionError  # a shielded scope swallows nothing

    async def _fetch_locked(self, query: str, values: Sequence[str | bytes]) -> tuple[Any, ...]:
        try:
            return await self._query(query, values)
        except psycopg.OperationalError:
            await self.close()  # a restart of the server, perhaps: once more
        try:
            return await self._query(query, values)
        except psycopg.Error as error:
            await self.close()
            raise failures.unusable(str(error)) from None

    async def _query(self, query: str, values: Sequence[str | bytes]) -> tuple[Any, ...]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True
            )
        cursor = await self._connection.execute(query.encode(), values, prepare=True)
        return _require_row(await cursor.fetchone())

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with anyio.CancelScope(shield=True):
                await connection.close()


def _postgres(query: str) -> str:
    return query.replace("?", "%s").replace("group_concat", "string_agg")


def _require_row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise failures.broken("the state row is missing")
    return row


async def read_revision(reader: QuickReader) -> int:
    """The revision, which every process sees at once."""
    return int((await reader.fetch(_REVISION))[0])


async def read_access_state(
    reader: QuickReader, *, user_id: str, family_id: str, jti: str
) -> AccessState | None:
    """The state that decides about an access token; None without such a user."""
    row = await reader.fetch(_BY_ACCESS_TOKEN, (family_id, jti, user_id))
    return _state_of(row[:10], is_family_live=bool(row[10]), is_token_revoked=bool(row[11]))


async def read_service_token(
    reader: QuickReader, token_hash: bytes
) -> tuple[ServiceToken, AccessState] | None:
    """A service token with the state of its user, by the unique index of its hash."""
    row = await reader.fetch(_BY_SERVICE_TOKEN, (token_hash,))
    state = _state_of(row[:10], is_family_live=False, is_token_revoked=False)
    token_id, user_id, name, found_hash, scopes, created_s, expires_s, is_revoked = row[10:]
    if token_id is None or state is None:
        return None
    token = ServiceToken(
        id=token_id,
        user_id=user_id,
        name=name,
        token_hash=bytes(found_hash),
        scopes=tuple(json.loads(scopes) if isinstance(scopes, str) else scopes),
        created_s=created_s,
        expires_s=expires_s,
        is_revoked=bool(is_revoked),
    )
    return token, state


def _state_of(
    row: tuple[Any, ...], *, is_family_live: bool, is_token_revoked: bool
) -> AccessState | None:
    revision, generation, user_id, name, role, password_hash, is_disabled, own, created_s, teams = (
        row
    )
    if user_id is None:
        return None
    return AccessState(
        revision=revision,
        user=User(
            id=user_id,
            name=name,
            role=role,
            password_hash=password_hash,
            is_disabled=bool(is_disabled),
            generation=own,
            created_s=created_s,
        ),
        teams=frozenset(teams.split(",")) if teams else frozenset(),
        generation=generation,
        is_family_live=is_family_live,
        is_token_revoked=is_token_revoked,
    )
