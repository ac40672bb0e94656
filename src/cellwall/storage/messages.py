"""Pairings of channel senders with users, and the messages that were handled."""

from __future__ import annotations

from dataclasses import asdict, fields

from sqlalchemy import delete, func, insert, select, update

from cellwall.core.accounts import User
from cellwall.core.messages import Admission, MessageEntry, Pairing, PairingCode
from cellwall.storage.models import MessageRow, PairingCodeRow, PairingRow, UserRow
from cellwall.storage.repository import Repository, insert_missing, lock_user
from cellwall.storage.users import read_user

_MINUTE_S = 60.0


class MessageRepository(Repository):
    """Implements `MessagesPort`."""

    async def add_pairing_code(self, code: PairingCode) -> None:
        async with self._database.write() as connection:
            # The lock orders two calls for one user: exactly the later code stays.
            if not await lock_user(connection, code.user_id):
                return
            old = delete(PairingCodeRow).where(PairingCodeRow.user_id == code.user_id)
            await connection.execute(old)
            await connection.execute(insert(PairingCodeRow).values(**asdict(code)))

    async def use_pairing_code(self, code_hash: bytes, pairing: Pairing, *, now_s: float) -> str:
        async with self._database.write() as connection:
            # Of two callers one deletes the row; the other one finds none.
            taken = await connection.execute(
                delete(PairingCodeRow)
                .where(PairingCodeRow.code_hash == code_hash, PairingCodeRow.expires_s > now_s)
                .returning(PairingCodeRow.user_id)
            )
            user_id = taken.scalar_one_or_none()
            if user_id is None or not await lock_user(connection, user_id):
                return ""
            # A sender whose user was disabled may become another one.
            disabled = select(UserRow.id).where(UserRow.is_disabled.is_(True))
            await connection.execute(
                delete(PairingRow).where(
                    PairingRow.channel == pairing.channel,
                    PairingRow.sender_hash == pairing.sender_hash,
                    PairingRow.user_id.in_(disabled),
                )
            )
            values = {**asdict(pairing), "user_id": user_id}
            statement = insert_missing(connection, PairingRow, **values).returning(PairingRow.id)
            made = (await connection.execute(statement)).scalar_one_or_none()
            return "" if made is None else user_id

    async def find_pairing(self, channel: str, sender_hash: bytes) -> tuple[Pairing, User] | None:
        own = [getattr(PairingRow, each.name) for each in fields(Pairing)]
        query = select(*own).where(
            PairingRow.channel == channel, PairingRow.sender_hash == sender_hash
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                return None
            pairing = Pairing(**row._mapping)  # noqa: SLF001  # SQLAlchemy's public name for it
            users = select(UserRow).where(
                UserRow.id == pairing.user_id, UserRow.is_disabled.is_(False)
            )
            user = (await connection.execute(users)).one_or_none()
            return None if user is None else (pairing, read_user(user))

    async def list_pairings(self, user_id: str) -> tuple[Pairing, ...]:
        query = select(PairingRow).where(PairingRow.user_id == user_id)
        query = query.order_by(PairingRow.created_s, PairingRow.id)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return tuple(Pairing(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def remove_pairing(self, pairing_id: str, *, user_id: str) -> bool:
        statement = delete(PairingRow).where(
            PairingRow.id == pairing_id, PairingRow.user_id == user_id
        )
        async with self._database.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def admit_message(
        self, message: MessageEntry, *, per_minute: int, abandoned_s: float
    ) -> Admission:
        own = MessageRow.message_hash == message.message_hash
        now_s = message.received_s
        async with self._database.write() as connection:
            # Locks the pairing, so that concurrent messages of one sender cannot exceed the limit.
            lock = update(PairingRow).where(PairingRow.id == message.pairing_id)
            held = await connection.execute(lock.values(channel=PairingRow.channel))
            if held.rowcount != 1:
                return Admission.UNPAIRED
            found = (await connection.execute(select(MessageRow).where(own))).one_or_none()
            if found is not None:
                is_dead = found.answered_s is None and found.received_s <= now_s - abandoned_s
                if not is_dead:
                    return Admission.REPEATED
                await connection.execute(delete(MessageRow).where(own))
            recent = select(func.count()).where(
                MessageRow.pairing_id == message.pairing_id,
                MessageRow.received_s > now_s - _MINUTE_S,
            )
            if (await connection.execute(recent)).scalar_one() >= per_minute:
                return Admission.TOO_MANY
            values = {**asdict(message), "answered_s": None}
            await connection.execute(insert(MessageRow).values(**values))
            return Admission.NEW

    async def finish_message(self, message_hash: bytes, *, now_s: float) -> None:
        statement = update(MessageRow).where(MessageRow.message_hash == message_hash)
        async with self._database.write() as connection:
            await connection.execute(statement.values(answered_s=now_s))

    async def drop_message(self, message_hash: bytes) -> None:
        own = MessageRow.message_hash == message_hash
        async with self._database.write() as connection:
            statement = delete(MessageRow).where(own, MessageRow.answered_s.is_(None))
            await connection.execute(statement)
