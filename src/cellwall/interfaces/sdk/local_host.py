"""A sandbox in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Unpack

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation, memory_root
from cellwall.core.ids import new_id
from cellwall.core.labels import LabelSet
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.ports import ApproverPort
from cellwall.core.snapshots import (
    NotCarried,
    RestoreSnapshot,
    TakeSnapshot,
    WorkspaceSnapshot,
)
from cellwall.core.types import Action, Principal, RunCode, RunCommand, SetDomains
from cellwall.interfaces.interpreter_state import read_again
from cellwall.interfaces.sandbox_options import (
    named_policy,
    parse_workspace,
    skill_names,
    with_limits,
)
from cellwall.interfaces.sdk.hosts import CallOptions, SandboxSpec, refuse_ended
from cellwall.interfaces.sdk.live_actions import LiveActions
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.interfaces.supervisor.codec import Operation
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal

DEFAULT_TEMPLATE = "python"
DEFAULT_LANGUAGE = "python"


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
        self._opening = anyio.Event()
        """Set while no cell is opened early."""
        self._opening.set()
        self.alive = True
        self.has_run_code = False
        """Whether the interpreter may have variables."""
        self.not_restored: tuple[NotCarried, ...] = ()
        """Variables of the snapshot that could not be set."""
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
        on_session: Callable[[str], Awaitable[None]] | None = None,
        session_id: str | None = None,
    ) -> LocalHost:
        """Raises for an invalid name, domain or file now, not at the first command.

        `principal` is the user of a service; else the user who started this process. `resumed_id`
        names a kept workspace, whose files the sandbox gets. `on_session` gets the id of the
        session before anything runs in it. `session_id`: of a session that another host of a fleet
        has lost.
        """
        who = principal or local_principal("sdk")
        snapshot = None
        if spec.from_snapshot is not None:
            snapshot, spec = await _allow_snapshot(app, spec, who, approver)
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
            asked_in=spec.asked_in,
            skills=skill_names(spec.skills),
            second_user=spec.second_user,
        )
        if spec.second_user:
            app.check_second_user()
        stack = ExitStack()
        session = app.session(
            parse_workspace(spec.workspace),
            who,
            resumed_id=resumed_id,
            snapshot_id=None if snapshot is None else snapshot.id,
            session_id=session_id,
        )
        if resumed_id is None and snapshot is None:
            session_id = stack.enter_context(session)
        else:  # decrypts files of any size
            session_id = await anyio.to_thread.run_sync(stack.enter_context, session)
        pattern = replace(pattern, session_id=session_id)
        host = cls(app, pattern, stack, tools, approver)
        try:
            await app.runtime.check(pattern)
            app.check_template(spec.template)
            if resumed_id is not None or snapshot is not None:
                await anyio.to_thread.run_sync(app.check_room, session_id, limits)
            if on_session is not None:
                await on_session(session_id)
            if snapshot is not None and snapshot.variables:
                state = app.read_state(snapshot)
                host.not_restored = await read_again(host.run_inside, state)
        except BaseException:
            await host.end()
            raise
        return host

    async def open_early(self) -> None:
        """Open the cell before the first action, where that is allowed. `end` waits for it."""
        if not self.alive:
            return
        self._opening = anyio.Event()
        try:
            with self._live.entered():
                operation = RunCode(DEFAULT_LANGUAGE, b"")
                await self._app.runtime.open_early(replace(self._pattern, operation=operation))
        finally:
            self._opening.set()

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
        principal: Principal | None = None,
        **options: Unpack[CallOptions],
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
        is_file = isinstance(operation, FileOperation) and bool(
            memory_root(operation.path, second_user=pattern.second_user)
        )
        runs = is_file or isinstance(operation, RunCommand | RunCode)
        self.has_run_code |= isinstance(operation, RunCode)
        action = replace(
            pattern,
            id=new_id("act"),
            operation=operation,
            limits=with_limits(pattern.limits, timeout=options.get("timeout")),
            secrets=pattern.secrets if runs else (),
            skills=pattern.skills if runs else (),
            tools=self._tools.names if self._tools and isinstance(operation, RunCode) else (),
            brief=options.get("envs") or {},
            stdin=options.get("stdin"),
            spills_output=options.get("spills", False),
        )
        outcomes: list[Outcome] = []
        with self._live.entered():  # left early when the sandbox is ended
            if isinstance(operation, TakeSnapshot):  # which is refused while something runs
                await self._opening.wait()
            outcomes.append(
                await self._app.runtime.perform(
                    action, sink=options.get("sink"), tools=self._tools, ask=self._approver
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

    async def run_inside(self, operation: RunCode, stdin: bytes | None) -> Outcome:
        """For the state of the interpreter: `RunInside`."""
        return await self.perform(operation, stdin=stdin)

    async def end(self) -> None:
        self.alive = False
        with anyio.CancelScope(shield=True):
            if not self._live.end_if_idle():
                await anyio.to_thread.run_sync(self._live.end)
            await anyio.to_thread.run_sync(self._stack.close)  # may encrypt files of any size

    async def leave(self) -> None:
        await self.end()


async def _allow_snapshot(
    app: App, spec: SandboxSpec, who: Principal, approver: ApproverPort | None
) -> tuple[WorkspaceSnapshot, SandboxSpec]:
    """The snapshot, once its use is allowed and recorded; with its template, unless another one is
    named."""
    if spec.workspace is not None:
        raise BadInput(
            "a sandbox has a directory of the host or the files of a snapshot, not both",
            hint="Leave out `workspace` or `from_snapshot`.",
            code="CW-SNAPSHOT-NOT-PRIVATE",
        )
    snapshot_id = spec.from_snapshot or ""
    snapshot = await anyio.to_thread.run_sync(app.find_snapshot, snapshot_id, who)
    action = Action(
        principal=who, operation=RestoreSnapshot(snapshot.id), policy=named_policy(spec.policy)
    )
    (await app.runtime.perform(action, ask=approver)).raise_for_status()
    if spec.template == DEFAULT_TEMPLATE:
        spec = replace(spec, template=snapshot.template)
    return snapshot, spec
