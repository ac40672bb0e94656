"""The live sandboxes of the service, each with its owner (RBAC-3).

A sandbox is found by its owner and its id together: an id of another user is as absent as an
unknown one, in one look-up, so that neither the answer nor its time tells them apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from cellwall.core.errors import BadInput, Busy
from cellwall.interfaces.http.callers import Caller
from cellwall.interfaces.http.runs import Runs
from cellwall.interfaces.sdk.hosts import LocalHost, SandboxSpec
from cellwall.runtime.wiring import App

MAX_KEEP_ALIVE_S = 7 * 86_400.0
_LOOK_EVERY_S = 1.0
_log = logging.getLogger("cellwall.http")


@dataclass(slots=True)
class OwnedSandbox:
    """A live sandbox of one user."""

    host: LocalHost
    owner: str
    template: str
    keep_alive_s: float
    runs: Runs
    made_s: float = field(default_factory=time.time)
    used_at: float = field(default_factory=time.monotonic)
    busy: int = 0

    @property
    def id(self) -> str:
        return self.host.id

    @property
    def ends_in_s(self) -> float:
        return self.keep_alive_s - (time.monotonic() - self.used_at)

    @property
    def is_overdue(self) -> bool:
        return not self.busy and self.ends_in_s < 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The sandbox is not overdue while the block lasts, and its time begins anew behind it."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used_at = time.monotonic()


class OwnedSandboxes:
    """All sandboxes of the service."""

    def __init__(self, app: App, *, max_per_owner: int, tasks: anyio.abc.TaskGroup) -> None:
        self._app = app
        self._max_per_owner = max_per_owner
        self._tasks = tasks
        self._live: dict[tuple[str, str], OwnedSandbox] = {}
        self._making: dict[str, int] = {}
        self._is_closed = False

    async def create(self, caller: Caller, spec: SandboxSpec, keep_alive_s: float) -> OwnedSandbox:
        """A new sandbox of the caller; raises `Busy` beyond the number that one user may have."""
        owner = caller.owner
        with self._counted(owner):
            host = await LocalHost.create(self._app, spec, principal=caller.principal)
            made = OwnedSandbox(host, owner, spec.template, keep_alive_s, Runs(self._tasks))
            self._live[owner, host.id] = made
        if self._is_closed:
            await self.end(made)
            raise _stopping()
        return made

    def find(self, caller: Caller, name: str) -> OwnedSandbox:
        """The caller's sandbox; raises the same error for an unknown, ended or foreign id."""
        found = self._live.get((caller.owner, name))
        if found is None:
            raise BadInput(
                "no live sandbox has this id",
                hint="The sandbox ended or timed out; POST /v1/sessions creates one.",
                code="CW-NO-SANDBOX",
            )
        found.used_at = time.monotonic()
        return found

    def of(self, caller: Caller) -> list[OwnedSandbox]:
        """The caller's sandboxes, the oldest first."""
        return [each for (owner, _), each in self._live.items() if owner == caller.owner]

    @property
    def count(self) -> int:
        return len(self._live)

    async def end(self, sandbox: OwnedSandbox) -> None:
        """End a sandbox with its runs; a second call has no effect."""
        if self._live.pop((sandbox.owner, sandbox.id), None) is not None:
            await sandbox.host.end()

    async def watch(self) -> None:
        """End the sandboxes that nobody has used for their time."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            for each in [each for each in self._live.values() if each.is_overdue]:
                await self._end_quietly(each)

    async def close(self) -> None:
        """End all sandboxes; none is created any more."""
        self._is_closed = True
        async with anyio.create_task_group() as tasks:
            for each in list(self._live.values()):
                tasks.start_soon(self._end_quietly, each)

    async def _end_quietly(self, sandbox: OwnedSandbox) -> None:
        try:
            await self.end(sandbox)
        except Exception:  # noqa: BLE001  # the other sandboxes must end as well
            _log.exception("a sandbox did not end cleanly")

    @contextmanager
    def _counted(self, owner: str) -> Iterator[None]:
        """Counts creations under way, so that concurrent ones cannot exceed the number together."""
        if self._is_closed:
            raise _stopping()
        live = sum(1 for name, _ in self._live if name == owner)
        if live + self._making.get(owner, 0) >= self._max_per_owner:
            raise Busy(
                f"{self._max_per_owner} sandboxes of this user are live already",
                hint="End one: DELETE /v1/sessions/ID; the administrator sets the number in "
                "[server] of the configuration.",
                code="CW-TOO-MANY-SESSIONS",
            )
        self._making[owner] = self._making.get(owner, 0) + 1
        try:
            yield
        finally:
            self._making[owner] -= 1
            if not self._making[owner]:
                del self._making[owner]


def _stopping() -> Busy:
    return Busy("the service is stopping", hint="Try again in a moment.", code="CW-STOPPING")
