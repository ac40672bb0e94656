"""The limits of egress: the settings, and the counters of a session.

A session has connection slots, bytes, bandwidth, a share of the loop, and idle connections.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Literal, Protocol

from cellwall.core.errors import EgressRefused
from cellwall.core.limits import GIB, MIB
from cellwall.core.network import ContentCheck, EgressUsage
from cellwall.egress.destinations.header_rules import HeaderRule
from cellwall.egress.inspection.decompression import DecompressionBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    """The same for each session; `[egress]` in the configuration gives the reasons."""

    max_connections: int = 256
    max_total_connections: int = 10_000
    max_upload_bytes: int = 64 * MIB
    max_download_bytes: int = 4 * GIB
    bytes_per_s: int = 512 * MIB
    connect_timeout_s: float = 10.0
    head_timeout_s: float = 15.0
    idle_timeout_s: float = 120.0
    dns_servers: tuple[tuple[str, int], ...] = ()
    """Empty: the system's resolver."""
    fetch_max_bytes: int = 10 * MIB
    fetch_timeout_s: float = 30.0
    dangerously_allow_addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    header_rules: tuple[HeaderRule, ...] = ()
    checks: tuple[ContentCheck, ...] = ()

    @property
    def has_checks(self) -> bool:
        """Whether content is looked at beyond secrets, so that TLS must be intercepted."""
        return any(check.is_active for check in self.checks)


def timeout_error(what: str) -> EgressRefused:
    """The error for a peer that exceeds its deadline."""
    return EgressRefused(
        f"{what} timed out",
        hint="Try again; a slow server or program may need a longer timeout in [egress].",
        code="CW-LATE",
    )


Direction = Literal["up", "down"]

_RESERVED_DESCRIPTORS = 192
_MIN_SLOTS = 16
_BURST_S = 0.25
"""How long an idle session may send at full speed before the bandwidth limit applies."""


class ConnectionSlots:
    """The connections of all sessions. Each costs this process two descriptors, at times four;
    without a limit, one greedy cell would leave none for the runs of its neighbours."""

    def __init__(self, max_slots: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = max((soft - _RESERVED_DESCRIPTORS) // 4, _MIN_SLOTS)
        self._max_slots = room if max_slots is None else max_slots
        self._count = 0

    def enter(self, own: int) -> bool:
        """Take a slot for a session that has `own` connections; False if there is none.

        Above 75 % usage, only sessions with few connections may open more.
        """
        is_scarce = self._count >= self._max_slots * 3 // 4
        if self._count >= self._max_slots or (is_scarce and own >= max(self._max_slots // 16, 2)):
            return False
        self._count += 1
        return True

    def leave(self) -> None:
        self._count -= 1


class SessionBudget:
    """Counters of one session. Only the egress loop uses them, so they need no lock."""

    def __init__(
        self,
        settings: EgressSettings,
        slots: ConnectionSlots,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._clock = clock
        self._at_once = 0
        self._total = 0
        self._left_bytes: dict[Direction, int] = {
            "up": settings.max_upload_bytes,
            "down": settings.max_download_bytes,
        }
        self._tokens = settings.bytes_per_s * _BURST_S
        self._refilled_s = clock()

    def enter(self) -> None:
        """Count a connection from the cell; `leave` releases its slot."""
        if self._at_once >= self._settings.max_connections:
            raise _over(
                f"this sandbox already has {self._settings.max_connections} connections open",
                "Close some of them first, or raise max_connections in [egress].",
            )
        if not self._slots.enter(self._at_once):
            raise _over(
                "the connection slots of this process are all in use",
                "Try again later, or raise the open file limit of the process (ulimit -n).",
            )
        self._at_once += 1

    def leave(self) -> None:
        self._slots.leave()
        self._at_once -= 1

    @property
    def usage(self) -> EgressUsage:
        settings, left = self._settings, self._left_bytes
        return EgressUsage(
            connections=self._total,
            bytes_up=settings.max_upload_bytes - left["up"],
            bytes_down=settings.max_download_bytes - left["down"],
        )

    def count_connection(self) -> None:
        """Count a connection to a server."""
        if self._total >= self._settings.max_total_connections:
            raise _over(
                f"this sandbox has used its {self._settings.max_total_connections} connections",
                "Reuse connections, or raise max_total_connections in [egress].",
            )
        self._total += 1

    def admit(self, count: int) -> None:
        """Refuse to send more bytes than the upload limit leaves."""
        if count > self.room("up"):
            self._left_bytes["up"] = 0
        self.check("up")

    def throttle_delay_s(self) -> float:
        """Seconds until the bandwidth limit lets the session send again, on any connection."""
        self._refill()
        return max(-self._tokens / self._settings.bytes_per_s, 0.0)

    def room(self, direction: Direction) -> int:
        """How many bytes may still be sent in that direction; never negative."""
        return max(self._left_bytes[direction], 0)

    def check(self, direction: Direction) -> None:
        """Refuse if the limit of that direction is reached."""
        if self.room(direction):
            return
        if direction == "up":
            raise _over(
                f"the upload limit of {self._settings.max_upload_bytes} bytes is reached",
                "Send less, or raise max_upload_bytes in [egress].",
            )
        raise _over(
            f"the download limit of {self._settings.max_download_bytes} bytes is reached",
            "Fetch less, or raise max_download_bytes in [egress].",
        )

    def spend(self, direction: Direction, count: int) -> float:
        """Count transferred bytes; returns the throttle delay in seconds."""
        self._left_bytes[direction] -= count
        self._refill()
        # The balance may become negative: the sender then waits, so no limit splits a piece.
        self._tokens -= count
        return max(-self._tokens / self._settings.bytes_per_s, 0.0)

    def _refill(self) -> None:
        rate, now_s = self._settings.bytes_per_s, self._clock()
        self._tokens = min(self._tokens + (now_s - self._refilled_s) * rate, rate * _BURST_S)
        self._refilled_s = now_s


def _over(message: str, hint: str) -> EgressRefused:
    return EgressRefused(message, hint=hint, code="CW-NET-LIMIT")


_MAX_INFLATION = 16
"""Multiple of the upload limit; a body that decompresses to more is a bomb."""


class FairShare:
    """The share of one session in the loop's time and in memory for decompression."""

    def __init__(self, settings: EgressSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.up = DecompressionBudget(_MAX_INFLATION * settings.max_upload_bytes)
        """For request bodies, over all connections of the session."""
        self.down = DecompressionBudget(settings.max_download_bytes)
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def wait_turn(self) -> None:
        """Awaited before each piece of work: a session does one piece per loop iteration.

        However many connections and streams it has, other sessions wait for one piece only.
        """
        if not self._is_taken:
            self._is_taken = True
            self._loop.call_soon(self._next)
            return
        mine: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # its waiter was cancelled
                waiting.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._is_taken = False


_MAX_IDLE = 32
_KEPT_S = 10.0

PoolKey = tuple[str, int, bool, str]
"""Host, port, whether TLS is used, and the action: a connection is reused for the same key only."""


class IdleConnection(Protocol):
    """A connection to a server between two requests."""

    def next_cycle(self) -> bool:
        """Whether the last exchange left the connection fit for one more."""

    def is_quiet(self) -> bool:
        """Whether no byte and no end of stream has arrived since."""

    def drop(self) -> None:
        """End the connection between two requests."""


class ConnectionPool:
    """Idle connections of a session: few, and for seconds, since servers close idle connections."""

    def __init__(self, slots: ConnectionSlots) -> None:
        self._slots = slots
        self._idle: dict[PoolKey, deque[tuple[IdleConnection, asyncio.TimerHandle]]] = {}
        self._count = 0

    def take(self, key: PoolKey) -> IdleConnection | None:
        """The connection used last, unless the server has closed it."""
        while idle := self._idle.get(key):
            server, timer = idle.pop()
            timer.cancel()
            self._leave()
            if server.is_quiet():
                return server
            server.drop()
        return None

    def put(self, key: PoolKey, server: IdleConnection) -> None:
        """Keep the connection if it is fit for one more request, else close it."""
        is_full = self._count >= _MAX_IDLE or not server.next_cycle()
        if is_full or not self._slots.enter(_MAX_IDLE):
            server.drop()
            return
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._expire, key)
        self._idle.setdefault(key, deque()).append((server, timer))
        self._count += 1

    def _expire(self, key: PoolKey) -> None:
        server, _ = self._idle[key].popleft()  # the oldest expires first
        self._leave()
        server.drop()

    def _leave(self) -> None:
        self._count -= 1
        self._slots.leave()

    def close(self) -> None:
        for idle in self._idle.values():
            for server, timer in idle:
                timer.cancel()
                self._leave()
                server.drop()
        self._idle.clear()
