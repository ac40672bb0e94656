"""Other MCP servers behind the gateway: operations, and the port of their connections (SRV-7)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from cellwall.core.errors import BadInput

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object; `types.Json` would be a cycle, since `types` names these operations."""

MAX_SERVER_NAME = 32
# No hyphen: the gateway offers `server-tool`, and the first hyphen ends the server's name. No `__`
# either: in rules, `mcp__server__tool` has one meaning.
_SERVER = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def check_server_name(name: object) -> str:
    """The name if it is valid: it stands in rules, tool names and file names."""
    if (
        not isinstance(name, str)
        or len(name) > MAX_SERVER_NAME
        or _SERVER.fullmatch(name) is None
        or name == "cellwall"
    ):
        raise BadInput(
            f"{str(name)[:40]!r} is not a name for an MCP server",
            hint="Use lower-case letters, digits and single underscores; `cellwall` is taken.",
            code="CW-MCP-NAME",
        )
    return name


def is_tool_name(name: str) -> bool:
    """Whether rules and models' interfaces can spell the name of a tool."""
    return _TOOL.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class CallServerTool:
    """Call a tool of another MCP server."""

    server: str
    tool: str
    arguments: JsonObject
    elicit: Elicit | None = field(default=None, repr=False, compare=False)
    """Asks the person at the client; None: the client cannot ask."""

    @property
    def rule_name(self) -> str:
        """The tool as rules and agents' hooks name it."""
        return f"mcp__{self.server}__{self.tool}"


@dataclass(frozen=True, slots=True)
class RunServer:
    """Run an MCP server in a live sandbox for as long as `hold` takes."""

    server: str
    argv: tuple[str, ...]
    hold: Callable[[ServerPipe], Awaitable[None]] = field(repr=False, compare=False)
    """Called with the standard input and output of the server."""
    url: str = ""
    """Of a remote server; then `argv` is Cellwall's own relay to it."""


class ServerPipe(Protocol):
    """Standard input and output of a program in a cell. All bytes are untrusted."""

    async def receive(self) -> bytes:
        """The next bytes; empty once the program has ended or closed its output."""

    async def send(self, data: bytes) -> None:
        """Write all of it; raises `BrokenPipeError` once the program reads no more."""

    def send_now(self, data: bytes) -> int:
        """Write what the pipe accepts without waiting; returns how much. Raises as `send` does."""

    def errors(self) -> bytes:
        """The end of its standard error so far."""


Elicit: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject | None]]
"""Shows a message and a form (JSON Schema) to a person; returns the filled form, or None."""
