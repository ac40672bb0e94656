"""Signing keys, sealed by the caller, and one-time sign-in links."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import OwnerExists, SealedKey, SignInLink, User
from cellwall.storage.models import LinkRow, SigningKeyRow, UserRow
from cellwall.storage.repository import Repository, bump_revision, end_tokens, lock_user
from cellwall.storage.users import insert_named


class KeyRepository(Repository):
    """Implements `KeysPort`."""

    async def add_signing_key(self, key: SealedKey, *, others_until_s: float) -> None:
        async with self._database.write() as connection:
            await bump_revision(connection)
            until = SigningKeyRow.verify_until_s
            await connection.execute(
                update(SigningKeyRow)
                .where(or_(until.is_(None), until > others_until_s))
                .values(verify_until_s=others_until_s)
            )
            await connection.execute(insert(SigningKeyRow).values(**asdict(key)))

    async def signing_keys(self) -> tuple[SealedKey, ...]:
        query = select(SigningKeyRow).order_by(
            SigningKeyRow.verify_until_s.is_(None).desc(),
            SigningKeyRow.created_s.desc(),
            SigningKeyRow.kid,
        )
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return tuple(SealedKey(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def has_users(self) -> bool:
        async with self._database.read() as connection:
            return (await connection.execute(select(UserRow.id).limit(1))).first() is not None

    async def add_link(self, link: SignInLink) -> None:
        async with self._database.write() as connection:
            await bump_revision(connection)  # one at a time: the last link is the only one
            await connection.execute(
                delete(LinkRow).where(LinkRow.user_id.is_not_distinct_from(link.user_id))
            )
            await connection.execute(insert(LinkRow).values(**asdict(link)))

    async def use_link(
        self, link_hash: bytes, *, password_hash: str, now_s: float, first_owner: User | None
    ) -> str | None:
        async with self._database.write() as connection:
            # The link of the other kind is left as it is.
            is_of_kind = (
                LinkRow.user_id.is_not(None) if first_owner is None else LinkRow.user_id.is_(None)
            )
            used = (
                await connection.execute(
                    delete(LinkRow)
                    .where(LinkRow.link_hash == link_hash, LinkRow.expires_s > now_s, is_of_kind)
                    .returning(LinkRow.user_id)
                )
            ).one_or_none()
            if used is None:
                return None
            await bump_revision(connection)
            if first_owner is not None:
                return await _add_first_owner(connection, first_owner)
            user_id = str(used.user_id)
            if not await lock_user(connection, user_id):
                return None
            await end_tokens(connection, user_id)
            await connection.execute(
                update(UserRow)
                .where(UserRow.id == user_id)
                .values(password_hash=password_hash, generation=UserRow.generation + 1)
            )
            return user_id


async def _add_first_owner(connection: AsyncConnection, owner: User) -> str:
    """The caller has locked the state row, so no other first owner can be under way."""
    count = (await connection.execute(select(func.count()).select_from(UserRow))).scalar_one()
    if count:
        raise OwnerExists
    await insert_named(connection, UserRow, owner)
    return owner.id
