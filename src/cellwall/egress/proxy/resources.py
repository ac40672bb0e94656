"""What one session may use up: connections, bytes in each direction, bytes in a second."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Literal

from cellwall.core.errors import EgressRefused
from cellwall.egress.settings import EgressSettings

Direction = Literal["up", "down"]

_DESCRIPTORS_OF_OTHERS = 192
_FEWEST = 16
_BURST_S = 0.25
"""How long a session that was quiet may go at full speed before the bandwidth bounds it."""


class Crowd:
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
        crowd: Crowd,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._crowd = crowd
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
        if not self._crowd.enter(self._at_once):
            raise _over(
                "the sandboxes of this process have as many connections as it has room for",
                "Try again later, or raise the process's limit of open files (ulimit -n).",
            )
        self._at_once += 1

    def leave(self) -> None:
        self._crowd.leave()
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

    def debt_s(self) -> float:
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
