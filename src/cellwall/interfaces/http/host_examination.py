"""The checks of `cellwall doctor --production` for the running service, on request.

They run cells and read the host, which takes seconds: one examination at a time, and its result
counts for a while, so that clients cannot load the host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from cellwall.admin.host_check import HostReport, examine_running
from cellwall.core.errors import Busy
from cellwall.core.types import Principal
from cellwall.interfaces.http.shipped_policy import default_policy
from cellwall.runtime.app import App

_COUNTS_S = 30.0
_WITHIN_S = 180.0
_WHO = Principal("host-check", "http", "user")


@dataclass(frozen=True, slots=True)
class HostExamination:
    """A report, and when it was made."""

    report: HostReport
    at_s: float


class HostExaminer:
    """Keeps the last examination."""

    def __init__(self, app: App, address: str) -> None:
        self._app, self._address = app, address
        self._lock = anyio.Lock()
        self.last: HostExamination | None = None

    async def examine(self) -> HostExamination:
        """A new examination, or that of a moment ago."""
        with anyio.move_on_after(_WITHIN_S):
            async with self._lock:
                if self.last is None or time.time() - self.last.at_s > _COUNTS_S:
                    report = await examine_running(
                        self._app,
                        who=_WHO,
                        policy=default_policy(self._app),
                        address=self._address,
                    )
                    self.last = HostExamination(report, time.time())
                return self.last
        raise Busy("the checks of the host took too long", hint="Try again, or run doctor there.")
