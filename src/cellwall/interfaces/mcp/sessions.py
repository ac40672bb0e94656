"""The sandboxes of one client. Over standard input and output one process has one client; over
HTTP a client is a session of the protocol, or since 2026-07-28, which has none, a sign-in.

The first sandbox is created when a call needs one; calls without an id go to the newest. An id is
130 random bits, and lookups see only this client's ids: another client's id finds nothing.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput, Busy
from cellwall.core.ids import new_id
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.ports import ApproverPort
from cellwall.core.types import (
    Action,
    FetchUrl,
    OutputSink,
    Principal,
    RunCode,
    RunCommand,
    WorkspaceRequest,
)
from cellwall.interfaces.mcp.tools import Operation
from cellwall.interfaces.sdk.live_actions import LiveActions
from cellwall.runtime.app import App

MAX_SANDBOXES = 8
_MIN_S = 0.01
_ENDED = ErrorInfo(
    "CW-SANDBOX-ENDED", "the sandbox was ended while this ran", "Start it again in another one."
)


@dataclass(frozen=True, slots=True)
class ClientSandbox:
    """A live sandbox and its running calls."""

    id: str
    session: AbstractContextManager[str]
    calls: LiveActions = field(default_factory=LiveActions)
    made_s: float = field(default_factory=time.time)


class SandboxRecords(Protocol):
    """Where a service keeps the sandboxes of its users."""

    async def add(self, sandbox_id: str) -> None:
        """Raises `Busy` beyond the number of live sandboxes that one user may have."""

    async def remove(self, sandbox_id: str) -> None:
        """The sandbox has ended."""


class ClientSandboxes:
    """Creates sandboxes, finds them by id, and ends all with their client."""

    def __init__(self, app: App, pattern: Action, *, records: SandboxRecords | None = None) -> None:
        self._app = app
        self._records = records
        # The model carries content from one of its sandboxes to the other (POL-9).
        self._pattern = replace(pattern, workspace=WorkspaceRequest(), context=new_id("ctx"))
        """The server's options; each call is derived from them."""
        self._workspace = pattern.workspace
        self._live: dict[str, ClientSandbox] = {}
        self._making = anyio.Lock()
        self._is_closed = False

    @property
    def principal(self) -> Principal:
        """Who makes the calls."""
        return self._pattern.principal

    @property
    def context(self) -> str:
        """The conversation whose labels all calls of the client share."""
        return self._pattern.context

    def act_as(self, principal: Principal) -> None:
        """Further calls are made by this principal: the same user, whose role may have changed."""
        self._pattern = replace(self._pattern, principal=principal)

    async def has_accounts(self) -> bool:
        """Whether the caller has connected an account."""
        connections = self._app.runtime.connections
        if connections is None:
            return False
        return await anyio.to_thread.run_sync(connections.has_any, self.principal)

    @property
    def wall_s(self) -> float:
        """The time limit of a call."""
        return self._pattern.limits.wall_s

    async def find(self, name: str | None) -> ClientSandbox:
        """The sandbox with this id; without an id the newest, which is created if there is none."""
        if name is not None:
            sandbox = self._live.get(name)
            if sandbox is None:
                raise BadInput(
                    "no sandbox of this client has this id, or it has ended",
                    hint="Use an id that new_session gave, or none.",
                    code="CW-NO-SESSION",
                )
            return sandbox
        async with self._making:  # concurrent first calls share one sandbox
            return next(reversed(self._live.values())) if self._live else await self._make()

    async def new(self) -> ClientSandbox:
        async with self._making:
            return await self._make()

    async def _make(self) -> ClientSandbox:
        if len(self._live) >= MAX_SANDBOXES or self._is_closed:
            raise Busy(
                f"{MAX_SANDBOXES} sandboxes are already open",
                hint="End one of them with end_session.",
                code="CW-TOO-MANY-SESSIONS",
            )
        with anyio.CancelScope(shield=True):  # a cancelled creation would leave an unknown sandbox
            session = self._app.session(self._workspace, self._pattern.principal)
            name = await anyio.to_thread.run_sync(session.__enter__)
            sandbox = self._live[name] = ClientSandbox(name, session)
            try:
                if self._records is not None:
                    await self._records.add(name)
            except BaseException:
                await self.end(sandbox)
                raise
        return sandbox

    async def end(self, sandbox: ClientSandbox) -> None:
        """End a sandbox; its calls end first."""
        if self._live.pop(sandbox.id, None) is None:
            return
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sandbox.calls.end)
            try:
                leave = partial(sandbox.session.__exit__, None, None, None)
                await anyio.to_thread.run_sync(leave)
            finally:
                if self._records is not None:
                    await self._records.remove(sandbox.id)

    @property
    def is_empty(self) -> bool:
        return not self._live

    def all(self) -> tuple[ClientSandbox, ...]:
        """The live sandboxes, the oldest first."""
        return tuple(self._live.values())

    async def close(self) -> None:
        """End all sandboxes; later calls get none."""
        self._is_closed = True
        failed: Exception | None = None
        async with self._making:
            for sandbox in list(self._live.values()):
                try:
                    await self.end(sandbox)
                except Exception as error:  # noqa: BLE001  # the others must end as well
                    failed = error
        self._app.runtime.labels.end_context(self.context)
        if failed is not None:
            raise failed

    async def perform(
        self,
        operation: Operation,
        *,
        sandbox: ClientSandbox | None,
        timeout_s: float | None,
        sink: OutputSink | None,
        ask: ApproverPort,
    ) -> Outcome:
        """One action through the runtime's steps; every operation goes this way."""
        action = self._action(operation, sandbox, timeout_s)
        perform = partial(self._app.runtime.perform, action, sink=sink, ask=ask)
        if sandbox is None:
            return await perform()
        with sandbox.calls.entered():
            if sandbox.id in self._live:
                return await perform()
        # Left early: the sandbox ended, the caller did not cancel.
        return Outcome(status=Status.ERROR, action_id=action.id, error=_ENDED)

    def _action(
        self, operation: Operation, sandbox: ClientSandbox | None, timeout_s: float | None
    ) -> Action:
        pattern = self._pattern
        limits = pattern.limits
        if timeout_s is not None:  # a call can only lower the limit (POL-11)
            limits = replace(limits, wall_s=min(max(timeout_s, _MIN_S), limits.wall_s))
        runs = isinstance(operation, RunCode | RunCommand)
        domains = pattern.allow_domains
        if isinstance(operation, FetchUrl):
            # Without domains the page's own host would count as allowed.
            domains = domains or self._app.runtime.reach.domains
        return replace(
            pattern,
            id=new_id("act"),
            operation=operation,
            session_id=None if sandbox is None else sandbox.id,
            limits=limits,
            allow_domains=domains if runs or isinstance(operation, FetchUrl) else (),
            registries=pattern.registries if runs else (),
            secrets=pattern.secrets if runs else (),
            skills=pattern.skills if runs else (),
            env=pattern.env if runs else {},
        )
