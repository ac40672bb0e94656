"""The properties of a sandbox, and its host: this process, or the user's supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

from cellwall.core.errors import BadInput
from cellwall.core.labels import LabelSet
from cellwall.core.outcomes import Outcome
from cellwall.core.snapshots import NotCarried
from cellwall.core.types import OutputSink
from cellwall.interfaces.supervisor.codec import Operation


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
    from_snapshot: str | None = None
    """The id of a snapshot whose files the sandbox has at its beginning."""
    second_user: bool = False
    asked_in: str = ""
    """See `Action.asked_in`."""


class CallOptions(TypedDict, total=False):
    """What a caller may add to one operation."""

    timeout: float | None
    envs: Mapping[str, str] | None
    stdin: bytes | None
    sink: OutputSink | None
    spills: bool
    """The sink gets all output, and the outcome its beginning and end."""


class Host(Protocol):
    """Sends a sandbox's operations through the runtime's steps."""

    @property
    def id(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    @property
    def has_run_code(self) -> bool:
        """Whether the interpreter may have variables."""

    @property
    def not_restored(self) -> tuple[NotCarried, ...]:
        """Variables of the snapshot of its beginning that could not be set."""

    async def perform(self, operation: Operation, **options: Unpack[CallOptions]) -> Outcome:
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


def refuse_ended() -> BadInput:
    """The error of every call after the end of a sandbox."""
    return BadInput("the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED")
