"""What one session may use up: connections, bytes in each direction, bytes in a second."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from cellwall.core.errors import EgressRefused
from cellwall.egress.inspection.decompression import DecompressionBudget
from cellwall.egress.settings import EgressSettings

Direction = Literal["up", "down"]

_DESCRIPTORS_OF_OTHERS = 192
_FEWEST = 16
_BURST_S = 0.25
"""How long a session that was quiet may go at full speed before the bandwidth bounds it."""


class ConnectionSlots:
    """The connections of all sessions together. Each costs this process two descriptors, and at
    times four; without a bound, one greedy cell would leave none for its neighbours' runs."""

    def __init__(self, most: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = max((soft - _DESCRIPTORS_OF_OTHERS) // 4, _FEWEST)
        self._most = room if most is None else most
        self._count = 0

    def enter(self, own: int) -> bool:
        """Whether there was a place for one who has `own` already; `leave` gives it back.

        The last quarter is for those who have few: nobody is shut out by those who have many.
        """
        is_scarce = self._count >= self._most * 3 // 4
        if self._count >= self._most or (is_scarce and own >= max(self._most // 16, 2)):
            return False
        self._count += 1
        return True

    def leave(self) -> None:
        self._count -= 1


class Budget:
    """Counts for one session. Only the loop of the way out touches it, so it needs no lock."""

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
        self._up_bytes = 0
        self._down_bytes = 0
        self._tokens = settings.bytes_per_s * _BURST_S
        self._refilled_s = clock()

    def enter(self) -> None:
        """One more connection from inside; `leave` gives the place back."""
        if self._at_once >= self._settings.max_connections:
            raise _over(
                f"this sandbox already has {self._settings.max_connections} connections open",
                "Close some of them first, or raise max_connections in [egress].",
            )
        if not self._slots.enter(self._at_once):
            raise _over(
                "the sandboxes of this process have as many connections as it has room for",
                "Try again later, or raise the process's limit of open files (ulimit -n).",
            )
        self._at_once += 1

    def leave(self) -> None:
        self._slots.leave()
        self._at_once -= 1

    def count_connection(self) -> None:
        """One more connection that goes out."""
        if self._total >= self._settings.max_total_connections:
            raise _over(
                f"this sandbox has made its {self._settings.max_total_connections} connections",
                "Use connections again, or raise max_total_connections in [egress].",
            )
        self._total += 1

    def admit(self, count: int) -> None:
        """Refuse to send what is more than may still be sent."""
        if count > self.room("up"):
            self._up_bytes = self._settings.max_upload_bytes
        self.check("up")

    def throttle_delay_s(self) -> float:
        """How long the session has to wait for what went before, on whatever connection."""
        self._refill()
        return max(-self._tokens / self._settings.bytes_per_s, 0.0)

    def room(self, direction: Direction) -> int:
        """How many bytes may still go that way; never less than none."""
        if direction == "up":
            return max(self._settings.max_upload_bytes - self._up_bytes, 0)
        return max(self._settings.max_download_bytes - self._down_bytes, 0)

    def check(self, direction: Direction) -> None:
        """Refuse when not one byte more may go that way."""
        if self.room(direction):
            return
        if direction == "up":
            raise _over(
                f"this sandbox has sent its {self._settings.max_upload_bytes} bytes",
                "Send less, or raise max_upload_bytes in [egress].",
            )
        raise _over(
            f"this sandbox has received its {self._settings.max_download_bytes} bytes",
            "Fetch less, or raise max_download_bytes in [egress].",
        )

    def spend(self, direction: Direction, count: int) -> float:
        """Note bytes that went, and tell for how many seconds nothing more should follow."""
        if direction == "up":
            self._up_bytes += count
        else:
            self._down_bytes += count
        self._refill()
        # What went has gone: a debt is paid by waiting, so no bound has to cut a piece in two.
        self._tokens -= count
        return max(-self._tokens / self._settings.bytes_per_s, 0.0)

    def _refill(self) -> None:
        rate, now_s = self._settings.bytes_per_s, self._clock()
        self._tokens = min(self._tokens + (now_s - self._refilled_s) * rate, rate * _BURST_S)
        self._refilled_s = now_s


def _over(message: str, hint: str) -> EgressRefused:
    return EgressRefused(message, hint=hint, code="CW-NET-LIMIT")


_INFLATED_MOST = 16
"""Times the upload's own bound; beyond that bodies are made to unpack, not to be sent."""


class FairShare:
    """Used on the loop alone."""

    def __init__(self, settings: EgressSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.up = DecompressionBudget(_INFLATED_MOST * settings.max_upload_bytes)
        """For bodies on their way out, in all of the session's connections."""
        self.down = DecompressionBudget(settings.max_download_bytes)
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def wait_turn(self) -> None:
        """Before each piece of work: a session does one in each round of the loop.

        However many connections and streams it has, its neighbours wait for one piece of it.
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
            if not waiting.done():  # whoever was cancelled wants none any more
                waiting.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._is_taken = False


_MOST = 32
_KEPT_S = 10.0

Key = tuple[str, int, bool, str]
"""Host, port, whether it is with TLS, and the action: only the very same is the same."""


class IdleConnection(Protocol):
    """A connection to a server between two requests."""

    def next_cycle(self) -> bool:
        """Whether the last exchange left the connection fit for one more."""

    def is_quiet(self) -> bool:
        """Whether nothing has come since, not even the end."""

    def drop(self) -> None:
        """End the connection between two requests."""


class ConnectionPool:
    """Few, and not for long: servers close what they do not hear from."""

    def __init__(self, slots: ConnectionSlots) -> None:
        self._slots = slots
        self._kept: dict[Key, deque[tuple[IdleConnection, asyncio.TimerHandle]]] = {}
        self._count = 0

    def take(self, key: Key) -> IdleConnection | None:
        """The one that was used last, if the server has not closed it meanwhile."""
        while ends := self._kept.get(key):
            server, timer = ends.pop()
            timer.cancel()
            self._leave()
            if server.is_quiet():
                return server
            server.drop()
        return None

    def put(self, key: Key, server: IdleConnection) -> None:
        """Keep it if one more request could go by it, else end it."""
        is_full = self._count >= _MOST or not server.next_cycle()
        if is_full or not self._slots.enter(_MOST):
            server.drop()
            return
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._expire, key)
        self._kept.setdefault(key, deque()).append((server, timer))
        self._count += 1

    def _expire(self, key: Key) -> None:
        server, _ = self._kept[key].popleft()  # the oldest is the first whose time is over
        self._leave()
        server.drop()

    def _leave(self) -> None:
        self._count -= 1
        self._slots.leave()

    def close(self) -> None:
        for ends in self._kept.values():
            for server, timer in ends:
                timer.cancel()
                self._leave()
                server.drop()
        self._kept.clear()
