"""How often a user, a token and an address may act (RBAC-4).

A sliding window of one minute by the `limits` library: in the memory of this process, or in Redis
where several processes serve one team. A store that cannot be reached refuses: without a count
nothing is within its limit.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage, SlidingWindowCounterSupport, Storage
from limits.aio.storage.redis.redispy import RedispyBridge
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError

from cellwall.accounts import failures
from cellwall.accounts.identity import address_subject
from cellwall.accounts.signing_keys import Clock
from cellwall.core.errors import ConfigError
from cellwall.core.types import AccountRef

_MAX_KEYS = 65_536
_REDIS_TIMEOUT_S = 2.0
_COUNT_WITHIN_S = 5.0
_PREFIX = "cellwall"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """Limits per window; 0: none."""

    user_actions: int = 6000
    token_actions: int = 6000
    address_actions: int = 12_000
    address_requests: int = 30_000
    address_sign_ins: int = 120
    window_s: int = 60
    redis_url: str = ""
    """Empty: counted in the memory of this process."""
    redis_password: str | None = None

    def __repr__(self) -> str:
        return f"RateSettings(window_s={self.window_s})"  # never the password


class BoundedMemory(Storage, SlidingWindowCounterSupport):
    """Counts in memory: constant time per count, and a bounded number of keys.

    The library's own storage walks over all keys again and again, which a flood from many addresses
    would make expensive. Where there are too many keys, the ones that were longest unused go.
    """

    STORAGE_SCHEME = None

    def __init__(self, clock: Clock, *, max_keys: int = _MAX_KEYS) -> None:
        super().__init__()
        self._clock, self._max_keys = clock, max_keys
        self._counts: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """Key -> number of the window, count in it, count in the window before."""

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def _read(self, key: str, expiry: int) -> tuple[int, float, int, int]:
        now_s = self._clock()
        window = int(now_s // expiry)
        last, current, previous = self._counts.get(key, (window, 0, 0))
        if last != window:
            previous, current = (current if last == window - 1 else 0), 0
        return window, expiry - now_s % expiry, current, previous

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        # No await between check and count, so concurrent requests cannot exceed the limit.
        window, left_s, current, previous = self._read(key, expiry)
        if previous * left_s / expiry + current > limit - amount:
            return False
        self._counts[key] = window, current + amount, previous
        self._counts.move_to_end(key)
        while len(self._counts) > self._max_keys:
            self._counts.popitem(last=False)
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        _, left_s, current, previous = self._read(key, expiry)
        return previous, left_s, current, left_s + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002  # of the port
        self._counts.pop(key, None)

    # Abstract in the library's storage, so they must be defined; only its fixed-window strategy
    # calls them, and `Rates` counts in sliding windows.

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        raise NotImplementedError

    async def get(self, key: str) -> int:
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        raise NotImplementedError

    async def check(self) -> bool:
        return True

    async def reset(self) -> int | None:
        self._counts.clear()
        return None

    async def clear(self, key: str) -> None:
        self._counts.pop(key, None)


class Rates:
    """Counts actions and requests of one service."""

    def __init__(self, settings: RateSettings, clock: Clock = time.time) -> None:
        self._settings, self._clock = settings, clock
        # Counted apart: a flood of unauthenticated requests must not drop the counts of users.
        self._actions = SlidingWindowCounterRateLimiter(_storage(settings, clock))
        self._requests = SlidingWindowCounterRateLimiter(_storage(settings, clock))
        self._refused_until_s: OrderedDict[str, float] = OrderedDict()

    async def count_action(self, account: AccountRef) -> None:
        """Count one action; raises `LimitExceeded`."""
        await self._count(self._actions, "actions", self._action_limits(account))

    async def has_room(self, account: AccountRef) -> bool:
        """Whether one action more would be counted now; it is not."""
        try:
            with anyio.fail_after(_COUNT_WITHIN_S):
                for kind, subject, amount in self._action_limits(account):
                    if not amount or not subject:
                        continue
                    item = RateLimitItemPerSecond(amount, self._settings.window_s)
                    if not await self._actions.test(item, "actions", kind, subject):
                        return False
        except Exception:  # noqa: BLE001  # as in `_count`: without a count there is no room
            return False
        return True

    def _action_limits(self, account: AccountRef) -> Sequence[tuple[str, str, int]]:
        settings = self._settings
        address = address_subject(account.address) if account.address else ""
        return (
            ("user", account.user_id, settings.user_actions),
            ("token", account.credential, settings.token_actions),
            ("address", address, settings.address_actions),
        )

    async def count_request(self, address: str) -> None:
        """Count one request, before anything is known about it; raises `LimitExceeded`."""
        found = (("address", address_subject(address), self._settings.address_requests),)
        await self._count(self._requests, "requests", found)

    async def count_sign_in(self, address: str) -> None:
        """Count the beginning of a sign-in that takes a row; raises `LimitExceeded`."""
        found = (("address", address_subject(address), self._settings.address_sign_ins),)
        await self._count(self._requests, "sign-ins", found)

    async def close(self) -> None:
        """Close the connections to Redis."""
        for limiter in (self._actions, self._requests):
            bridge = getattr(limiter.storage, "bridge", None)
            if isinstance(bridge, RedispyBridge):
                client: Any = bridge.get_connection()  # the library's protocol lacks `aclose`
                await client.aclose()

    async def _count(
        self,
        limiter: SlidingWindowCounterRateLimiter,
        what: str,
        limits: Sequence[tuple[str, str, int]],
    ) -> None:
        try:
            if isinstance(limiter.storage, BoundedMemory):  # waits for nothing
                exceeded = await self._first_exceeded(limiter, what, limits)
            else:
                # The library's own timeout is for each read, and it tries again.
                with anyio.fail_after(_COUNT_WITHIN_S):
                    exceeded = await self._first_exceeded(limiter, what, limits)
        except Exception as error:  # noqa: BLE001  # also what a parser raises for a hostile reply: without a count nothing is within its limit
            raise failures.rates_unknown(type(error).__name__) from None
        if exceeded is not None:
            (kind, subject, amount), wait_s = exceeded
            raise failures.rate_exceeded(
                f"{amount} {what} per {self._settings.window_s} seconds of one {kind}",
                retry_after_s=wait_s,
                is_repeated=self._note_refusal(f"{what}:{kind}:{subject}"),
            )

    async def _first_exceeded(
        self,
        limiter: SlidingWindowCounterRateLimiter,
        what: str,
        limits: Sequence[tuple[str, str, int]],
    ) -> tuple[tuple[str, str, int], float] | None:
        """The limit that refuses, and how long to wait."""
        for kind, subject, amount in limits:
            if not amount or not subject:
                continue
            item = RateLimitItemPerSecond(amount, self._settings.window_s)
            if not await limiter.hit(item, what, kind, subject):
                wait_s = await self._wait_s(limiter, item, (what, kind, subject))
                return (kind, subject, amount), wait_s
        return None

    async def _wait_s(
        self,
        limiter: SlidingWindowCounterRateLimiter,
        item: RateLimitItemPerSecond,
        key: tuple[str, ...],
    ) -> float:
        storage, expiry = limiter.storage, item.get_expiry()
        assert isinstance(storage, SlidingWindowCounterSupport)  # noqa: S101  # for the type checker
        previous, left_s, current, current_left_s = await storage.get_sliding_window(
            item.key_for(*key), expiry
        )
        if current < item.amount and previous:
            # The count of the window before fades with the time that is left of this one.
            return max(0.0, left_s - (item.amount - current - 1) * expiry / previous)
        return max(0.0, current_left_s - expiry)

    def _note_refusal(self, subject: str) -> bool:
        """Whether the subject was refused before within the last window."""
        now_s = self._clock()
        is_repeated = self._refused_until_s.get(subject, 0.0) > now_s
        if not is_repeated:
            self._refused_until_s[subject] = now_s + self._settings.window_s
            self._refused_until_s.move_to_end(subject)
            while len(self._refused_until_s) > _MAX_KEYS:
                self._refused_until_s.popitem(last=False)
        return is_repeated


def _storage(settings: RateSettings, clock: Clock) -> Storage:
    if not settings.redis_url:
        return BoundedMemory(clock)
    options: dict[str, float | str | bool] = {
        "socket_timeout": _REDIS_TIMEOUT_S,
        "socket_connect_timeout": _REDIS_TIMEOUT_S,
    }
    if settings.redis_password is not None:
        options["password"] = settings.redis_password
    try:
        return RedisStorage(
            f"async+{settings.redis_url}",
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix=_PREFIX,
            **options,
        )
    except ConfigurationError as error:
        raise ConfigError(
            "rates.redis_url needs the redis package",
            hint="Install cellwall[redis].",
            detail=str(error),
        ) from None
