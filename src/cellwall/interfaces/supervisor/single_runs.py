"""Requests for one run in a new sandbox: `cellwall run` and `code`, and single runs of the SDK.

(1) check the form of the request
(2) compare the client's surroundings with our own, where the client asks for that
(3) tell the client that the run is taken, and wait for its data
(4) build the action, as the client's own process would
(5) carry it out, with its output on the way to the client as it comes
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from cellwall.core.approvals import Answer, Question
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, Json, OutputSink, RunCode, RunCommand
from cellwall.interfaces.outcome_text import exit_code, kept_changes, notes_of
from cellwall.interfaces.sandbox_options import SandboxOptions
from cellwall.interfaces.sdk.one_shot import single_action
from cellwall.interfaces.sdk.options import OneShot
from cellwall.interfaces.sdk.plain_options import plain_options
from cellwall.interfaces.supervisor.codec import UNKNOWN_REQUEST, decode_operation
from cellwall.interfaces.supervisor.conversation import (
    Conversation,
    note_latency,
    perform_while_connected,
)
from cellwall.interfaces.supervisor.outcome_frames import encode_outcome
from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.interfaces.supervisor.surroundings import (
    may_inspect,
    named_places,
    surroundings,
)
from cellwall.runtime.app import App

_LISTS = ("env", "allow_domain", "secret", "package", "packages", "skill")

Build = Callable[[App, RunCommand | RunCode, bytes | None], Action]
Render = Callable[[Action, Outcome], tuple[Mapping[str, Json], bytes]]


@dataclass(frozen=True, slots=True)
class _SingleRun:
    """A request that was checked."""

    config: str | None
    profile: str | None
    shaping: Mapping[Any, Any]
    operation: Mapping[str, Any]
    stdin_bytes: int | None
    build: Build
    render: Render
    streams: bool
    asks: bool
    """Whether a person may be asked at the client's terminal."""
    is_elsewhere: Callable[[], Awaitable[bool]]
    """Whether the client's own process would carry it out otherwise. Never of a command of a
    person, who is told where it runs."""


async def single_request(
    client: Conversation, cache: RuntimeCache, message: Mapping[str, Any]
) -> None:
    """Carry out one run for a client."""
    # (1)
    request = _parse(message, client.pid)
    # (2) A client in a container, or with fewer rights, runs its action itself.
    if await request.is_elsewhere():
        await client.send({"elsewhere": True})
        return
    # (3) A client that has given up on us is gone: nothing runs twice.
    await client.send({"taken": True})
    go = await client.read()
    if go is None or go[0].get("do") != "go":
        return
    data = go[1]
    stdin = None if request.stdin_bytes is None else data[: request.stdin_bytes]
    operation = decode_operation(request.operation, data[len(stdin or b"") :])
    if not isinstance(operation, RunCommand | RunCode):
        raise BadInput(UNKNOWN_REQUEST)
    async with cache.lease(request.config, request.profile, request.shaping) as app:
        # (4)
        action = request.build(app, operation, stdin)
        # (5)
        await _run(client, app, action, request)
        note_latency(app, "run", message)


def _parse(message: Mapping[str, Any], pid: int) -> _SingleRun:
    here, stdin_bytes = message["cwd"], message["stdin"]
    is_size = stdin_bytes is None or (type(stdin_bytes) is int and stdin_bytes >= 0)
    if not isinstance(here, str) or not os.path.isabs(here) or not is_size:
        raise BadInput(UNKNOWN_REQUEST)
    operation, shaping = message["operation"], message["shaping"]
    if not isinstance(operation, Mapping) or not isinstance(shaping, Mapping):
        raise BadInput(UNKNOWN_REQUEST)
    if "choices" in message:
        return _sdk_run(message, pid, here, operation, shaping, stdin_bytes)
    return _typed_run(message["options"], here, operation, shaping, stdin_bytes)


def _sdk_run(
    message: Mapping[str, Any],
    pid: int,
    here: str,
    operation: Mapping[str, Any],
    shaping: Mapping[Any, Any],
    stdin_bytes: int | None,
) -> _SingleRun:
    """Options of `cellwall.run_code` and `run_command`; the outcome goes back as it is."""
    choices = plain_options(message["choices"])
    if choices is None:
        raise BadInput(UNKNOWN_REQUEST)
    theirs = message["surroundings"], message["places"]

    def compare() -> bool:
        ours = surroundings(os.environ), named_places(here, choices, shaping)
        return not ours[0] or theirs != ours or not may_inspect(pid)

    async def is_elsewhere() -> bool:
        # In a thread: a name can lie in a file system that does not answer.
        return await anyio.to_thread.run_sync(compare)

    def build(app: App, operation: RunCommand | RunCode, stdin: bytes | None) -> Action:
        options: OneShot = {**choices, "stdin": stdin}  # type: ignore[typeddict-item]  # checked above
        return single_action(app, operation, options, asked_in=here)

    return _SingleRun(
        config=choices.get("config"),
        profile=choices.get("profile"),
        shaping=shaping,
        operation=operation,
        stdin_bytes=stdin_bytes,
        build=build,
        render=_render_whole,
        streams=message["streams"] is True,
        asks=False,
        is_elsewhere=is_elsewhere,
    )


def _render_whole(_action: Action, outcome: Outcome) -> tuple[Mapping[str, Json], bytes]:
    body, data = encode_outcome(outcome)
    return {"outcome": body}, data


def _typed_run(
    fields: Mapping[str, Any],
    here: str,
    operation: Mapping[str, Any],
    shaping: Mapping[Any, Any],
    stdin_bytes: int | None,
) -> _SingleRun:
    """Options as a person typed them; the outcome goes back as text."""
    lists = {name: tuple(fields[name]) for name in _LISTS if name in fields}
    options = SandboxOptions(**{**fields, **lists})

    def build(app: App, operation: RunCommand | RunCode, stdin: bytes | None) -> Action:
        return options.action(app, operation, stdin=stdin, asked_in=here)

    def render(action: Action, outcome: Outcome) -> tuple[Mapping[str, Json], bytes]:
        shown: dict[str, Json] = {
            "exit": exit_code(outcome),
            "outcome": outcome.to_json() if options.as_json else None,
            "notes": [] if options.as_json else notes_of(action, outcome),
        }
        return shown, b""

    return _SingleRun(
        config=options.config,
        profile=options.profile,
        shaping=shaping,
        operation=operation,
        stdin_bytes=stdin_bytes,
        build=build,
        render=render,
        streams=not options.as_json,
        asks=True,
        is_elsewhere=_never,
    )


async def _never() -> bool:
    return False


async def _run(client: Conversation, app: App, action: Action, request: _SingleRun) -> None:
    async def work(sink: OutputSink) -> Outcome:
        return await app.runtime.perform(
            action,
            sink=sink if request.streams else None,
            ask=_ClientApprover(client) if request.asks else None,
        )

    outcome = await perform_while_connected(client, work)
    if outcome is None:
        await client.send({"stopped": True, "workspace_id": kept_changes(app, action)})
        return
    await client.send(*request.render(action, outcome))


class _ClientApprover:
    """Sends the client the id of the question; the answer comes through the approval queue."""

    name = "terminal"

    def __init__(self, client: Conversation) -> None:
        self._client = client

    async def ask(self, question: Question) -> Answer:
        await self._client.send({"asking": question.id})
        raise CellwallError("the answer comes through the queue", code="CW-ASKED-THERE")
