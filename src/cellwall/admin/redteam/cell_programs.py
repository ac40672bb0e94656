"""Runs an attack program inside a cell, by the path of every other action."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.process_witness import ProcessWitness
from cellwall.admin.redteam.trial_host import TrialHost, system_calls
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, OutputSink, RunCode, WorkspaceMode, WorkspaceRequest
from cellwall.redteam.attack import Attack, Observation
from cellwall.redteam.catalog import program_text
from cellwall.redteam.sealed_report import new_key, read_report

_WALL_S = 90.0
_CPU_S = 60.0
_MAX_REASON = 200
LOOK_GROUP = 24
"""As in stage.py."""
_MAX_LOOKS = 40
_MAX_LINES_BYTES = 4096


def facts_for(attacks: Sequence[Attack], **more: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """The facts that a program gets, inside and outside: what to try, and on what."""
    only = [attack.key for attack in attacks]
    return {"calls": dict(system_calls()), "sealed": True, "only": only, **more}


async def run_inside(
    host: TrialHost,
    program: str,
    facts: Mapping[str, Any],
    *,
    read_write: str | None = None,
    allow_domains: tuple[str, ...] = (),
) -> dict[str, Observation]:
    """What each attack of the program reports from a new cell; empty without a sealed report.

    `read_write` is a directory of the host that the cell gets as its workspace.
    """
    key = new_key()
    outcome = await run_code(
        host,
        program_text(program),
        facts={**facts, "cell": True},
        stdin=key,
        read_write=read_write,
        allow_domains=allow_domains,
    )
    if outcome.status is not Status.OK:
        why = Observation("broken", f"the program did not end well: {describe(outcome)}")
        return dict.fromkeys(facts["only"], why)
    return read_report(outcome.stdout_bytes or outcome.stdout.encode(), key) or {}


async def run_watched(
    host: TrialHost, program: str, facts: Mapping[str, Any], witness: ProcessWitness
) -> dict[str, Observation]:
    """The same, in a session, and with each attack's process seen from outside before it ends."""
    key, asked = new_key(), _LookRequests()
    given = {**facts, "cell": True, "watched": witness.mark}
    with host.app.session(WorkspaceRequest(), host.who) as session_id:
        outcomes: list[Outcome] = []

        async def work() -> None:
            outcomes.append(
                await run_code(
                    host,
                    program_text(program),
                    facts=given,
                    stdin=key,
                    session_id=session_id,
                    sink=asked.feed,
                )
            )
            asked.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            async for number in asked.numbers():
                await in_thread(witness.look)
                seen = FileOperation("write", f"seen-{number}")
                action = Action(principal=host.who, operation=seen, session_id=session_id)
                await host.app.runtime.perform(action)
    (outcome,) = outcomes
    if outcome.status is not Status.OK:
        why = Observation("broken", f"the program did not end well: {describe(outcome)}")
        return dict.fromkeys(facts["only"], why)
    # Whatever else stands before the report, such as a forged one, makes it unreadable.
    text = outcome.stdout_bytes or outcome.stdout.encode()
    return read_report(text.removeprefix(asked.lines()), key) or {}


class _LookRequests:
    """The lines by which a watched program asks to be looked at; their content is not trusted."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[int](_MAX_LOOKS)
        self._count = 0
        self._text = b""

    def feed(self, name: str, data: bytes) -> None:
        if name != "stdout" or len(self._text) > _MAX_LINES_BYTES:
            return
        self._text += data
        while self._text.startswith(self.lines(self._count + 1)) and self._count < _MAX_LOOKS:
            self._send.send_nowait(self._count * LOOK_GROUP)
            self._count += 1

    def lines(self, count: int | None = None) -> bytes:
        """What the program has printed by then, if it printed nothing else."""
        looks = range(self._count if count is None else count)
        return b"".join(b"look %d\n" % (number * LOOK_GROUP) for number in looks)

    def end(self) -> None:
        self._send.close()

    async def numbers(self) -> AsyncIterator[int]:
        with self._receive:
            async for number in self._receive:
                yield number


async def run_code(
    host: TrialHost,
    code: str,
    *,
    facts: Mapping[str, Any] | None = None,
    stdin: bytes | None = None,
    read_write: str | None = None,
    allow_domains: tuple[str, ...] = (),
    session_id: str | None = None,
    sink: OutputSink | None = None,
) -> Outcome:
    """Run Python in a new cell, or in the cell of a session."""
    request = WorkspaceRequest()
    if read_write is not None:
        request = WorkspaceRequest(WorkspaceMode.READ_WRITE, read_write)
    usual = host.app.limits
    limits = replace(usual, wall_s=max(usual.wall_s, _WALL_S), cpu_s=max(usual.cpu_s, _CPU_S))
    action = Action(
        principal=host.who,
        operation=RunCode("python", code.encode()),
        workspace=request,
        session_id=session_id,
        limits=limits,
        env={} if facts is None else {"ATTACK": json.dumps(facts)},
        stdin=stdin,
        allow_domains=allow_domains,
    )
    return await host.app.runtime.perform(action, sink=sink)


def describe(outcome: Outcome) -> str:
    """How an action ended, in a few words; output of the code is not quoted."""
    if outcome.error is not None:
        return f"{outcome.error.code}: {outcome.error.message}"[:_MAX_REASON]
    if outcome.limit is not None:
        return f"ended by the limit {outcome.limit.value}"
    return f"{outcome.status.value}, exit code {outcome.exit_code}"
