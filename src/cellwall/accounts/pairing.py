"""Pairs the senders of chat and mail channels with users, by one-time codes (RBAC-3).

A user gets a code here and sends it on the channel; the sender of that message is then the user.
Until then a sender gets one fixed hint, whatever the message says: a wrong code, an expired one and
no code at all look the same. Guesses are counted before they are compared, as those of passwords.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cellwall.accounts import failures
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.authentication import hash_secret
from cellwall.accounts.names import canonical_name
from cellwall.accounts.roles import Roles
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import KeySealer
from cellwall.core.accounts import GuessLimit, User
from cellwall.core.ids import new_id
from cellwall.core.messages import Pairing, PairingCode, ServiceStore
from cellwall.core.types import REMOTE_INTERFACES, Permission, Principal

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u to misread
_HALF = 5
"""Ten characters are 50 bits: no guessing within the life of a code, also by many senders."""
_CODE = re.compile(
    r"(?:/?(?:pair|start)\s{1,8})?([0-9a-hjkmnp-tv-z]{5}-[0-9a-hjkmnp-tv-z]{5})",
    re.IGNORECASE | re.ASCII,
)
_MAX_TEXT = 64
_MAX_TEXTS = 16
_GUESSES = GuessLimit(free=3, first_delay_s=2.0, max_delay_s=3600.0, forget_s=86_400.0)


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender on a channel. The address is known only here and to the bridge."""

    channel: str
    address_hash: bytes


class Pairings:
    """The pairings of one service."""

    def __init__(
        self,
        store: ServiceStore,
        *,
        sealer: KeySealer,
        roles: Roles,
        log: AccountLog,
        clock: Clock,
        code_s: float,
    ) -> None:
        self._store, self._sealer, self._roles = store, sealer, roles
        self._log, self._clock, self._code_s = log, clock, code_s

    def sender(self, channel: str, address: str) -> Sender:
        """The address under a key of its own: a telephone number has few enough values to try."""
        return Sender(channel, self.digest("sender", channel, address))

    def digest(self, what: str, *parts: str) -> bytes:
        """A keyed digest; no two lists of parts have the same."""
        spelled = [part.encode("utf-8", "surrogatepass") for part in (what, *parts)]
        return self._sealer.digest(b"".join(b"%d:%s" % (len(each), each) for each in spelled))

    async def new_code(self, name: str, *, by: Principal) -> str:
        """A code for one user: by the user, signed in, or by a user who manages users."""
        user = await self._managed(name, by)
        halves = ("".join(_ALPHABET[byte & 31] for byte in os.urandom(_HALF)) for _ in range(2))
        code = "-".join(halves)
        await self._log.change("pairing code", by=by, user=user.name)
        await self._store.add_pairing_code(
            PairingCode(
                code_hash=hash_secret(code),
                user_id=user.id,
                expires_s=self._clock() + self._code_s,
            )
        )
        return code.upper()

    async def list_of(self, name: str, *, by: Principal) -> tuple[Pairing, ...]:
        return await self._store.list_pairings((await self._managed(name, by)).id)

    async def remove(self, name: str, pairing_id: str, *, by: Principal) -> None:
        """A pairing of another user answers like one that does not exist (RBAC-3)."""
        user = await self._managed(name, by)
        await self._log.change("remove pairing", by=by, user=user.name, pairing=pairing_id[:64])
        if not await self._store.remove_pairing(pairing_id, user_id=user.id):
            raise failures.not_found("pairing")

    async def find(self, sender: Sender) -> tuple[Pairing, User] | None:
        """The user behind a sender, if there is one who is not disabled."""
        return await self._store.find_pairing(sender.channel, sender.address_hash)

    async def pair(self, sender: Sender, texts: Iterable[str]) -> bool:
        """Whether one of the texts of a message is a valid code; the sender is the user from now
        on. At most one code of a message is tried."""
        code = _code_in(texts)
        if code is None:
            return False
        now_s = self._clock()
        subject = f"pairing:{sender.address_hash.hex()[:40]}"
        if await self._store.begin_attempt([(subject, _GUESSES)], now_s=now_s):
            return False
        pairing = Pairing(
            id=new_id("pair"),
            user_id="",
            channel=sender.channel,
            sender_hash=sender.address_hash,
            created_s=now_s,
        )
        user_id = await self._store.use_pairing_code(hash_secret(code), pairing, now_s=now_s)
        user = await self._store.find_user(user_id) if user_id else None
        known = {"channel": sender.channel, "pairing": pairing.id if user else ""}
        status = "refused" if user is None else "done"
        name = "" if user is None else user.name
        await self._log.sign_in("pairing", status, address="", user=name, **known)
        if user is None:
            return False
        await self._store.clear_attempts([subject])
        return True

    async def _managed(self, name: str, by: Principal) -> User:
        is_own = by.interface in REMOTE_INTERFACES and by.name == name and by.scopes is None
        # A service token cannot pair: its thief would become its user for good.
        self._roles.require(by, Permission.CHAT_SEND if is_own else Permission.USERS_MANAGE)
        user = await self._store.find_user_named(canonical_name(name))
        if user is None or user.is_disabled:
            raise failures.not_found("user")
        return user


def _code_in(texts: Iterable[str]) -> str | None:
    for text, _ in zip(texts, range(_MAX_TEXTS), strict=False):
        found = _CODE.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
        if found is not None:
            return found[1].lower()
    return None
