"""The lease of a host: while the host renews it the host serves, else the host stops by itself.

The host measures its lease from the moment before each renewal, on a clock that also runs while the
machine sleeps; the others measure from the moment that the database has noted, and wait longer. So
a host that is cut off has ended what it held before another one can take over. A host whose event
loop does not run is ended by a thread of its own: with the process, every cell ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from cellwall.core.errors import CellwallError
from cellwall.core.hosts import HostsPort
from cellwall.core.types import Json

_log = logging.getLogger("cellwall.fleet")
_FENCED_EXIT = 77
_LOOK_EVERY_S = 0.1


class LeasedHost(Protocol):
    """What holds the lease."""

    def describe(self) -> Mapping[str, Json]:
        """The load of now, for placement."""

    def set_draining(self, *, is_draining: bool) -> None: ...

    async def fence(self) -> None:
        """The lease is not proven any more: end what reaches beyond this host."""


class HostLease:
    """The lease of one incarnation."""

    def __init__(
        self,
        hosts: HostsPort,
        held_by: LeasedHost,
        incarnation: str,
        *,
        lease_s: float,
        end_process: Callable[[], Awaitable[None]],
    ) -> None:
        self._hosts, self._held_by, self._incarnation = hosts, held_by, incarnation
        self._lease_s, self._end_process = lease_s, end_process
        self._until_s = 0.0
        self._is_fenced = False
        self._is_over = threading.Event()

    @property
    def is_valid(self) -> bool:
        return _now() < self._until_s

    async def join(self) -> None:
        """The first lease."""
        before_s = _now()
        await self._hosts.join_host(
            self._incarnation, self._held_by.describe(), rivals_s=2 * self._lease_s
        )
        self._until_s = before_s + self._lease_s
        threading.Thread(target=self._watch, name="cellwall-lease", daemon=True).start()

    async def keep(self) -> None:
        """Renew until the host is removed or declared lost; then its process ends."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            before_s = _now()
            try:
                async with asyncio.timeout(self._lease_s / 2):
                    found = await self._hosts.renew_host(
                        self._incarnation, self._held_by.describe()
                    )
            except (CellwallError, TimeoutError) as error:
                _log.warning("the lease of the host was not renewed: %s", type(error).__name__)
                if not self.is_valid:
                    await self._fence()
                continue
            if found is None:
                _log.error("this host was declared lost or removed: it ends")
                self._until_s = 0.0
                await self._fence()
                await self._end_process()
                return
            self._held_by.set_draining(is_draining=found.is_draining)
            self._until_s, self._is_fenced = before_s + self._lease_s, False

    async def leave(self) -> None:
        """The host ends on purpose."""
        self._is_over.set()
        self._until_s = 0.0
        await self._hosts.leave_host(self._incarnation)

    async def _fence(self) -> None:
        if not self._is_fenced:
            await self._held_by.fence()
            self._is_fenced = True

    def _watch(self) -> None:
        """In a thread: an event loop that hangs would keep cells and connections for ever."""
        while not self._is_over.wait(_LOOK_EVERY_S):
            late_s = _now() - self._until_s
            if self._until_s and late_s > self._lease_s / 4 and not self._is_fenced:
                # As by kill -9: the shim of each cell ends the cell when this process is gone.
                os._exit(_FENCED_EXIT)


def _now() -> float:
    """Also runs while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
