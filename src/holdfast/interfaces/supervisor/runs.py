"""`holdfast run` and `holdfast code`, carried out for a client that only typed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio

from holdfast.core.errors import BadInput, HoldfastError
from holdfast.core.types import Action, Outcome, WorkspaceMode
from holdfast.interfaces.cli.execute import exit_code, notes_of
from holdfast.interfaces.cli.options import SandboxOptions
from holdfast.interfaces.supervisor.codec import decode_want
from holdfast.interfaces.supervisor.houses import Houses
from holdfast.runtime.pipeline import Runtime
from holdfast.runtime.wiring import House

if TYPE_CHECKING:
    from holdfast.interfaces.supervisor.server import Conversation


async def run_typed(
    talk: Conversation, houses: Houses, message: Mapping[str, Any], blob: bytes
) -> None:
    """Options as they were typed, names made absolute; the words for a person go back ready."""
    typed = message["options"]
    options = SandboxOptions(
        **{**typed, "env": tuple(typed["env"]), "allow_domain": tuple(typed["allow_domain"])}
    )
    shaping = {str(name): str(value) for name, value in message["shaping"].items()}
    house = await anyio.to_thread.run_sync(houses.get, options.config, options.profile, shaping)
    stdin_bytes = message["stdin"]
    stdin = None if stdin_bytes is None else blob[: int(stdin_bytes)]
    want = decode_want(message["want"], blob[len(stdin or b"") :])
    if not isinstance(message["want"], dict) or message["want"].get("kind") not in (
        "command",
        "code",
    ):
        raise BadInput("the supervisor was asked for something it does not know")
    action = options.action(house, want, stdin=stdin)  # type: ignore[arg-type]  # one of the two, see above
    outcome = await _followed(talk, house.runtime, action, quiet=options.as_json)
    if outcome is None:
        kept = None
        if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE:
            kept = _kept(house, action)
        await talk.send({"stopped": True, "workspace_id": kept})
        return
    await talk.send(
        {
            "exit": exit_code(outcome),
            "outcome": outcome.to_json() if options.as_json else None,
            "notes": [] if options.as_json else notes_of(action, outcome),
        }
    )


async def _followed(
    talk: Conversation, runtime: Runtime, action: Action, *, quiet: bool
) -> Outcome | None:
    """The outcome, or None if the client wanted it to stop or is gone."""
    found: list[Outcome] = []
    send, receive = anyio.create_memory_object_stream[tuple[str, bytes]](float("inf"))

    def sink(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        send.send_nowait((name, chunk))  # bounded by the run's output limit

    async def relay() -> None:
        async with receive:
            async for name, chunk in receive:
                await talk.send({"out": name}, chunk)

    async with anyio.create_task_group() as relays:
        relays.start_soon(relay)
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                await talk.read()  # whatever it says now means "stop"; silence's end does, too
                tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            found.append(await runtime.perform(action, sink=None if quiet else sink))
            tasks.cancel_scope.cancel()
        send.close()
    return found[0] if found else None


def _kept(house: House, action: Action) -> str | None:
    try:
        return house.store.session(action.id).id
    except HoldfastError:  # ended before there was a workspace
        return None
