"""A sandbox in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import anyio
import anyio.to_thread

from cellwall.core.files import FileOperation, memory_root
from cellwall.core.ids import new_id
from cellwall.core.labels import LabelSet
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.ports import ApproverPort
from cellwall.core.types import Action, OutputSink, Principal, RunCode, RunCommand, SetDomains
from cellwall.interfaces.sandbox_options import (
    named_policy,
    parse_workspace,
    skill_names,
    with_limits,
)
from cellwall.interfaces.sdk.hosts import SandboxSpec, refuse_ended
from cellwall.interfaces.sdk.live_actions import LiveActions
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.interfaces.supervisor.codec import Operation
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal


class LocalHost:
    """A sandbox in this process, which ends with the process."""

    def __init__(
        self,
        app: App,
        pattern: Action,
        stack: ExitStack,
        tools: ToolBroker | None,
        approver: ApproverPort | None,
    ) -> None:
        self._app = app
        self._pattern = pattern
        """The action that each operation is derived from."""
        self._stack = stack
        self._tools = tools
        self._approver = approver
        self._live = LiveActions()
        self.alive = True
        self.id = str(pattern.session_id)

    @classmethod
    async def create(
        cls,
        app: App,
        spec: SandboxSpec,
        tools: ToolBroker | None = None,
        approver: ApproverPort | None = None,
        principal: Principal | None = None,
        resumed_id: str | None = None,
    ) -> LocalHost:
        """Raises for an invalid name, domain or file now, not at the first command.

        `principal` is the user of a service; else the user who started this process. `resumed_id`
        names a kept workspace, whose files the sandbox gets.
        """
        who = principal or local_principal("sdk")
        limits = with_limits(
            app.limits, timeout=spec.timeout, memory=spec.memory, **dict(spec.limits)
        )
        pattern = Action(
            principal=who,
            operation=RunCommand(("true",)),
            limits=limits,
            env=dict(spec.envs),
            allow_domains=tuple(spec.allow_domains),
            registries=tuple(spec.registries),
            secrets=tuple(spec.secrets),
            template=spec.template,
            policy=named_policy(spec.policy),
            skills=skill_names(spec.skills),
        )
        stack = ExitStack()
        session = app.session(parse_workspace(spec.workspace), who, resumed_id=resumed_id)
        if resumed_id is None:
            session_id = stack.enter_context(session)
        else:  # decrypts files of any size
            session_id = await anyio.to_thread.run_sync(stack.enter_context, session)
        host = cls(app, replace(pattern, session_id=session_id), stack, tools, approver)
        try:
            await app.runtime.check(replace(pattern, session_id=session_id))
            app.check_template(spec.template)
            if resumed_id is not None:
                await anyio.to_thread.run_sync(app.check_room, session_id, limits)
        except BaseException:
            await host.end()
            raise
        return host

    @property
    def labels(self) -> LabelSet:
        return self._app.runtime.labels.of_session(self.id)

    def waiting(self) -> AbstractContextManager[None]:
        return self._live.entered()

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain rules of this sandbox, without those of the configuration."""
        return self._pattern.allow_domains

    async def perform(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
        spills: bool = False,
        principal: Principal | None = None,
    ) -> Outcome:
        """`principal`: the user of this call, whose role may have changed since the creation."""
        if not self.alive:
            raise refuse_ended()
        pattern = self._pattern
        if principal is not None:
            pattern = replace(pattern, principal=principal)
        if isinstance(operation, SetDomains):
            pattern = replace(pattern, allow_domains=operation.domains)
        # Such files may be the first use of the cell, which must get what any run needs.
        is_file = isinstance(operation, FileOperation) and memory_root(operation.path) is not None
        runs = is_file or isinstance(operation, RunCommand | RunCode)
        action = replace(
            pattern,
            id=new_id("act"),
            operation=operation,
            limits=with_limits(pattern.limits, timeout=timeout),
            secrets=pattern.secrets if runs else (),
            skills=pattern.skills if runs else (),
            tools=self._tools.names if self._tools and isinstance(operation, RunCode) else (),
            brief=envs or {},
            stdin=stdin,
            spills_output=spills,
        )
        outcomes: list[Outcome] = []
        with self._live.entered():  # left early when the sandbox is ended
            outcomes.append(
                await self._app.runtime.perform(
                    action, sink=sink, tools=self._tools, ask=self._approver
                )
            )
        if outcomes:
            if isinstance(operation, SetDomains) and outcomes[0].status is Status.OK:
                self._pattern = pattern
            return outcomes[0]
        ended = ErrorInfo(
            "CW-SANDBOX-ENDED", "the sandbox was ended while this ran", "Create a new one."
        )
        return Outcome(status=Status.ERROR, action_id=action.id, error=ended)

    async def end(self) -> None:
        self.alive = False
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._live.end)
            await anyio.to_thread.run_sync(self._stack.close)  # may encrypt files of any size

    async def leave(self) -> None:
        await self.end()
