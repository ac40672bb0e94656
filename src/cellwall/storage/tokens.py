"""Refresh tokens, service tokens and revocations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import AccessState, RefreshFamily, Rotation, ServiceToken
from cellwall.storage import quick_reads
from cellwall.storage.models import (
    ApprovalRow,
    AttemptRow,
    FamilyRow,
    FlowRow,
    LinkRow,
    MessageRow,
    PairingCodeRow,
    RefreshTokenRow,
    RevokedTokenRow,
    ServiceTokenRow,
    SigningKeyRow,
    StateRow,
    UsageRow,
    UserRow,
)
from cellwall.storage.repository import (
    Repository,
    bump_revision,
    end_tokens,
    insert_missing,
    lock_user,
)

_KEEP_USAGE_S = 2 * 366 * 86_400.0
_KEEP_APPROVALS_S = 30 * 86_400.0
"""Longer than any period."""


def _read_token(row: Row[Any]) -> ServiceToken:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's public name for it
    return ServiceToken(**{**values, "scopes": tuple(values["scopes"])})


_MAX_LISTED = 200
"""Live sign-ins of one user in a list; the newest."""


class TokenRepository(Repository):
    """Implements `TokensPort`."""

    async def revision(self) -> int:
        return await quick_reads.read_revision(self._database.quick)

    async def access_state(self, *, user_id: str, family_id: str, jti: str) -> AccessState | None:
        return await quick_reads.read_access_state(
            self._database.quick, user_id=user_id, family_id=family_id, jti=jti
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
        self,
        token_hash: bytes,
        *,
        successor: bytes,
        now_s: float,
        sealed: bytes = b"",
        grace_s: float = 0.0,
    ) -> tuple[Rotation, RefreshFamily | None, bytes]:
        async with self._database.write() as connection:
            # One caller changes the row; another one waits for the row or the file, and then
            # changes nothing.
            taken = await connection.execute(
                update(RefreshTokenRow)
                .where(RefreshTokenRow.token_hash == token_hash, RefreshTokenRow.is_used.is_(False))
                .values(is_used=True, used_s=now_s)
            )
            row = (
                await connection.execute(
                    select(FamilyRow, RefreshTokenRow.used_s, RefreshTokenRow.successor)
                    .join(RefreshTokenRow, RefreshTokenRow.family_id == FamilyRow.id)
                    .where(RefreshTokenRow.token_hash == token_hash)
                )
            ).one_or_none()
            if row is None:
                return Rotation.UNKNOWN, None, b""
            found = dict(row._mapping)  # noqa: SLF001  # public name
            used_s, known = found.pop("used_s"), found.pop("successor")
            family = RefreshFamily(**found)
            if taken.rowcount != 1:
                is_repeated = known is not None and 0 <= now_s - (used_s or 0.0) < grace_s
                if is_repeated and not family.is_revoked and family.expires_s > now_s:
                    return Rotation.REPEATED, family, bytes(known)
                await _revoke_family(connection, family.id)
                return Rotation.REUSED, family, b""
            if family.is_revoked:
                return Rotation.REVOKED, family, b""
            if family.expires_s <= now_s:
                return Rotation.EXPIRED, family, b""
            await _replace_successor(connection, family.id, token_hash, sealed)
            await _add_refresh_token(connection, successor, family.id)
            return Rotation.DONE, family, b""

    async def list_families(self, user_id: str, *, now_s: float) -> tuple[RefreshFamily, ...]:
        query = select(FamilyRow).where(
            FamilyRow.user_id == user_id,
            FamilyRow.is_revoked.is_(False),
            FamilyRow.expires_s > now_s,
        )
        query = query.order_by(FamilyRow.created_s.desc(), FamilyRow.id).limit(_MAX_LISTED)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return tuple(RefreshFamily(**row._mapping) for row in found)  # noqa: SLF001  # public name

    async def revoke_family(self, family_id: str, *, user_id: str | None = None) -> bool:
        async with self._database.write() as connection:
            return await _revoke_family(connection, family_id, user_id=user_id)

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

    async def find_service_token(
        self, token_hash: bytes
    ) -> tuple[ServiceToken, AccessState] | None:
        return await quick_reads.read_service_token(self._database.quick, token_hash)

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
                (FlowRow, FlowRow.expires_s),
                (SigningKeyRow, SigningKeyRow.verify_until_s),
                (AttemptRow, AttemptRow.forget_after_s),
                (UsageRow, UsageRow.period_start_s + _KEEP_USAGE_S),
                (PairingCodeRow, PairingCodeRow.expires_s),
                (MessageRow, MessageRow.forget_after_s),
                (ApprovalRow, ApprovalRow.answered_s + _KEEP_APPROVALS_S),
            ):
                count += (await connection.execute(delete(row).where(end_s <= now_s))).rowcount
            return count


async def _add_refresh_token(
    connection: AsyncConnection, token_hash: bytes, family_id: str
) -> None:
    await connection.execute(
        insert(RefreshTokenRow).values(token_hash=token_hash, family_id=family_id, is_used=False)
    )


async def _replace_successor(
    connection: AsyncConnection, family_id: str, token_hash: bytes, sealed: bytes
) -> None:
    """Only the last used token has a successor that is unused; an older one is a reuse."""
    of_family = update(RefreshTokenRow).where(RefreshTokenRow.family_id == family_id)
    known = RefreshTokenRow.successor.is_not(None)
    await connection.execute(of_family.where(known).values(successor=None))
    if sealed:
        own = RefreshTokenRow.token_hash == token_hash
        await connection.execute(of_family.where(own).values(successor=sealed))


async def _revoke_family(
    connection: AsyncConnection, family_id: str, *, user_id: str | None = None
) -> bool:
    await bump_revision(connection)
    statement = update(FamilyRow).where(FamilyRow.id == family_id, FamilyRow.is_revoked.is_(False))
    if user_id is not None:
        statement = statement.where(FamilyRow.user_id == user_id)
    return (await connection.execute(statement.values(is_revoked=True))).rowcount == 1
