"""Refresh tokens, service tokens and revocations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import AccessState, RefreshFamily, Rotation, ServiceToken
from cellwall.storage.models import (
    AttemptRow,
    FamilyRow,
    LinkRow,
    MemberRow,
    RefreshTokenRow,
    RevokedTokenRow,
    ServiceTokenRow,
    SigningKeyRow,
    StateRow,
    UserRow,
)
from cellwall.storage.repository import (
    Repository,
    bump_revision,
    end_tokens,
    insert_missing,
    lock_user,
)
from cellwall.storage.users import read_user


def _read_token(row: Row[Any]) -> ServiceToken:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's public name for it
    return ServiceToken(**{**values, "scopes": tuple(values["scopes"])})


class Tokens(Repository):
    """Implements `TokensPort`."""

    async def revision(self) -> int:
        return await self._database.revision()

    async def access_state(self, *, user_id: str, family_id: str, jti: str) -> AccessState | None:
        async with self._database.read() as connection:
            user = (
                await connection.execute(select(UserRow).where(UserRow.id == user_id))
            ).one_or_none()
            if user is None:
                return None
            teams = select(MemberRow.team_id).where(MemberRow.user_id == user_id)
            family = select(FamilyRow.id).where(
                FamilyRow.id == family_id,
                FamilyRow.user_id == user_id,
                FamilyRow.is_revoked.is_(False),
            )
            revoked = select(RevokedTokenRow.jti).where(RevokedTokenRow.jti == jti)
            return AccessState(
                user=read_user(user),
                teams=frozenset((await connection.execute(teams)).scalars()),
                generation=(await connection.execute(select(StateRow.generation))).scalar_one(),
                is_family_live=(await connection.execute(family)).first() is not None,
                is_token_revoked=(await connection.execute(revoked)).first() is not None,
            )

    async def add_family(
        self, family: RefreshFamily, *, token_hash: bytes, generation: int
    ) -> bool:
        async with self._database.write() as connection:
            if not await lock_user(connection, family.user_id, generation=generation):
                return False
            await connection.execute(insert(FamilyRow).values(**asdict(family)))
            await _add_refresh_token(connection, token_hash, family.id)
            return True

    async def rotate(
        self, token_hash: bytes, *, successor: bytes, now_s: float
    ) -> tuple[Rotation, RefreshFamily | None]:
        async with self._database.write() as connection:
            # One caller changes the row; another one waits for the row or the file, and then
            # changes nothing.
            taken = await connection.execute(
                update(RefreshTokenRow)
                .where(RefreshTokenRow.token_hash == token_hash, RefreshTokenRow.is_used.is_(False))
                .values(is_used=True)
            )
            found = (
                await connection.execute(
                    select(FamilyRow)
                    .join(RefreshTokenRow, RefreshTokenRow.family_id == FamilyRow.id)
                    .where(RefreshTokenRow.token_hash == token_hash)
                )
            ).one_or_none()
            if found is None:
                return Rotation.UNKNOWN, None
            family = RefreshFamily(**found._mapping)  # noqa: SLF001  # as above
            if taken.rowcount != 1:
                await _revoke_family(connection, family.id)
                return Rotation.REUSED, family
            if family.is_revoked:
                return Rotation.REVOKED, family
            if family.expires_s <= now_s:
                return Rotation.EXPIRED, family
            await _add_refresh_token(connection, successor, family.id)
            return Rotation.DONE, family

    async def revoke_family(self, family_id: str) -> bool:
        async with self._database.write() as connection:
            return await _revoke_family(connection, family_id)

    async def revoke_token(self, jti: str, *, until_s: float) -> None:
        async with self._database.write() as connection:
            await bump_revision(connection)
            await connection.execute(
                insert_missing(connection, RevokedTokenRow, jti=jti, until_s=until_s)
            )

    async def revoke_user(self, user_id: str) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = update(UserRow).where(UserRow.id == user_id)
            statement = statement.values(generation=UserRow.generation + 1)
            is_found = (await connection.execute(statement)).rowcount == 1
            await end_tokens(connection, user_id)
            return is_found

    async def revoke_everybody(self) -> None:
        async with self._database.write() as connection:
            await bump_revision(connection)
            await connection.execute(update(StateRow).values(generation=StateRow.generation + 1))
            # Of each user, too: a sign-in that is under way then stores no family.
            await connection.execute(update(UserRow).values(generation=UserRow.generation + 1))
            await end_tokens(connection, None)

    async def add_service_token(self, token: ServiceToken, *, generation: int) -> bool:
        async with self._database.write() as connection:
            if not await lock_user(connection, token.user_id, generation=generation):
                return False
            values = {**asdict(token), "scopes": list(token.scopes)}
            await connection.execute(insert(ServiceTokenRow).values(**values))
            return True

    async def find_service_token(self, token_hash: bytes) -> ServiceToken | None:
        query = select(ServiceTokenRow).where(ServiceTokenRow.token_hash == token_hash)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _read_token(row)

    async def list_service_tokens(self, user_id: str) -> tuple[ServiceToken, ...]:
        query = select(ServiceTokenRow).where(ServiceTokenRow.user_id == user_id)
        query = query.order_by(ServiceTokenRow.created_s, ServiceTokenRow.id)
        async with self._database.read() as connection:
            return tuple(_read_token(row) for row in await connection.execute(query))

    async def revoke_service_token(self, token_id: str, *, user_id: str | None) -> bool:
        async with self._database.write() as connection:
            await bump_revision(connection)
            statement = update(ServiceTokenRow).where(
                ServiceTokenRow.id == token_id, ServiceTokenRow.is_revoked.is_(False)
            )
            if user_id is not None:
                statement = statement.where(ServiceTokenRow.user_id == user_id)
            return (await connection.execute(statement.values(is_revoked=True))).rowcount == 1

    async def purge(self, *, now_s: float) -> int:
        async with self._database.write() as connection:
            count = 0
            for row, end_s in (
                (FamilyRow, FamilyRow.expires_s),  # with their refresh tokens
                (RevokedTokenRow, RevokedTokenRow.until_s),
                (ServiceTokenRow, ServiceTokenRow.expires_s),
                (LinkRow, LinkRow.expires_s),
                (SigningKeyRow, SigningKeyRow.verify_until_s),
                (AttemptRow, AttemptRow.forget_after_s),
            ):
                count += (await connection.execute(delete(row).where(end_s <= now_s))).rowcount
            return count


async def _add_refresh_token(
    connection: AsyncConnection, token_hash: bytes, family_id: str
) -> None:
    await connection.execute(
        insert(RefreshTokenRow).values(token_hash=token_hash, family_id=family_id, is_used=False)
    )


async def _revoke_family(connection: AsyncConnection, family_id: str) -> bool:
    await bump_revision(connection)
    statement = update(FamilyRow).where(FamilyRow.id == family_id, FamilyRow.is_revoked.is_(False))
    return (await connection.execute(statement.values(is_revoked=True))).rowcount == 1
