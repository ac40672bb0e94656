"""A real `cellwall mcp` process behind the SDK's own client, for tests that are not asynchronous."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitResult

from interfaces import prepared_program

DEADLINE_S = 60.0


class Person:
    """Whom the client asks; `answer` is what they will say to the next questions."""

    def __init__(self) -> None:
        self.asked: list[ElicitRequestFormParams] = []
        self.answer: Callable[[], Any] = lambda: ElicitResult(action="decline")

    async def ask(self, _: object, params: ElicitRequestFormParams) -> Any:
        self.asked.append(params)
        return self.answer()

    def says(self, action: str, **content: object) -> None:
        self.asked.clear()
        self.answer = lambda: ElicitResult(action=action, content=content or None)


class Agent:
    """One client with one server."""

    def __init__(self, client: Client, portal: BlockingPortal, person: Person, home: Path) -> None:
        self.home = home
        self.client = client
        self.portal = portal
        self.person = person

    def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        return self.portal.call(lambda: self.client.call_tool(tool, arguments))

    def told(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured result."""
        return self.call(tool, **arguments).structured_content

    def run(self, work: Callable[[Client], Awaitable[Any]]) -> Any:
        """Something that needs several calls at once."""

        async def within() -> Any:
            with anyio.fail_after(DEADLINE_S):
                return await work(self.client)

        return self.portal.call(within)


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "CELLWALL_HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "no-config"),
        "CELLWALL_PATH": "warm",
        "CELLWALL_SUPERVISOR": "off",
    }


@cache
def _launcher() -> str:
    """A start of the program with the imports of the SDK takes two seconds of processor time."""
    folder = tempfile.mkdtemp(prefix="cw-launcher-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepared_program.install_launcher(folder)
    return os.path.join(folder, "cellwall")


@contextmanager
def connected(
    home: Path, *options: str, mode: str = "auto", directory: Path | None = None
) -> Iterator[Agent]:
    person = Person()
    params = StdioServerParameters(
        command=_launcher(),
        args=["mcp", *options],
        env=environment(home),
        cwd=str(directory or home),
    )
    with start_blocking_portal() as portal, open(home / "stderr", "w", encoding="utf-8") as errors:
        client = Client(
            stdio_client(params, errlog=errors), mode=mode, elicitation_callback=person.ask
        )
        with portal.wrap_async_context_manager(client):
            yield Agent(client, portal, person, home)


def until(seen: Callable[[], object]) -> None:
    """What another process does takes its time; each look is a call that takes some, too."""
    deadline = time.monotonic() + DEADLINE_S
    while not seen():
        assert time.monotonic() < deadline, "it never came"
