"""Failed attempts slow the next ones down, by account and by address, and are recorded (RBAC-4).

An attempt is counted before anything is compared, so that concurrent guesses cannot exceed the
limit; a success takes it back. While a subject is blocked nothing is compared at all.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.failures import TokenRefused, TooManyGuesses
from cellwall.accounts.identity import address_subject
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import AttemptsPort
from cellwall.core.accounts import GuessLimit

_FORGET_S = 3600.0
_FIRST_DELAY_S = 1.0
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessSettings:
    """How many failures have no consequence, and how long the wait can get."""

    free_per_account: int = 5
    free_per_address: int = 30
    max_delay_s: float = 300.0


class Guesses:
    """Counts attempts of one service."""

    def __init__(
        self, store: AttemptsPort, log: AccountLog, clock: Clock, settings: GuessSettings
    ) -> None:
        self._store, self._log, self._clock = store, log, clock
        self._per_account = _limit(settings.free_per_account, settings)
        self._per_address = _limit(settings.free_per_address, settings)
        self._blocked_until_s: OrderedDict[str, float] = OrderedDict()

    async def begin(self, *, address: str, account: str | None = None) -> None:
        """Count an attempt as failed; raises `TooManyGuesses` while one of the two is blocked."""
        by_address = address_subject(address)
        subjects = [(by_address, self._per_address)]
        if account is not None:
            subjects.append((_account_subject(account), self._per_account))
        now_s = self._clock()
        until_s = await self._store.begin_attempt(subjects, now_s=now_s)
        if until_s:
            await self._note_block(by_address, until_s)
            raise TooManyGuesses(until_s - now_s)

    async def succeeded(self, *, address: str, account: str | None = None) -> None:
        """Take the attempt back. The account begins anew; other failures of the address stay, since
        an attacker could sign in to an account of their own in between."""
        await self._store.forgive_attempt([address_subject(address)])
        if account is not None:
            await self._store.clear_attempts([_account_subject(account)])

    def require_unblocked(self, address: str) -> None:
        """For a token that must be verified; without I/O, from what this process knows."""
        until_s = self._blocked_until_s.get(address_subject(address), 0.0)
        now_s = self._clock()
        if until_s > now_s:
            raise TooManyGuesses(until_s - now_s)

    async def note_bad_token(self, refused: TokenRefused, *, address: str, kind: str) -> None:
        """Count and record a token that we never issued. The refusal itself is the caller's."""
        if not refused.is_guess:
            return
        subject = address_subject(address)
        now_s = self._clock()
        until_s = await self._store.begin_attempt([(subject, self._per_address)], now_s=now_s)
        if until_s:
            await self._note_block(subject, until_s)
            return
        await self._log.sign_in(kind, "refused", address=address, reason=refused.detail)

    async def _note_block(self, subject: str, until_s: float) -> None:
        """Record each block once: a flood of guesses must not fill the audit log."""
        if self._blocked_until_s.get(subject, 0.0) >= until_s:
            return
        self._blocked_until_s[subject] = until_s
        self._blocked_until_s.move_to_end(subject)
        while len(self._blocked_until_s) > _MAX_REMEMBERED:
            self._blocked_until_s.popitem(last=False)
        await self._log.sign_in("guesses", "slowed", address=subject.partition(":")[2])


def _limit(free: int, settings: GuessSettings) -> GuessLimit:
    return GuessLimit(
        free=free,
        first_delay_s=_FIRST_DELAY_S,
        max_delay_s=settings.max_delay_s,
        forget_s=_FORGET_S,
    )


def _account_subject(name: str) -> str:
    # Hashed: somebody may have typed a password in place of the name.
    return f"account:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
