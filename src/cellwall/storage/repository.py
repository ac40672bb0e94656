"""What the repositories share: the database, the revision, and statements of both dialects."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.storage.engine import Database
from cellwall.storage.models import Base, FamilyRow, ServiceTokenRow, StateRow, UserRow


class Repository:
    """A set of transactions on one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def service_id(self) -> str:
        """The service of this state folder: what its process holds is marked with this name."""
        return self._database.service_id


async def bump_revision(connection: AsyncConnection) -> None:
    """Tell every process that a credential has ended. Locks the row until the transaction ends."""
    await connection.execute(update(StateRow).values(revision=StateRow.revision + 1))


async def lock_user(
    connection: AsyncConnection, user_id: str, *, generation: int | None = None
) -> bool:
    """Lock an enabled user until the transaction ends; False if there is none."""
    statement = update(UserRow).where(UserRow.id == user_id, UserRow.is_disabled.is_(False))
    if generation is not None:
        statement = statement.where(UserRow.generation == generation)
    return (await connection.execute(statement.values(role=UserRow.role))).rowcount == 1


async def end_tokens(connection: AsyncConnection, user_id: str | None) -> None:
    """Revoke sign-ins and service tokens of one user, or of all users."""
    for row in (FamilyRow, ServiceTokenRow):
        statement = update(row).where(row.is_revoked.is_(False)).values(is_revoked=True)
        if user_id is not None:
            statement = statement.where(row.user_id == user_id)
        await connection.execute(statement)


def insert_missing(connection: AsyncConnection, row: type[Base], **values: object) -> Insert:
    """An insert that does nothing where the key exists."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(row).values(**values).on_conflict_do_nothing()
    return sqlite.insert(row).values(**values).on_conflict_do_nothing()


def insert_or_update(
    connection: AsyncConnection, row: type[Base], keys: list[str], **values: object
) -> Insert:
    """An insert that replaces the other columns where the key exists."""
    changed: dict[str, Any] = {name: value for name, value in values.items() if name not in keys}
    if connection.dialect.name == "postgresql":
        pg = postgresql.insert(row).values(**values)
        return pg.on_conflict_do_update(index_elements=keys, set_=changed)
    lite = sqlite.insert(row).values(**values)
    return lite.on_conflict_do_update(index_elements=keys, set_=changed)
