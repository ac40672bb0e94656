"""`cellwall run` and `cellwall code`, carried out for a client that only typed them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from cellwall.core.approvals import Answer, Question
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, OutputSink, RunCode, RunCommand, WorkspaceMode
from cellwall.interfaces.cli.execute import exit_code, notes_of
from cellwall.interfaces.cli.options import SandboxOptions
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.supervisor.codec import decode_operation
from cellwall.interfaces.supervisor.conversation import followed
from cellwall.interfaces.supervisor.runtime_cache import Houses
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.wiring import House

if TYPE_CHECKING:
    from cellwall.interfaces.supervisor.server import Conversation


async def run_typed(
    talk: Conversation, houses: Houses, message: Mapping[str, Any], blob: bytes
) -> None:
    """Options as they were typed, names made absolute; the words for a person go back ready."""
    typed = message["options"]
    names = ("env", "allow_domain", "secret", "package", "skill")
    lists = {name: tuple(typed[name]) for name in names}
    options = SandboxOptions(**{**typed, **lists})
    shaping = {str(name): str(value) for name, value in message["shaping"].items()}
    stdin_bytes = message["stdin"]
    stdin = None if stdin_bytes is None else blob[: int(stdin_bytes)]
    operation = decode_operation(message["operation"], blob[len(stdin or b"") :])
    if not isinstance(operation, RunCommand | RunCode):
        raise BadInput("the supervisor was asked for something it does not know")
    house = await anyio.to_thread.run_sync(houses.take, options.config, options.profile, shaping)
    try:
        action = options.action(house, operation, stdin=stdin)
        await _run(talk, house, action, as_json=options.as_json)
    finally:
        houses.give_back(house)


class _Announcing:
    """Tells the client which question waits; what it answers comes back through the queue."""

    name = "terminal"

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    async def ask(self, question: Question) -> Answer:
        await self._talk.send({"asking": question.id})
        raise CellwallError("its answer comes through the queue", code="CW-ASKED-THERE")


async def _run(talk: Conversation, house: House, action: Action, *, as_json: bool) -> None:
    async def work(sink: OutputSink) -> Outcome:
        return await house.runtime.perform(
            action, sink=None if as_json else sink, ask=_Announcing(talk)
        )

    outcome = await followed(talk, work)
    if outcome is None:
        kept = None
        if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE:
            kept = _kept(house, action)
        await talk.send({"stopped": True, "workspace_id": kept})
        return
    await talk.send(
        {
            "exit": exit_code(outcome),
            "outcome": outcome.to_json() if as_json else None,
            "notes": [] if as_json else notes_of(action, outcome),
        }
    )


def _kept(house: House, action: Action) -> str | None:
    try:
        return house.store.session(action.id).id
    except CellwallError:  # ended before there was a workspace
        return None


async def answer_hook(
    talk: Conversation, houses: Houses, message: Mapping[str, Any], question: bytes
) -> None:
    """The frame holds exit code, length of the output, output and errors, ready to be written."""
    mark_agent(talk.pid)  # before the answer: all that the agent starts after it is marked
    shaping = {str(name): str(value) for name, value in message["shaping"].items()}

    @asynccontextmanager
    async def taken(options: HookOptions) -> AsyncIterator[House]:
        house = await anyio.to_thread.run_sync(
            houses.take, options.config, options.profile, shaping
        )
        try:
            yield house
        finally:
            houses.give_back(house)

    reply = await reply_to(question, HookOptions.of(message["options"], shaping), taken)
    size = len(reply.stdout).to_bytes(4, "big")
    await talk.send({"hook": True}, bytes([reply.exit_code]) + size + reply.stdout + reply.stderr)
