"""The server on standard input and output, for one client.

(1) The line is bounded and parsed (stdio, messages). (2) The tool and its arguments are checked
(tools). (3) The action goes through the runtime's steps (sessions). (4) The result is shown as the
runtime cleaned it (results). No decision is made here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from signal import Signals
from typing import TYPE_CHECKING

import anyio

from cellwall.interfaces.mcp.call_requests import serve_streams
from cellwall.interfaces.mcp.client_session import ClientSession, silence_sdk
from cellwall.interfaces.mcp.messages import max_message_bytes
from cellwall.interfaces.mcp.other_servers import OtherServers, OwnServers
from cellwall.interfaces.mcp.sessions import ClientSandboxes
from cellwall.interfaces.mcp.stdio import stdio

if TYPE_CHECKING:
    from cellwall.core.types import Action
    from cellwall.interfaces.mcp.tool_names import ToolNames
    from cellwall.runtime.app import App


async def serve(
    app: App, pattern: Action, *, with_gateway: bool = False, tools: ToolNames | None = None
) -> Signals | None:
    """Serve until the client disconnects; returns the signal that ended the server, if any.

    `pattern` is the upper bound of every call; its `operation` is ignored. `with_gateway` adds the
    tools of the other servers that the user has configured (SRV-7); of all, `tools` are offered.
    """
    silence_sdk()
    stopped: list[Signals] = []
    max_line_bytes = max_message_bytes(app.settings.sandbox.max_code_bytes)
    with anyio.open_signal_receiver(*_signals()) as received:
        async with anyio.create_task_group() as tasks:

            async def watch_signals() -> None:
                async for number in received:
                    stopped.append(number)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(watch_signals)
            sandboxes, others = ClientSandboxes(app, pattern), None
            if with_gateway:
                others = OtherServers(
                    app,
                    OwnServers(app),
                    who=lambda: pattern.principal,
                    policy=pattern.policy,
                    context=sandboxes.context,
                )
            client = ClientSession(sandboxes, others, tools)
            async with (
                stdio(max_line_bytes) as (incoming, outgoing),
                client.opened() as server,
            ):
                await serve_streams(server, incoming, outgoing)
            tasks.cancel_scope.cancel()
    return stopped[0] if stopped else None


def _signals() -> Iterator[Signals]:
    yield signal.SIGTERM
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            yield number
