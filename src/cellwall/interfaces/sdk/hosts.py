"""Where a sandbox is at home: in this process, or in the user's supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from typing import Protocol

import anyio

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
from cellwall.interfaces.sdk.live import LiveActions
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.runtime import wiring

Operation = RunCommand | RunCode | FileOperation | ProcessOperation | SetDomains


class Host(Protocol):
    """Carries a sandbox's wants to the runtime's steps; the only way anything happens in it."""

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
        """For what waits outside of an action: the block is left early when the sandbox ends."""

    async def end(self) -> None:
        """End the sandbox and everything in it."""

    async def leave(self) -> None:
        """The caller's block ends: what it made ends, what it only visited does not."""


class LocalHost:
    """A sandbox in this process; it ends with it."""

    def __init__(
        self,
        house: wiring.House,
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
        self._house = house
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
            done.append(await self._house.runtime.perform(action, sink=sink, tools=self._tools))
        if done:
            if isinstance(operation, SetDomains) and done[0].status is Status.OK:
                self._allow_domains = operation.domains
            return done[0]
        ended = ErrorInfo(
            "CW-SANDBOX-ENDED", "the sandbox was ended while this ran", "Create a new one."
        )
        return Outcome(status=Status.ERROR, action_id=action.id, error=ended)

    async def check(self) -> None:
        """Raises for a name, a domain or a file that no call could use: now, and not at the first
        command."""
        await self._house.runtime.check(self._action(RunCommand(("true",))))
        self._house.check_template(self._template)

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
