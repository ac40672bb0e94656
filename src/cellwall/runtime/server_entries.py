"""A configured MCP server: its settings, and what a person has decided about its tools (SRV-7)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from cellwall.mcp_servers.definitions import ToolSet
from cellwall.mcp_servers.pins import Pins


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server is run or reached, as a person has written it."""

    name: str
    argv: tuple[str, ...] = ()
    """The command of a local server, in its cell."""
    url: str = ""
    """The address of a remote server."""
    headers: tuple[str, ...] = ()
    """For a remote server: `Name: value`, with `${SECRET}` for the placeholder of a secret."""
    env: Mapping[str, str] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    directory: str = ""
    """Absolute; empty: a private workspace."""
    mode: str = "private"
    template: str = "python"
    memory_bytes: int = 0
    """0: that of the profile."""
    timeout_s: float = 60.0
    """For one call."""
    may_elicit: bool = False

    def lines(self) -> Iterator[str]:
        """All of it for a person, who signs all of it."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "argv" and value:
                yield f"runs {shlex.join(value)}"
            elif isinstance(value, Mapping):
                yield from (f"{each.name} {name}={text}" for name, text in value.items())
            elif isinstance(value, tuple):
                yield from (f"{each.name} {item}" for item in value)
            elif each.name != "name" and value:
                yield f"{each.name} {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """One server with its pins and the definitions that were last seen."""

    settings: ServerSettings
    pins: Pins = Pins()
    seen: ToolSet | None = None
    seen_at: str = ""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_named_together(self) -> bool:
        """Whether a person has consented to all labels of the server with the tools it has now."""
        together = self.pins.together
        return together != "" and self.seen is not None and self.seen.sha256 == together
