"""Join tokens, certificates, witnessed logs and signed releases of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.host_trust import (
    HostAdmission,
    HostLog,
    SignedRelease,
    StoredCertificate,
    WitnessedCheckpoint,
)
from cellwall.storage.fleet_models import (
    HostCertificateRow,
    HostLogRow,
    JoinTokenRow,
    ReleaseRow,
    WitnessedCheckpointRow,
)
from cellwall.storage.hosts import database_now
from cellwall.storage.repository import Repository, insert_missing

_KEEP_TOKENS_S = 30 * 86_400.0
_KEPT_RELEASES = 3
_KEPT_CHECKPOINTS = 500
"""Of each log by each witness."""


class HostTrustRepository(Repository):
    """Implements `HostTrustPort`, `WitnessPort` and `ReleasesPort`."""

    async def database_time_s(self) -> float:
        async with self._database.read() as connection:
            return await database_now(connection)

    async def add_join_token(self, token_hash: bytes, *, expires_s: float, made_by: str) -> None:
        async with self._database.write() as connection:
            now_s = await database_now(connection)
            old = JoinTokenRow.expires_s < now_s - _KEEP_TOKENS_S
            await connection.execute(delete(JoinTokenRow).where(old))
            values = {"token_hash": token_hash, "made_by": made_by, "expires_s": expires_s}
            await connection.execute(insert_missing(connection, JoinTokenRow, **values))

    async def admit_host(
        self, token_hash: bytes, certificate: StoredCertificate, *, public_keys: str
    ) -> HostAdmission:
        try:
            async with self._database.write() as connection:
                now_s = await database_now(connection)
                if not await _keep(connection, certificate, public_keys, now_s):
                    raise _Undone(HostAdmission.OTHER_KEY)  # and the token stays unused
                # One statement: of two machines with one token, one finds it unused.
                unused = update(JoinTokenRow).where(
                    JoinTokenRow.token_hash == token_hash,
                    JoinTokenRow.used_s.is_(None),
                    JoinTokenRow.expires_s > now_s,
                )
                used = unused.values(used_s=now_s, used_by=certificate.host_id)
                if (await connection.execute(used)).rowcount != 1:
                    raise _Undone(HostAdmission.NO_TOKEN)
        except _Undone as undone:
            return undone.admission
        return HostAdmission.ADMITTED

    async def keep_certificate(self, certificate: StoredCertificate, *, public_keys: str) -> bool:
        async with self._database.write() as connection:
            now_s = await database_now(connection)
            return await _keep(connection, certificate, public_keys, now_s)

    async def list_certificates(self) -> Sequence[StoredCertificate]:
        async with self._database.read() as connection:
            query = select(HostCertificateRow).order_by(HostCertificateRow.host_id)
            rows = (await connection.execute(query)).all()
        return [StoredCertificate(row.host_id, row.pem, row.revoked_s is not None) for row in rows]

    async def revoke_certificate(self, host_id: str) -> bool:
        async with self._database.write() as connection:
            valid = update(HostCertificateRow).where(
                HostCertificateRow.host_id == host_id, HostCertificateRow.revoked_s.is_(None)
            )
            done = await connection.execute(valid.values(revoked_s=await database_now(connection)))
            return done.rowcount == 1

    async def add_host_log(self, log: HostLog) -> bool:
        async with self._database.write() as connection:
            values = {"origin": log.origin, "host_id": log.host_id, "statement": log.statement}
            await connection.execute(insert_missing(connection, HostLogRow, **values))
            query = select(HostLogRow).where(HostLogRow.origin == log.origin)
            return _log((await connection.execute(query)).one()) == log

    async def list_host_logs(self) -> Sequence[HostLog]:
        async with self._database.read() as connection:
            query = select(HostLogRow).order_by(HostLogRow.host_id, HostLogRow.origin)
            return [_log(row) for row in (await connection.execute(query)).all()]

    async def add_witnessed(self, checkpoint: WitnessedCheckpoint) -> bool:
        row = WitnessedCheckpointRow
        async with self._database.write() as connection:
            values = {
                "origin": checkpoint.origin,
                "size": checkpoint.size,
                "witness_id": checkpoint.witness_id,
                "note": checkpoint.note,
                "seen_s": await database_now(connection),
            }
            await connection.execute(insert_missing(connection, row, **values))
            query = select(row.note).where(
                row.origin == checkpoint.origin,
                row.size == checkpoint.size,
                row.witness_id == checkpoint.witness_id,
            )
            is_kept = (await connection.execute(query)).scalar_one() == checkpoint.note
            await _forget_old(connection, checkpoint)
            return is_kept

    async def list_witnessed(
        self, origin: str, *, witness_id: str | None = None, after: int = -1
    ) -> Sequence[WitnessedCheckpoint]:
        row = WitnessedCheckpointRow
        query = select(row).where(row.origin == origin, row.size > after)
        if witness_id is not None:
            query = query.where(row.witness_id == witness_id)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(row.size, row.witness_id))
            rows = found.all()
        return [
            WitnessedCheckpoint(
                origin=each.origin, size=each.size, witness_id=each.witness_id, note=each.note
            )
            for each in rows
        ]

    async def add_release(self, release: SignedRelease) -> bool:
        async with self._database.write() as connection:
            newest = await _newest(connection, release.kind)
            if newest is not None and newest.version >= release.version:
                return False
            values = {
                "kind": release.kind,
                "version": release.version,
                "note": release.note,
                "content": release.content,
                "made_s": await database_now(connection),
            }
            await connection.execute(insert_missing(connection, ReleaseRow, **values))
            old = ReleaseRow.version <= release.version - _KEPT_RELEASES
            await connection.execute(delete(ReleaseRow).where(ReleaseRow.kind == release.kind, old))
            kept = await _newest(connection, release.kind)
            return kept is not None and _release(kept) == release  # another may have been faster

    async def newest_release(self, kind: str) -> SignedRelease | None:
        async with self._database.read() as connection:
            row = await _newest(connection, kind)
        return None if row is None else _release(row)

    async def newest_release_note(self, kind: str) -> tuple[int, str] | None:
        newest = select(ReleaseRow.version, ReleaseRow.note).where(ReleaseRow.kind == kind)
        async with self._database.read() as connection:
            query = newest.order_by(ReleaseRow.version.desc()).limit(1)
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else (row.version, row.note)


class _Undone(Exception):
    """Ends a transaction without a change."""

    def __init__(self, admission: HostAdmission) -> None:
        super().__init__(admission)
        self.admission = admission


async def _keep(
    connection: AsyncConnection, certificate: StoredCertificate, public_keys: str, now_s: float
) -> bool:
    """For a new name, or one with these keys that was not revoked; else False."""
    row = HostCertificateRow
    values = {
        "host_id": certificate.host_id,
        "public_keys": public_keys,
        "pem": certificate.pem,
        "issued_s": now_s,
    }
    await connection.execute(insert_missing(connection, row, **values))
    ours = (
        row.host_id == certificate.host_id,
        row.public_keys == public_keys,
        row.revoked_s.is_(None),
    )
    renewed = update(row).where(*ours).values(pem=certificate.pem, issued_s=now_s)
    return (await connection.execute(renewed)).rowcount == 1


async def _forget_old(connection: AsyncConnection, newest: WitnessedCheckpoint) -> None:
    """The log itself proves what lies before the checkpoints that are kept."""
    row = WitnessedCheckpointRow
    own = row.origin == newest.origin, row.witness_id == newest.witness_id
    oldest = select(row.size).where(*own).order_by(row.size.desc()).offset(_KEPT_CHECKPOINTS)
    limit = (await connection.execute(oldest.limit(1))).scalar()
    if limit is not None:
        await connection.execute(delete(row).where(*own, row.size <= limit))


async def _newest(connection: AsyncConnection, kind: str) -> Any:  # noqa: ANN401  # a row of SQLAlchemy
    query = select(ReleaseRow).where(ReleaseRow.kind == kind)
    newest = query.order_by(ReleaseRow.version.desc()).limit(1)
    return (await connection.execute(newest)).one_or_none()


def _log(row: Any) -> HostLog:  # noqa: ANN401  # a row of SQLAlchemy
    return HostLog(origin=row.origin, host_id=row.host_id, statement=row.statement)


def _release(row: Any) -> SignedRelease:  # noqa: ANN401  # a row of SQLAlchemy
    return SignedRelease(kind=row.kind, version=row.version, note=row.note, content=row.content)
