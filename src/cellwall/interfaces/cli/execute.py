"""Carries one action out in this process: streams, signals, exit code."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from signal import Signals

import anyio

from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action
from cellwall.interfaces.cli.approval_prompt import TerminalApprover
from cellwall.interfaces.cli.output import json_line
from cellwall.interfaces.cli.run_output import RunRenderer
from cellwall.interfaces.outcome_text import exit_code, kept_changes, notes_of
from cellwall.runtime.app import App

_DRAIN_S = 1.0

Perform = Callable[[RunRenderer], Awaitable[Outcome]]
"""Carries an action out; its output goes to the renderer."""


@dataclass(slots=True)
class _RunEnd:
    """How the run ended: by an outcome, by a signal, or by a bug."""

    outcome: Outcome | None = None
    stopped_by: Signals | None = None
    bug: Exception | None = None


def execute(app: App, action: Action, *, as_json: bool) -> int:
    """Run the action, show its output, and return the exit code of CONTRACT."""

    async def perform(renderer: RunRenderer) -> Outcome:
        approver = TerminalApprover(action.principal, hush=renderer.hush)
        return await app.runtime.perform(action, sink=renderer.sink, ask=approver)

    return show(
        perform,
        notes=partial(notes_of, action),
        kept=partial(kept_changes, app, action),
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
    """Follow a run to its end; `kept` returns the id of changes that outlive an interrupted run.

    Without `relays`, `perform` writes to the terminal itself.
    """
    renderer = RunRenderer(as_json=as_json, relays=relays)
    run = anyio.run(_follow, perform, renderer)
    if run.bug is not None:
        raise run.bug
    if (failed := renderer.output_failure()) is not None:
        return failed
    if run.stopped_by is not None:
        return renderer.show_stopped(run.stopped_by, kept())
    assert run.outcome is not None  # noqa: S101  # nothing else ends the run
    if as_json:
        renderer.show_json(json_line(run.outcome.to_json()))
    else:
        renderer.show_notes(list(notes(run.outcome)))
    return exit_code(run.outcome)


async def _follow(perform: Perform, renderer: RunRenderer) -> _RunEnd:
    run = _RunEnd()
    relay = renderer.relay
    # The receiver outlives the cleanup: a second Ctrl-C must not cut it short (ISO-8).
    with anyio.open_signal_receiver(*_ending_signals()) as received:
        async with anyio.create_task_group() as tasks:
            scope = tasks.cancel_scope

            async def watch_signals() -> None:
                async for number in received:
                    run.stopped_by = run.stopped_by or number
                    scope.cancel()

            async def watch_relay() -> None:
                if relay is not None:
                    await anyio.wait_readable(relay.over)
                    scope.cancel()

            tasks.start_soon(watch_signals)
            tasks.start_soon(watch_relay)
            try:
                run.outcome = await perform(renderer)
            except Exception as error:  # noqa: BLE001  # raised by `show`, not as a group
                run.bug = error
            if relay is None:
                scope.cancel()
            else:
                relay.close()  # `watch_relay` cancels the scope when everything is written
    if relay is not None and run.stopped_by is not None:
        relay.close()
        with anyio.move_on_after(_DRAIN_S):
            await anyio.wait_readable(relay.over)
    return run


def _ending_signals() -> Iterator[Signals]:
    """The signals that end a run, except one that the parent ignores (nohup, a script's job)."""
    yield signal.SIGTERM
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            yield number
