"""Whether the service can work: checked by working, not by its configuration."""

from __future__ import annotations

import time
from typing import Literal

import anyio

from cellwall.core.account_ports import SessionsPort
from cellwall.core.errors import StorageError
from cellwall.core.outcomes import Status
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.interfaces.http.bodies.lookups import Readiness
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.http.shipped_policy import default_policy
from cellwall.runtime.app import App

_KEPT_S = 60.0
_WITHIN_S = 30.0
_WHO = Principal("readiness", "http", "user")


class ReadinessProbe:
    """Remembers its last result for a while, so that probes cannot load the host."""

    def __init__(self, app: App, store: SessionsPort, sandboxes: OwnedSandboxes) -> None:
        self._app, self._store, self._sandboxes = app, store, sandboxes
        self._lock = anyio.Lock()
        self._cell: tuple[float, bool, bool] | None = None

    async def check(self) -> Readiness:
        database = await self._can_read()
        async with self._lock:
            if self._cell is None or time.monotonic() - self._cell[0] > _KEPT_S:
                audit, cell = await self._can_run()
                # A failure is looked at again by the next probe.
                self._cell = (time.monotonic() if audit and cell else -_KEPT_S, audit, cell)
            _, audit, cell = self._cell
        is_open = not self._sandboxes.is_closed
        status: Literal["ready", "not ready"] = "not ready"
        if database and audit and cell and is_open:
            status = "ready"
        return Readiness(
            status=status, database=database, audit=audit, sandbox=cell, is_stopping=not is_open
        )

    async def _can_read(self) -> bool:
        try:
            with anyio.fail_after(_WITHIN_S):
                await self._store.find_session("", user_id="", teams=frozenset())
        except (StorageError, TimeoutError):
            return False
        return True

    async def _can_run(self) -> tuple[bool, bool]:
        """Whether the audit log takes records, and whether a cell can be made."""
        if self._app.ledger.stop_flag.is_known_set():
            return True, False  # without a trial: each one would be a denial in the record
        policy = default_policy(self._app)
        action = Action(
            principal=_WHO,
            operation=RunCommand(("true",)),
            limits=self._app.limits,
            policy=() if policy is None else (policy,),
        )
        with anyio.move_on_after(_WITHIN_S):
            outcome = await self._app.runtime.perform(action)
            code = outcome.error.code if outcome.error is not None else ""
            return code != "CW-AUDIT-FAILED", outcome.status is Status.OK
        return False, False
