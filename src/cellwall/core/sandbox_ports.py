"""The ports of the sandbox: a slot, a workspace, and the run itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from cellwall.core.limits import Limits
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.skills import Skill
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.types import Action, Json, OutputSink, WorkspaceMount


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the bounded slots for running sandboxes; the number is unique while held."""

    number: int
    memory_bytes: int


class GovernorPort(Protocol):
    """Bounds how many sandboxes run and how much memory is promised to them (LIM-4)."""

    def lease(self, *, memory_bytes: int, waits: bool = True) -> AbstractAsyncContextManager[Slot]:
        """`waits`: for a free place, within the time allowed; else it must be free now."""


@runtime_checkable
class PacedSink(Protocol):
    """An `OutputSink` that may have enough for a while."""

    def __call__(self, name: Literal["stdout", "stderr"], chunk: bytes, /) -> None: ...

    @property
    def is_full(self) -> bool: ...


ToolCaller = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Returns the response to one call of the code; never raises."""


class SandboxPort(Protocol):
    """Runs an allowed action in isolation. A broken sandbox raises; failing code returns."""

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

    async def open_early(self, action: Action, *, slot: Slot, workspace: WorkspaceLease) -> None:
        """Open the live cell of a session that has run nothing, and run nothing in it; it ends
        when no action uses it for a while. The action has no skills and no network."""

    async def steer(self, action: Action) -> RunResult:
        """An operation on the processes of a live sandbox."""

    def is_live(self, action: Action, mount: WorkspaceMount) -> bool:
        """Whether the action runs in the live cell of its session, not in one of its own."""

    def live_usage(self, session_id: str, *, with_memory: bool = True) -> LiveUsage:
        """What a live sandbox has used so far, by whatever process; each counter of the kernel
        takes a while to read, so the meter of each run leaves memory out."""

    def halt(self, session_id: str) -> None:
        """End every process of a live sandbox; its files stay."""

    def end_session(self, session_id: str) -> None:
        """End a live sandbox and everything in it. May block for a moment."""

    def tidy_up(self) -> None:
        """Do deferred work after an outcome was delivered. Returns at once."""


@dataclass(frozen=True, slots=True)
class LiveUsage:
    """Usage of a live sandbox since its creation."""

    cpu_s: float = 0.0
    """It only grows."""
    running: frozenset[int] = frozenset()
    """The ids of background programs that have not ended."""
    memory_bytes: int | None = None
    """Now; None where the host does not report it, or nothing has run yet."""


@dataclass(frozen=True, slots=True)
class UnlinkedFiles:
    """Unlinked files that a sandbox still holds open (LIM-6)."""

    used_bytes: int = 0
    count: int = 0
    is_partial: bool = False
    """There may be more: part could not be inspected."""


NO_UNLINKED_FILES = UnlinkedFiles()


class WorkspaceLease(Protocol):
    """The files of one action, ready for the sandbox."""

    @property
    def id(self) -> str | None: ...

    @property
    def mount(self) -> WorkspaceMount: ...

    def has_room(self, limits: Limits, unlinked: UnlinkedFiles = NO_UNLINKED_FILES) -> bool:
        """Whether the files that the run has added are within its limits; walks the tree."""

    @property
    def is_quick(self) -> bool:
        """Its files are on a disk of this host: reading few of them does not wait."""

    def has_room_if_small(self, limits: Limits, unlinked: UnlinkedFiles) -> bool | None:
        """`has_room` for the event loop; None if there are more files than it can look at."""

    def is_filling(self, limits: Limits) -> bool:
        """Whether free space has shrunk enough to call `has_room` again; cheap."""

    @property
    def bounded_by_kernel(self) -> bool:
        """The kernel enforces the limits, so `has_room` is not needed."""

    async def settle(self) -> Sequence[Finding]:
        """After the run: enforce the rules for leftover files and report findings (FS-3, FS-4).
        Not cancelled: dangerous files must not stay because a caller has stopped waiting."""


class WorkspacePort(Protocol):
    """Prepares workspaces and operates on their files, never check-then-use (FS-1)."""

    def lease(self, action: Action) -> AbstractAsyncContextManager[WorkspaceLease]: ...

    def operate(self, action: Action) -> object: ...

    def end_session(self, session_id: str) -> Sequence[Finding]:
        """Inspect a session's workspace a last time and release it, after its sandbox."""


class SnapshotsPort(Protocol):
    """Takes snapshots of the workspaces of live sessions (FS-9). May block."""

    def take(self, action: Action, keep_labels: Callable[[str], None]) -> WorkspaceSnapshot:
        """`keep_labels` writes the labels of the session into the folder of the new snapshot."""
