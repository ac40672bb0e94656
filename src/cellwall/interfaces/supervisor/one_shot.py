"""Requests of one action each: `cellwall run`, `cellwall code` and `cellwall hook`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cellwall.core.approvals import Answer, Question
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, OutputSink, RunCode, RunCommand
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.outcome_text import exit_code, kept_changes, notes_of
from cellwall.interfaces.sandbox_options import SandboxOptions
from cellwall.interfaces.supervisor.codec import UNKNOWN_REQUEST, decode_operation
from cellwall.interfaces.supervisor.conversation import Conversation, perform_while_connected
from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.wiring import App

_LISTS = ("env", "allow_domain", "secret", "package", "skill")


async def run_request(
    client: Conversation, cache: RuntimeCache, message: Mapping[str, Any], blob: bytes
) -> None:
    """Carry out options as the client's user typed them; notes go back as text."""
    fields = message["options"]
    options = SandboxOptions(**{**fields, **{name: tuple(fields[name]) for name in _LISTS}})
    stdin_bytes = message["stdin"]
    stdin = None if stdin_bytes is None else blob[: int(stdin_bytes)]
    operation = decode_operation(message["operation"], blob[len(stdin or b"") :])
    if not isinstance(operation, RunCommand | RunCode):
        raise BadInput(UNKNOWN_REQUEST)
    async with cache.lease(options.config, options.profile, message["shaping"]) as app:
        action = options.action(app, operation, stdin=stdin)
        await _run(client, app, action, as_json=options.as_json)


async def _run(client: Conversation, app: App, action: Action, *, as_json: bool) -> None:
    async def work(sink: OutputSink) -> Outcome:
        return await app.runtime.perform(
            action, sink=None if as_json else sink, ask=_ClientApprover(client)
        )

    outcome = await perform_while_connected(client, work)
    if outcome is None:
        await client.send({"stopped": True, "workspace_id": kept_changes(app, action)})
        return
    await client.send(
        {
            "exit": exit_code(outcome),
            "outcome": outcome.to_json() if as_json else None,
            "notes": [] if as_json else notes_of(action, outcome),
        }
    )


class _ClientApprover:
    """Tells the client which question waits; the answer comes through the approval queue."""

    name = "terminal"

    def __init__(self, client: Conversation) -> None:
        self._client = client

    async def ask(self, question: Question) -> Answer:
        await self._client.send({"asking": question.id})
        raise CellwallError("the answer comes through the queue", code="CW-ASKED-THERE")


async def hook_request(
    client: Conversation, cache: RuntimeCache, message: Mapping[str, Any], question: bytes
) -> None:
    """Answer `cellwall hook`. The client does not parse: the frame holds the exit code, the length
    of the output, the output and the errors, ready to be written."""
    mark_agent(client.pid)  # before the answer: every process that the agent starts later is marked

    @asynccontextmanager
    async def lease(options: HookOptions) -> AsyncIterator[App]:
        async with cache.lease(options.config, options.profile, message["shaping"]) as app:
            yield app

    shaping = {str(name): str(value) for name, value in message["shaping"].items()}
    reply = await reply_to(question, HookOptions.of(message["options"], shaping), lease)
    size = len(reply.stdout).to_bytes(4, "big")
    await client.send({"hook": True}, bytes([reply.exit_code]) + size + reply.stdout + reply.stderr)
