"""The lease of a host: while the host renews it the host serves, else the host stops by itself.

The host measures its lease from the moment before each renewal, on a clock that also runs while the
machine sleeps; the others measure from the moment that the database has noted, and wait longer. So
a host that is cut off has ended what it held before another one can take over.

Two threads keep the lease beside the event loop of the service: one renews it on a connection of
its own, so that a renewal does not wait behind requests; the other ends the process when the lease
has run out and the event loop has not fenced the host. With the process, every cell ends. An event
loop that does not run for half a lease gets no renewal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from cellwall.core.errors import CellwallError
from cellwall.core.hosts import HostsPort
from cellwall.core.types import Json

_log = logging.getLogger("cellwall.fleet")
_FENCED_EXIT = 77
_LOOK_EVERY_S = 0.1
_PROVEN_LOOK_S = 0.02
_ENDS_BEFORE_S = 0.3
"""A process that does not fence itself ends so long before the others take over."""
_LOST_AFTER = 1.65
"""Leases. With the default of 2.5 s, a host that stands still for 3 s is not lost: it has renewed
its lease half a second before at the latest, and needs a moment afterwards. One that is cut off is
noticed within 5 s: this and the look of a front, which is due every quarter of a second."""


def lost_after_s(lease_s: float) -> float:
    """When others take over: a host has ended what it held by then."""
    return _LOST_AFTER * lease_s


class LeasedHost(Protocol):
    """What holds the lease."""

    def describe(self) -> Mapping[str, Json]:
        """The load of now, for placement."""

    def set_draining(self, *, is_draining: bool) -> None: ...

    async def fence(self) -> None:
        """The lease is not proven any more: end what reaches beyond this host."""


class HostLease:
    """The lease of one incarnation. `open_hosts` opens a connection to the database for the thread
    that renews."""

    def __init__(
        self,
        hosts: HostsPort,
        held_by: LeasedHost,
        incarnation: str,
        *,
        lease_s: float,
        open_hosts: Callable[[], AbstractAsyncContextManager[HostsPort]],
        end_process: Callable[[], Awaitable[None]],
    ) -> None:
        self._hosts, self._held_by, self._incarnation = hosts, held_by, incarnation
        self._lease_s, self._end_process, self._open_hosts = lease_s, end_process, open_hosts
        # Each is written by one thread alone, and read by the others as a whole.
        self._until_s = 0.0
        self._is_fenced = self._is_taken = self._is_draining = False
        self._about: Mapping[str, Json] = {}
        self._alive_at_s = 0.0
        self._is_over = threading.Event()

    @property
    def is_valid(self) -> bool:
        return _now() < self._until_s

    async def prove(self) -> bool:
        """Whether the lease is valid. A renewal that is a little late is waited for: nothing is
        done meanwhile, and the caller would only ask again."""
        while not self.is_valid:
            if _now() > self._until_s + self._lease_s / 2 or self._is_over.is_set():
                return False
            await asyncio.sleep(_PROVEN_LOOK_S)
        return True

    async def join(self) -> None:
        """The first lease."""
        before_s = _now()
        self._tell()
        await self._hosts.join_host(self._incarnation, self._about, rivals_s=2 * self._lease_s)
        self._until_s, self._alive_at_s = before_s + self._lease_s, _now()
        for work in (self._watch, self._renew_in_thread):
            threading.Thread(target=work, name="cellwall-lease", daemon=True).start()

    async def keep(self) -> None:
        """Tell the thread that renews what to tell; until the host is removed or declared lost,
        when its process ends."""
        was_valid = True
        while not self._is_taken:
            await asyncio.sleep(self._lease_s / 8)
            self._tell()
            self._held_by.set_draining(is_draining=self._is_draining)
            if self.is_valid:
                self._is_fenced, was_valid = False, True
            elif was_valid:  # a process that stood still has not had the time to renew
                was_valid = False
            else:
                await self._fence()
        _log.error("this host was declared lost or removed: it ends")
        await self._fence()
        await self._end_process()

    def _tell(self) -> None:
        self._about, self._alive_at_s = self._held_by.describe(), _now()

    async def leave(self) -> None:
        """The host ends on purpose."""
        self._is_over.set()
        self._until_s = 0.0
        await self._hosts.leave_host(self._incarnation)

    async def _fence(self) -> None:
        if not self._is_fenced:
            await self._held_by.fence()
            self._is_fenced = True

    def _renew_in_thread(self) -> None:
        while not self._is_over.is_set() and not self._is_taken:
            try:
                asyncio.run(self._renew())
            except Exception as error:  # noqa: BLE001  # whatever it was: without a thread no lease
                _log.warning("the lease of the host was not renewed: %s", type(error).__name__)
                self._is_over.wait(self._lease_s / 5)

    async def _renew(self) -> None:
        begun_s = _now()
        async with self._open_hosts() as hosts:
            while not self._is_over.is_set():
                await asyncio.sleep(_LOOK_EVERY_S)
                before_s = _now()
                if before_s - begun_s < self._lease_s / 5:
                    continue
                if before_s - self._alive_at_s > self._lease_s / 2:
                    continue  # the event loop of the service hangs: it must not seem to serve
                begun_s = before_s
                try:
                    async with asyncio.timeout(self._lease_s / 2):
                        found = await hosts.renew_host(self._incarnation, self._about)
                except (CellwallError, TimeoutError) as error:
                    _log.warning("the lease of the host was not renewed: %s", type(error).__name__)
                    continue
                if found is None:
                    self._until_s, self._is_taken = 0.0, True
                    return
                self._is_draining = found.is_draining
                if not self._is_over.is_set():
                    self._until_s = before_s + self._lease_s

    def _watch(self) -> None:
        """An event loop that hangs would keep cells and connections for ever."""
        ends_s = lost_after_s(self._lease_s) - self._lease_s - _ENDS_BEFORE_S
        while not self._is_over.wait(_LOOK_EVERY_S):
            late_s = _now() - self._until_s
            if self._until_s and late_s > ends_s and not self._is_fenced:
                # As by kill -9: the shim of each cell ends the cell when this process is gone.
                os._exit(_FENCED_EXIT)


def _now() -> float:
    """Also runs while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
