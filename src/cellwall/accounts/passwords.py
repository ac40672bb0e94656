"""Passwords by Argon2id (RFC 9106).

The default of 64 MiB, 2 passes, 1 lane takes 170 ms of one processor where OWASP's minimum of
19 MiB takes 35 ms. A check for an unknown user costs the same: it verifies a hash that belongs to
no user. Few run at once, so that a flood of sign-ins takes neither all memory nor all processors.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from cellwall.accounts import failures
from cellwall.core.accounts import User

_MAX_CHARACTERS = 256
_MAX_WAITING = 64
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordSettings:
    """The cost of one guess, and what a new password needs."""

    memory_kib: int = 65_536
    passes: int = 2
    lanes: int = 1
    min_characters: int = 12
    at_once: int = 2


class Passwords:
    """Hashes and checks passwords in threads."""

    def __init__(self, settings: PasswordSettings) -> None:
        self._settings = settings
        self._hasher = PasswordHasher(
            time_cost=settings.passes,
            memory_cost=settings.memory_kib,
            parallelism=settings.lanes,
            type=Type.ID,
        )
        self._limiter: anyio.CapacityLimiter | None = None
        self._of_nobody: str | None = None

    def check_new(self, password: str, *, name: str) -> None:
        """Raise `BadInput` for a password that must not be set."""
        least = self._settings.min_characters
        is_named = password.casefold() == name.casefold()
        if not least <= len(password) <= _MAX_CHARACTERS or is_named:
            raise failures.bad_password(least)

    async def hash(self, password: str) -> str:
        return await self._run(partial(self._hash, password))

    async def verify(self, user: User | None, password: str) -> bool:
        """Whether the password is the user's; takes as long for no user."""
        return await self._run(partial(self._verify, user, password))

    def needs_rehash(self, user: User) -> bool:
        """Whether the hash was made with other parameters than are configured now."""
        return user.password_hash is not None and self._hasher.check_needs_rehash(
            user.password_hash
        )

    async def _run(self, call: Callable[[], Result]) -> Result:
        limiter = self._limiter
        if limiter is None:
            limiter = self._limiter = anyio.CapacityLimiter(self._settings.at_once)
        if limiter.statistics().tasks_waiting >= _MAX_WAITING:
            raise failures.overloaded()
        return await anyio.to_thread.run_sync(call, limiter=limiter)

    def _hash(self, password: str) -> str:
        return self._hasher.hash(_normalise(password))

    def _verify(self, user: User | None, password: str) -> bool:
        stored = None if user is None or user.is_disabled else user.password_hash
        known = stored
        if known is None:
            if self._of_nobody is None:
                self._of_nobody = self._hasher.hash("no password of any user")
            known = self._of_nobody
        is_short = len(password) <= _MAX_CHARACTERS
        try:
            self._hasher.verify(known, _normalise(password[:_MAX_CHARACTERS]))
        except (VerificationError, InvalidHashError):
            return False
        return stored is not None and is_short


def _normalise(password: str) -> bytes:
    """One spelling for characters that two keyboards compose differently (RFC 8265)."""
    return unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
