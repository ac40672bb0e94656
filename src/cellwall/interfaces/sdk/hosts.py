"""Hosts of a sandbox: this process, or the user's supervisor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.from_thread
import anyio.lowlevel

import cellwall
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.core.frames import BadFrame, FrameReader, encode
from cellwall.core.home import SUPERVISOR_SOCKET, shaping
from cellwall.core.labels import LabelSet
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.ports import ApproverPort
from cellwall.core.types import (
    Action,
    Json,
    OutputSink,
    Principal,
    RunCode,
    RunCommand,
    SetDomains,
    new_id,
)
from cellwall.interfaces.sandbox_options import (
    named_policy,
    parse_workspace,
    skill_names,
    with_limits,
)
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.interfaces.supervisor.client import raise_for_error
from cellwall.interfaces.supervisor.codec import Operation, decode_outcome, encode_operation
from cellwall.runtime import wiring
from cellwall.runtime.home import start_supervisor, state_home
from cellwall.runtime.label_store import recorded_labels

_MAX_FRAME_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The properties of a sandbox, in this process or in the supervisor."""

    workspace: str | None
    allow_domains: Sequence[str]
    registries: Sequence[str]
    secrets: Sequence[str]
    envs: Mapping[str, str]
    timeout: float | None
    memory: str | int | None
    limits: Mapping[str, float]
    template: str
    skills: Sequence[str]
    policy: str | None


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
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
    ) -> Outcome:
        """One action through the runtime's steps; every operation goes this way."""

    @property
    def labels(self) -> LabelSet:
        """What the sandbox has read, and where it can send data (POL-9)."""

    def waiting(self) -> AbstractContextManager[None]:
        """For a wait outside of an action: the block is left early when the sandbox ends."""

    async def end(self) -> None:
        """End the sandbox and everything in it."""

    async def leave(self) -> None:
        """End of the caller's block: a created sandbox ends, a connected one lives on."""


def _refuse_ended() -> BadInput:
    return BadInput("the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED")


class LocalHost:
    """A sandbox in this process, which ends with the process."""

    def __init__(
        self,
        app: wiring.App,
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
        app: wiring.App,
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
        who = principal or wiring.principal("sdk")
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
        principal: Principal | None = None,
    ) -> Outcome:
        """`principal`: the user of this call, whose role may have changed since the creation."""
        if not self.alive:
            raise _refuse_ended()
        pattern = self._pattern
        if principal is not None:
            pattern = replace(pattern, principal=principal)
        if isinstance(operation, SetDomains):
            pattern = replace(pattern, allow_domains=operation.domains)
        runs = isinstance(operation, RunCommand | RunCode)
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

    @property
    def count(self) -> int:
        return len(self._live)

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


class RemoteHost:
    """Implements `Host` over the supervisor's socket, with one connection for each call."""

    def __init__(self, sandbox_id: str, *, ends_with_block: bool) -> None:
        self.id = sandbox_id
        self.alive = True
        self._ends_with_block = ends_with_block

    @classmethod
    async def create(
        cls, spec: SandboxSpec, *, config: str | None, profile: str | None, keep_alive_s: float
    ) -> RemoteHost:
        """Create a sandbox in the supervisor, which is started if none runs."""
        await anyio.to_thread.run_sync(start_supervisor, dict(os.environ))
        request: dict[str, Json] = {"do": "create", "keep_alive_s": keep_alive_s}
        request |= {"config": config, "profile": profile, "shaping": shaping(os.environ)}
        answer, _ = await _ask({**request, "spec": asdict(spec)})
        return cls(str(answer["id"]), ends_with_block=True)

    @classmethod
    async def connect(cls, sandbox_id: str) -> RemoteHost:
        """A sandbox that a process of this user created before."""
        await _ask({"do": "attach", "id": sandbox_id})
        return cls(sandbox_id, ends_with_block=False)

    @property
    def labels(self) -> LabelSet:
        return recorded_labels(state_home(os.environ), self.id)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def perform(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
    ) -> Outcome:
        if not self.alive:
            raise _refuse_ended()
        encoded, data = await anyio.to_thread.run_sync(encode_operation, operation)
        message: dict[str, Json] = {
            "do": "perform",
            "id": self.id,
            "operation": encoded,
            "timeout": timeout,
            "envs": dict(envs or {}),
            "stdin": None if stdin is None else len(stdin),
            "streams": sink is not None,
        }
        answer, blob = await _ask(message, (stdin or b"") + data, sink=sink)
        outcome = answer["outcome"]
        assert isinstance(outcome, dict)  # noqa: S101  # the supervisor is our own process
        # In a thread: it may write a whole archive to a file of the caller.
        return await anyio.to_thread.run_sync(decode_outcome, outcome, blob, operation)

    async def end(self) -> None:
        self.alive = False
        with anyio.CancelScope(shield=True):
            try:
                await _ask({"do": "kill", "id": self.id})
            except CellwallError as error:
                if error.code not in ("CW-NO-SANDBOX", "CW-SUPERVISOR-GONE"):
                    raise

    async def leave(self) -> None:
        if self._ends_with_block:
            await self.end()


async def _ask(
    message: Mapping[str, Json], blob: bytes = b"", *, sink: OutputSink | None = None
) -> tuple[Mapping[str, Any], bytes]:
    """Send one request; output goes to `sink` as it comes, the last frame is the answer."""
    home = await anyio.to_thread.run_sync(state_home, os.environ)
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        stream = await anyio.connect_unix(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
    except OSError as error:
        raise _gone() from error
    finally:
        os.close(folder)
    reader = FrameReader(max_frame_bytes=_MAX_FRAME_BYTES)
    async with stream:
        try:
            await stream.send(encode({**message, "version": cellwall.__version__}, blob))
            while True:
                for frame in reader.feed(await stream.receive(1 << 18)):
                    name = frame.message.get("out")
                    if name not in ("stdout", "stderr"):
                        raise_for_error(frame.message)
                        return frame.message, frame.blob
                    if sink is not None:
                        sink(name, frame.blob)
        except (anyio.EndOfStream, anyio.BrokenResourceError, BadFrame) as error:
            raise _gone() from error


def _gone() -> SandboxFailed:
    return SandboxFailed(
        "the supervisor has ended, and its sandboxes ended with it",
        hint="Create a new sandbox, which starts a new supervisor.",
        code="CW-SUPERVISOR-GONE",
    )
