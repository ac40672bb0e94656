"""Users and teams."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import LastOwner, NameTaken, Team, User
from cellwall.core.types import OWNER
from cellwall.storage.models import Base, MemberRow, TeamRow, UserRow
from cellwall.storage.repository import Repository, bump_revision, end_tokens, insert_missing


def read_user(row: Row[Any]) -> User:
    """A user from all columns of the table."""
    return User(**row._mapping)  # noqa: SLF001  # SQLAlchemy's public name for it


async def insert_named(connection: AsyncConnection, row: type[Base], record: User | Team) -> None:
    """Insert a record whose name must be free."""
    try:
        await connection.execute(insert(row).values(**asdict(record)))
    except IntegrityError:
        raise NameTaken from None


async def _require_owner(connection: AsyncConnection) -> None:
    """The caller has locked the state row, so two changes cannot remove one owner each."""
    query = select(UserRow.id).where(UserRow.role == OWNER, UserRow.is_disabled.is_(False)).limit(1)
    if (await connection.execute(query)).first() is None:
        raise LastOwner


class UserRepository(Repository):
    """Implements `UsersPort`."""

    async def add_user(self, user: User) -> None:
        async with self._database.write() as connection:
            await insert_named(connection, UserRow, user)

    async def find_user(self, user_id: str) -> User | None:
        return await self._find(UserRow.id == user_id)

    async def find_user_named(self, name: str) -> User | None:
        return await self._find(UserRow.name == name)

    async def _find(self, condition: Any) -> User | None:  # noqa: ANN401  # a SQL expression
        async with self._database.read() as connection:
            row = (await connection.execute(select(UserRow).where(condition))).one_or_none()
        return None if row is None else read_user(row)

    async def list_users(self, *, after: str = "", limit: int = 100) -> tuple[User, ...]:
        query = select(UserRow).where(UserRow.name > after).order_by(UserRow.name).limit(limit)
        async with self._database.read() as connection:
            return tuple(read_user(row) for row in await connection.execute(query))

    async def set_role(self, user_id: str, role: str) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = update(UserRow).where(UserRow.id == user_id).values(role=role)
            is_found = (await connection.execute(statement)).rowcount == 1
            await _require_owner(connection)
            return is_found

    async def set_password(
        self, user_id: str, password_hash: str, *, replaces: str | None = None
    ) -> bool:
        statement = update(UserRow).where(UserRow.id == user_id)
        async with self._database.write() as connection:
            if replaces is not None:
                statement = statement.where(UserRow.password_hash == replaces)
                values = {"password_hash": password_hash}
                return (await connection.execute(statement.values(**values))).rowcount == 1
            await bump_revision(connection)
            await end_tokens(connection, user_id)
            statement = statement.values(
                password_hash=password_hash, generation=UserRow.generation + 1
            )
            return (await connection.execute(statement)).rowcount == 1

    async def set_disabled(self, user_id: str, *, is_disabled: bool) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = update(UserRow).where(UserRow.id == user_id)
            statement = statement.values(is_disabled=is_disabled, generation=UserRow.generation + 1)
            is_found = (await connection.execute(statement)).rowcount == 1
            await _require_owner(connection)
            await end_tokens(connection, user_id)
            return is_found

    async def remove_user(self, user_id: str) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            query = select(UserRow.role).where(UserRow.id == user_id)
            role = (await connection.execute(query)).scalar_one_or_none()
            await connection.execute(delete(UserRow).where(UserRow.id == user_id))
            if role == OWNER:
                await _require_owner(connection)
            return role is not None

    async def add_team(self, team: Team) -> None:
        async with self._database.write() as connection:
            await insert_named(connection, TeamRow, team)

    async def list_teams(self) -> tuple[Team, ...]:
        async with self._database.read() as connection:
            rows = await connection.execute(select(TeamRow).order_by(TeamRow.name))
            return tuple(Team(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def add_member(self, team_id: str, user_id: str) -> None:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = insert_missing(connection, MemberRow, team_id=team_id, user_id=user_id)
            try:
                await connection.execute(statement)
            except IntegrityError:
                raise KeyError(team_id, user_id) from None

    async def remove_member(self, team_id: str, user_id: str) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = delete(MemberRow).where(
                MemberRow.team_id == team_id, MemberRow.user_id == user_id
            )
            return (await connection.execute(statement)).rowcount == 1

    async def teams_of(self, user_id: str) -> frozenset[str]:
        async with self._database.read() as connection:
            query = select(MemberRow.team_id).where(MemberRow.user_id == user_id)
            return frozenset((await connection.execute(query)).scalars())
