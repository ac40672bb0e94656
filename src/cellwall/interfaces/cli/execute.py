"""Carries one action out for the command line: streams, signals, exit code."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from signal import Signals

import anyio

from cellwall.core.errors import CellwallError
from cellwall.core.limits import LimitName, Limits
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.types import Action, WorkspaceMode
from cellwall.interfaces.cli.approval_prompt import TerminalApprover
from cellwall.interfaces.cli.main import REFUSED
from cellwall.interfaces.cli.output import (
    UNWRITABLE,
    error_line,
    failed,
    finding_lines,
    print_json,
    say,
    tell_error,
)
from cellwall.interfaces.cli.run_output import Relay
from cellwall.runtime.wiring import House

_DRAIN_S = 1.0

# What raises each limit: the option, and how its present value reads.
_RAISED_BY = {
    LimitName.WALL: ("--timeout", "wall_s", "{:g} s"),
    LimitName.CPU: ("--timeout", "cpu_s", "{:g} s of processor time"),
    LimitName.MEMORY: ("--memory", "memory_bytes", "{} bytes"),
    LimitName.PROCESSES: ("--processes", "processes", "{}"),
    LimitName.DISK: ("--disk", "disk_bytes", "{} bytes"),
    LimitName.FILE_SIZE: ("--file-size", "file_size_bytes", "{} bytes"),
    LimitName.OUTPUT: ("--output", "output_bytes", "{} bytes"),
    LimitName.OPEN_FILES: ("--open-files", "open_files", "{}"),
}


@dataclass(slots=True)
class _Course:
    """How the run went, as far as it went."""

    outcome: Outcome | None = None
    stopped_by: Signals | None = None
    bug: Exception | None = None


Perform = Callable[[Relay | None], Awaitable[Outcome]]
"""Carries an action out; its output goes to the relay, where there is one."""


def execute(house: House, action: Action, *, as_json: bool) -> int:
    """Run it, show it, and return the exit code of CONTRACT."""

    async def perform(relay: Relay | None) -> Outcome:
        hush = nullcontext if relay is None else relay.hushed
        return await house.runtime.perform(
            action,
            sink=None if relay is None else relay.send,
            ask=TerminalApprover(action.principal, hush=hush),
        )

    return show(
        perform,
        notes=partial(notes_of, action),
        kept=partial(_kept, house, action),
        as_json=as_json,
    )


def show(
    perform: Perform,
    *,
    notes: Callable[[Outcome], Iterable[str]],
    kept: Callable[[], str | None] = lambda: None,
    as_json: bool,
    relays: bool = True,
) -> int:
    """Follow a run to its end; `kept` tells the id of changes that outlive an interrupted one.

    Without `relays`, `perform` writes to the terminal itself.
    """
    relay = Relay(spinner=True) if relays and not as_json else None
    course = anyio.run(_follow, perform, relay)
    if course.bug is not None:
        raise course.bug
    if relay is not None and relay.failure is not None:
        if isinstance(relay.failure, BrokenPipeError):
            return 128 + signal.SIGPIPE  # as every tool before `| head`
        tell_error(UNWRITABLE, as_json=False)
        return REFUSED
    if course.stopped_by is not None:
        if relay is not None:
            relay.end_line()
        return tell_stopped(course.stopped_by, kept(), as_json=as_json)
    assert course.outcome is not None  # noqa: S101  # nothing else ends the run
    if as_json:
        print_json(course.outcome.to_json())
    else:
        told = list(notes(course.outcome))
        if told and relay is not None:
            relay.end_line()
        for note in told:
            say(note)
    return exit_code(course.outcome)


async def _follow(perform: Perform, relay: Relay | None) -> _Course:
    course = _Course()
    # The receiver outlives the cleaning up: a second Ctrl-C must not cut it short (ISO-8).
    with anyio.open_signal_receiver(*_signals()) as received:
        async with anyio.create_task_group() as tasks:
            scope = tasks.cancel_scope

            async def watch_signals() -> None:
                async for number in received:
                    course.stopped_by = course.stopped_by or number
                    scope.cancel()

            async def watch_relay() -> None:
                if relay is not None:
                    await anyio.wait_readable(relay.over)
                    scope.cancel()

            tasks.start_soon(watch_signals)
            tasks.start_soon(watch_relay)
            try:
                course.outcome = await perform(relay)
            except Exception as error:  # noqa: BLE001  # told outside, not as a group
                course.bug = error
            if relay is None:
                scope.cancel()
            else:
                relay.close()  # and `watch_relay` ends this when all is written
    if relay is not None and course.stopped_by is not None:
        relay.close()
        with anyio.move_on_after(_DRAIN_S):
            await anyio.wait_readable(relay.over)
    return course


def _signals() -> Iterator[Signals]:
    """Those that end us. One that our parent had us ignore (nohup, a job of a script) stays so."""
    yield signal.SIGTERM
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            yield number


def exit_code(outcome: Outcome) -> int:
    """The program's own where it ran to an end of its own; see CONTRACT for the others."""
    if outcome.status in {Status.DENIED, Status.ERROR} or outcome.exit_code is None:
        return REFUSED
    return outcome.exit_code


def _kept(house: House, action: Action) -> str | None:
    if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE:
        with suppress(CellwallError):  # ended before there was a workspace
            return house.store.session(action.id).id
    return None


def tell_stopped(number: Signals, kept: str | None, *, as_json: bool) -> int:
    """A signal ended the run; returns the exit code that says so."""
    message = f"the run was ended by {number.name}; nothing of it is left"
    if as_json:
        print_json(failed(ErrorInfo("CW-INTERRUPTED", message), workspace_id=kept).to_json())
        return 128 + number
    say(message)
    if kept is not None:
        say(kept_line(kept))
    return 128 + number


def notes_of(action: Action, outcome: Outcome) -> list[str]:
    """What a person is told beside the program's own output."""
    notes = finding_lines(outcome.findings)
    if outcome.limit is not None:
        notes.append(limit_line(outcome.limit, action.limits))
    if outcome.error is not None:
        notes.append(error_line(outcome.error))
    if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE and outcome.workspace_id is not None:
        notes.append(kept_line(outcome.workspace_id))
    return notes


def limit_line(limit: LimitName, limits: Limits | None = None) -> str:
    """Which limit it was, its value where known, and what to do about it."""
    option, field, form = _RAISED_BY[limit]
    value = "" if limits is None else f" ({form.format(getattr(limits, field))})"
    name = limit.value.replace("_", " ")
    return f"ended by the {name} limit{value}; raise it with {option}"


def kept_line(workspace_id: str) -> str:
    """Where the changes of a copy-on-write run are."""
    return f"changes kept as {workspace_id}; see them with: cellwall diff {workspace_id}"
