"""Snapshots and forks of live sandboxes (FS-9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import anyio.to_thread

from cellwall.admin import snapshots as admin
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome
from cellwall.core.snapshots import NotCarried, TakeSnapshot, WorkspaceSnapshot
from cellwall.core.types import RunCode
from cellwall.interfaces.interpreter_state import write_down

Perform = Callable[..., Awaitable[Outcome]]
"""`Host.perform`, or that of a sandbox of the service with its principal."""

MAX_FORKS = 100
_FORK_TTL_S = 600.0
"""Of the snapshot behind a fork, which is removed once the forks exist."""
_STATE_WITHIN_S = 10.0
"""Code that runs longer keeps the interpreter busy: its variables are not carried."""
_PROGRAMS = NotCarried("programs", "running programs are not part of a snapshot")


async def take_snapshot(
    perform: Perform,
    *,
    name: str = "",
    ttl: float | None = None,
    state: bool = True,
    end_processes: bool = False,
) -> WorkspaceSnapshot:
    """One snapshot, with the variables of the interpreter that are plain data."""
    variables = b""
    lost: tuple[NotCarried, ...] = ()
    if state:
        lost = (NotCarried("*", "no variable: the interpreter is busy"),)
        with anyio.move_on_after(_STATE_WITHIN_S):
            variables, lost = await write_down(_inside(perform))
    operation = TakeSnapshot(name, ttl, end_processes, variables)
    outcome = await perform(operation)
    outcome.raise_for_status()
    taken = outcome.payload
    assert isinstance(taken, WorkspaceSnapshot)  # noqa: S101  # by the runtime
    return replace(taken, not_carried=(*lost, _PROGRAMS))


def _inside(perform: Perform) -> Callable[[RunCode, bytes | None], Awaitable[Outcome]]:
    async def run(operation: RunCode, stdin: bytes | None) -> Outcome:
        return await perform(operation, stdin=stdin)

    return run


def check_fork(count: int) -> None:
    """Raise for a number of forks that no host could carry."""
    if not 1 <= count <= MAX_FORKS:
        raise BadInput(
            f"a sandbox is forked into 1 to {MAX_FORKS} others",
            hint="Call fork several times.",
            code="CW-FORK-COUNT",
        )


async def fork_snapshot(perform: Perform, *, state: bool, end_processes: bool) -> WorkspaceSnapshot:
    """The snapshot of which forks are made; `remove_fork_snapshot` at the end."""
    return await take_snapshot(
        perform, name="fork", ttl=_FORK_TTL_S, state=state, end_processes=end_processes
    )


async def remove_fork_snapshot(home: str, snapshot_id: str) -> None:
    """The forks name its layers, which stay as long as they need them."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(admin.forget, home, snapshot_id)
