"""The doors between the runtime and its parts. A part is whatever keeps one of these promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from cellwall.core.approvals import Answer, Question
from cellwall.core.events import Event
from cellwall.core.limits import Limits
from cellwall.core.network import CellNetwork, Page, SecretUse
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.roles import Role
from cellwall.core.types import Action, Json, OutputSink, Principal, Skill, WorkspaceMount
from cellwall.core.verdict import Decision


class PolicyPort(Protocol):
    """Judges an action. Pure: no I/O, no clock. No match is DENY."""

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision: ...


class RolesPort(Protocol):
    """Knows what somebody may do at most. Pure (RBAC-1)."""

    def role_of(self, principal: Principal) -> Role: ...


class ApproverPort(Protocol):
    """One way to a person. Whatever it raises is no answer, and no answer is a no."""

    @property
    def name(self) -> str:
        """One of `approvals.CHANNELS`."""

    async def ask(self, question: Question) -> Answer: ...


class BrokerPort(Protocol):
    """All ways to a person together (POL-8). Records each answer before it returns it."""

    @property
    def timeout_s(self) -> float: ...

    async def ask(self, question: Question, *, near: ApproverPort | None = None) -> Answer:
        """`near` is the interface's own person, beside those whom everybody can reach."""

    def forget(self, session_id: str) -> None:
        """What was allowed for a session ends with it."""


class CleanSink(Protocol):
    """A sink in front of another one."""

    def __call__(self, name: Literal["stdout", "stderr"], chunk: bytes, /) -> None: ...

    def end(self) -> None:
        """There is no more: what was held back is handed on."""


class GuardPort(Protocol):
    """Looks at what goes in and cleans what comes out. A signal, never the wall."""

    def screen(self, action: Action) -> Sequence[Finding]:
        """What is worth knowing about it; what is `high` refuses it."""

    def clean(self, action: Action, result: RunResult) -> RunResult:
        """Without secrets, with findings, and with `shown` if a model reads it."""

    def redact(self, text: str) -> str:
        """Words of ours without a secret that a name in them may hold."""

    def tell(self, action: Action, text: str) -> str:
        """The same as a model may see them: names that others chose are data."""

    def stream(self, sink: OutputSink) -> CleanSink:
        """The same for output that is handed on as it comes, as far as that can be."""

    def end_session(self, session_id: str) -> None:
        """What was kept for a live sandbox is forgotten."""


class AuditPort(Protocol):
    """Writes events durably; raises `AuditFailed` if it cannot, and the action is refused."""

    def write(self, event: Event) -> str: ...

    async def record(self, event: Event) -> str:
        """The same, for one of many tasks: they share the disk's flush."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the bounded places for running sandboxes; the number is unique while it is held."""

    number: int
    memory_bytes: int


class GovernorPort(Protocol):
    """Bounds how many sandboxes run and how much memory is promised to them (LIM-4)."""

    def lease(self, *, memory_bytes: int) -> AbstractAsyncContextManager[Slot]: ...


class ToolsPort(Protocol):
    """Functions that the host offers to code inside."""

    async def call(self, name: str, args: Sequence[Json], kwargs: Mapping[str, Json]) -> Json:
        """The answer as plain data; raises `CellwallError` for what may be told to the code."""


ToolCaller = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Answers one call that code made, as the code will see it; never raises."""


class SkillsPort(Protocol):
    """Hands out skills that a person has signed, verified at this moment (SKL-1)."""

    def load(self, names: Sequence[str]) -> tuple[Skill, ...]: ...


class VaultPort(Protocol):
    """Lends secrets for what they were granted for; what it lent ends with the lease (SEC-3)."""

    async def check(self, action: Action) -> None:
        """`VaultError` for a secret that there is not; whether it is granted may change later."""

    def lease(self, action: Action) -> AbstractAsyncContextManager[tuple[SecretUse, ...]]:
        """The secrets that the action names; `VaultError` if one is not granted for it."""

    def end_session(self, session_id: str) -> None:
        """What was lent to a session ends with it."""


class EgressPort(Protocol):
    """The way out of the cells, and the only one (NET-2)."""

    def session(
        self, action: Action, secrets: Sequence[SecretUse]
    ) -> AbstractAsyncContextManager[CellNetwork]:
        """For the cell of this action; a live sandbox keeps the one of its first action."""

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        """One page for an agent, by the same rules (NET-4)."""

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        """Another allowlist for a live sandbox, from its next connection on."""

    def end_session(self, session_id: str) -> None:
        """Its sandbox has ended: so do its connections."""


class SandboxPort(Protocol):
    """Runs what was allowed inside walls. A broken sandbox raises, the code's failure returns."""

    async def run(
        self,
        action: Action,
        *,
        slot: Slot,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> RunResult: ...

    async def steer(self, action: Action) -> RunResult:
        """An operation on what already runs in a live sandbox."""

    def end_session(self, session_id: str) -> None:
        """End a live sandbox and everything in it. May block for a moment."""

    def tidy_up(self) -> None:
        """An answer was given: do what could wait until then. Returns at once."""


@dataclass(frozen=True, slots=True)
class UnlinkedFiles:
    """Files on a disk that have no name any more and are still held by a sandbox (LIM-6)."""

    used_bytes: int = 0
    count: int = 0
    is_partial: bool = False
    """There may be more: something could not be looked at."""


NO_UNLINKED_FILES = UnlinkedFiles()


class WorkspaceLease(Protocol):
    """The files of one action, ready to be given to the sandbox."""

    @property
    def id(self) -> str | None: ...

    @property
    def mount(self) -> WorkspaceMount: ...

    def has_room(self, limits: Limits, unlinked: UnlinkedFiles = NO_UNLINKED_FILES) -> bool:
        """Whether what the run has added so far is within its limits; a walk, so not cheap."""

    def is_filling(self, limits: Limits) -> bool:
        """Whether the disk has shrunk so much since then that it is time to look again; cheap."""

    @property
    def bounded_by_kernel(self) -> bool:
        """Then nobody needs to look."""

    async def settle(self) -> Sequence[Finding]:
        """After the run: enforce what only the border can, tell what was found (FS-3, FS-4)."""


class WorkspacePort(Protocol):
    """Makes workspaces ready and does file operations on them, never check-then-use (FS-1)."""

    def lease(self, action: Action) -> AbstractAsyncContextManager[WorkspaceLease]: ...

    def operate(self, action: Action) -> object: ...

    def end_session(self, session_id: str) -> Sequence[Finding]:
        """Look a last time at a session's workspace and let go of it; its sandbox has ended."""
