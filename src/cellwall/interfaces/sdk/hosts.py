"""Hosts of a sandbox: this process, or the user's supervisor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import anyio
import anyio.from_thread
import anyio.lowlevel

from cellwall.core.errors import BadInput
from cellwall.core.limits import Limits
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.types import (
    Action,
    FileOperation,
    OutputSink,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
)
from cellwall.interfaces.requests import named_policy, with_limits
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.runtime import wiring

Operation = RunCommand | RunCode | FileOperation | ProcessOperation | SetDomains


class ActionPerformer(Protocol):
    """A sandbox as its commands, files and skills need it."""

    @property
    def id(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    def waiting(self) -> AbstractContextManager[None]:
        """For a wait outside of an action: the block is left early when the sandbox ends."""

    async def perform_raw(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
    ) -> Outcome:
        """One action through the runtime's steps."""


class Host(Protocol):
    """Sends a sandbox's operations through the runtime's steps."""

    @property
    def id(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    async def perform(
        self,
        operation: Operation,
        *,
        timeout: float | None,
        envs: Mapping[str, str],
        stdin: bytes | None,
        sink: OutputSink | None,
    ) -> Outcome: ...

    def waiting(self) -> AbstractContextManager[None]:
        """For a wait outside of an action: the block is left early when the sandbox ends."""

    async def end(self) -> None:
        """End the sandbox and everything in it."""

    async def leave(self) -> None:
        """End of the caller's block: a created sandbox ends, a connected one lives on."""


class LocalHost:
    """A sandbox in this process, which ends with the process."""

    def __init__(
        self,
        app: wiring.App,
        *,
        limits: Limits,
        envs: Mapping[str, str],
        allow_domains: tuple[str, ...],
        secrets: tuple[str, ...],
        stack: AsyncExitStack,
        session_id: str,
        tools: ToolBroker | None,
        template: str,
        skills: tuple[str, ...],
        policy: str | None = None,
    ) -> None:
        self._template = template
        self._skills = skills
        self._policy = named_policy(policy)
        self._app = app
        self._limits = limits
        self._envs = envs
        self._allow_domains = allow_domains
        self._secrets = secrets
        self._stack = stack
        self._tools = tools
        self._principal = wiring.principal("sdk")
        self._live = LiveActions()
        self.alive = True
        self.id = session_id

    def waiting(self) -> AbstractContextManager[None]:
        return self._live.entered()

    async def perform(
        self,
        operation: Operation,
        *,
        timeout: float | None,
        envs: Mapping[str, str],
        stdin: bytes | None,
        sink: OutputSink | None,
    ) -> Outcome:
        if not self.alive:
            raise BadInput(
                "the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED"
            )
        action = replace(
            self._action(operation),
            limits=with_limits(self._limits, timeout=timeout),
            brief=envs,
            stdin=stdin,
        )
        done: list[Outcome] = []
        with self._live.entered():  # left early when the sandbox is ended
            done.append(await self._app.runtime.perform(action, sink=sink, tools=self._tools))
        if done:
            if isinstance(operation, SetDomains) and done[0].status is Status.OK:
                self._allow_domains = operation.domains
            return done[0]
        ended = ErrorInfo(
            "CW-SANDBOX-ENDED", "the sandbox was ended while this ran", "Create a new one."
        )
        return Outcome(status=Status.ERROR, action_id=action.id, error=ended)

    async def check(self) -> None:
        """Raise for an invalid name, domain or file now, not at the first command."""
        await self._app.runtime.check(self._action(RunCommand(("true",))))
        self._app.check_template(self._template)

    def _action(self, operation: Operation) -> Action:
        runs = isinstance(operation, RunCommand | RunCode)
        return Action(
            principal=self._principal,
            operation=operation,
            session_id=self.id,
            limits=self._limits,
            env=self._envs,
            allow_domains=operation.domains
            if isinstance(operation, SetDomains)
            else self._allow_domains,
            secrets=self._secrets if runs else (),
            tools=self._tools.names if self._tools and isinstance(operation, RunCode) else (),
            template=self._template,
            policy=self._policy,
            skills=self._skills if runs else (),
        )

    async def end(self) -> None:
        self.alive = False
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._live.end)
            await self._stack.aclose()

    async def leave(self) -> None:
        await self.end()


_END_WITHIN_S = 30.0


class LiveActions:
    """All running actions, each with its event loop, so that `kill` works from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._live: dict[anyio.CancelScope, Callable[[Callable[[], None]], object]] = {}
        self._is_over = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The block is left early, without an exception, once `end` is called."""
        with anyio.CancelScope() as scope:
            with self._changed:
                self._live[scope] = _soon()
                if self._is_over:  # `end` was called by another thread meanwhile
                    scope.cancel()
            try:
                yield
            finally:
                with self._changed:
                    del self._live[scope]
                    self._changed.notify_all()

    def end(self) -> None:
        """Cancel all actions and wait for their cleanup. Must not be called on an event loop."""
        with self._changed:
            self._is_over = True
            # No action can leave while the lock is held, so their loops still run. No wait here: a
            # busy or ending loop must not keep the sandbox alive.
            for scope, soon in self._live.items():
                with suppress(RuntimeError):
                    soon(scope.cancel)
            self._changed.wait_for(lambda: not self._live, _END_WITHIN_S)


def _soon() -> Callable[[Callable[[], None]], object]:
    """Schedules a call on this event loop from another thread, without waiting."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:  # another kind of loop
        token = anyio.lowlevel.current_token()
        return partial(anyio.from_thread.run_sync, token=token)
