"""What a person decides about an MCP server: its definitions beside those that were accepted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Finding
from cellwall.mcp_servers.definitions import ToolSet
from cellwall.mcp_servers.pins import ToolChange, compare
from cellwall.runtime.server_entries import ServerEntry


@dataclass(frozen=True, slots=True)
class ReviewedTool:
    """One definition with what speaks against it."""

    change: ToolChange
    findings: tuple[Finding, ...] = ()
    shadows: str = ""
    """The owner of another tool of this name."""

    @property
    def waits(self) -> bool:
        """Whether a person has to decide."""
        return self.change.state in {"new", "changed"}


@dataclass(frozen=True, slots=True)
class ServerReview:
    """What a server says now, compared with what was accepted."""

    entry: ServerEntry
    seen: ToolSet
    tools: tuple[ReviewedTool, ...]

    @property
    def waits(self) -> bool:
        return any(each.waits for each in self.tools)

    @property
    def shown_sha256(self) -> str:
        """Names what a person was shown: how the server is run, the set, and what was decided
        before, from which the differences follow."""
        pins = self.entry.pins
        shown = [
            self.entry.name,
            list(self.entry.settings.lines()),
            self.seen.sha256,
            "" if pins.identity is None else pins.identity.sha256,
            sorted((name, each.definition.sha256) for name, each in pins.tools.items()),
            sorted(pins.rejected.items()),
        ]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()

    def check_shown(self, shown_sha256: str) -> None:
        """Raise unless this is what the person was shown."""
        if self.shown_sha256 != shown_sha256:
            raise changed_meanwhile(self.entry.name)


def waiting_in(entry: ServerEntry) -> list[str]:
    """Names of the definitions that wait for a person; empty for the server itself."""
    if entry.seen is None:
        return []
    changes = compare(entry.pins, entry.seen)
    return [each.name for each in changes if each.state in {"new", "changed"}]


def changed_meanwhile(name: str) -> BadInput:
    """The set, or what was decided about it, is another one than the person was shown."""
    return BadInput(
        f"the MCP server {name} says something else by now, or somebody has decided about it",
        hint=f"Look at it again: cellwall mcp gateway review {name}",
        code="CW-MCP-REVIEW",
    )


def chosen_tools(
    review: ServerReview, only: Sequence[str], *, any_state: bool = False
) -> list[ReviewedTool]:
    """The tools of these names; without names those that wait, or all."""
    tools = {
        each.change.name: each for each in review.tools if each.change.after and each.change.name
    }
    unknown = [name for name in only if name not in tools]
    if unknown:
        raise BadInput(
            f"the MCP server {review.entry.name} has no tool {unknown[0][:60]!r} to decide about",
            hint="Use a name that the review shows.",
            code="CW-MCP-REVIEW",
        )
    if only:
        return [tools[name] for name in dict.fromkeys(only)]
    return [each for each in tools.values() if each.waits or any_state]
