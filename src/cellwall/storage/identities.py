"""Identities at OpenID providers, and passkeys."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from cellwall.core.accounts import ExternalIdentity, IdentityTaken, Passkey, User
from cellwall.storage.models import ExternalIdentityRow, PasskeyRow, UserRow
from cellwall.storage.repository import Repository, lock_user
from cellwall.storage.users import insert_named


class IdentityRepository(Repository):
    """Implements `IdentitiesPort`."""

    async def find_identity(self, issuer: str, subject: str) -> ExternalIdentity | None:
        query = select(ExternalIdentityRow).filter_by(issuer=issuer, subject=subject)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else ExternalIdentity(**row._mapping)  # noqa: SLF001  # public name

    async def add_identity(self, identity: ExternalIdentity, *, new_user: User | None) -> None:
        async with self._database.write() as connection:
            if new_user is not None:
                await insert_named(connection, UserRow, new_user)
            try:
                await connection.execute(insert(ExternalIdentityRow).values(**asdict(identity)))
            except IntegrityError:
                raise IdentityTaken from None

    async def list_identities(self, user_id: str) -> tuple[ExternalIdentity, ...]:
        query = select(ExternalIdentityRow).where(ExternalIdentityRow.user_id == user_id)
        query = query.order_by(ExternalIdentityRow.issuer, ExternalIdentityRow.subject)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return tuple(ExternalIdentity(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def remove_identity(self, issuer: str, subject: str, *, user_id: str) -> bool:
        statement = delete(ExternalIdentityRow).filter_by(
            issuer=issuer, subject=subject, user_id=user_id
        )
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def add_passkey(self, passkey: Passkey, *, max_per_user: int) -> bool:
        async with self._database.write() as connection:
            if not await lock_user(connection, passkey.user_id):
                return False
            count = (
                select(func.count())
                .select_from(PasskeyRow)
                .where(PasskeyRow.user_id == passkey.user_id)
            )
            if (await connection.execute(count)).scalar_one() >= max_per_user:
                return False
            try:
                await connection.execute(insert(PasskeyRow).values(**asdict(passkey)))
            except IntegrityError:
                raise IdentityTaken from None
            return True

    async def find_passkey(self, credential_id: bytes) -> Passkey | None:
        query = select(PasskeyRow).where(PasskeyRow.credential_id == credential_id)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Passkey(**row._mapping)  # noqa: SLF001  # public name

    async def list_passkeys(self, user_id: str) -> tuple[Passkey, ...]:
        query = select(PasskeyRow).where(PasskeyRow.user_id == user_id)
        query = query.order_by(PasskeyRow.created_s, PasskeyRow.id)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return tuple(Passkey(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def use_passkey(self, credential_id: bytes, *, sign_count: int, now_s: float) -> bool:
        stored = PasskeyRow.sign_count
        is_newer = stored < sign_count if sign_count else stored == 0
        statement = (
            update(PasskeyRow)
            .where(PasskeyRow.credential_id == credential_id, is_newer)
            .values(sign_count=sign_count, used_s=now_s)
        )
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def remove_passkey(self, passkey_id: str, *, user_id: str) -> bool:
        statement = delete(PasskeyRow).filter_by(id=passkey_id, user_id=user_id)
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount == 1
