"""The pinned definitions of a server, and the comparison with what the server says now. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from cellwall.core.types import Json
from cellwall.mcp_servers.definitions import Definition, ToolSet

ToolState: TypeAlias = Literal["accepted", "new", "changed", "rejected", "refused", "gone"]


@dataclass(frozen=True, slots=True)
class AcceptedTool:
    """A definition that a person has accepted."""

    definition: Definition
    despite_findings: bool = False
    offered_as: str = ""
    """Another name for the model, chosen by the person; empty: its own."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What a person has decided about a server."""

    identity: Definition | None = None
    """None: nothing of this server is accepted yet."""
    tools: Mapping[str, AcceptedTool] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Name and digest of each rejected definition."""
    together: str = ""
    """The digest of the set with which a person has consented that this server brings all three
    labels of information flow (POL-9); empty: there is none. Another set needs another consent."""


@dataclass(frozen=True, slots=True)
class ToolChange:
    """One tool, or the server itself (`name` is empty), and its state."""

    name: str
    state: ToolState
    before: Definition | None = None
    after: Definition | None = None
    reason: str = ""

    def diff(self) -> str:
        """A unified diff of both definitions; empty where they are equal. Whole: a definition is
        bounded, and an attack could stand in a part that is left out."""
        if self.state not in {"new", "changed", "gone"}:
            return ""
        before, after = (_lines(each) for each in (self.before, self.after))
        lines = [
            line
            for line in difflib.unified_diff(before, after, "accepted", "now", lineterm="", n=3)
            if not line.startswith(("---", "+++"))
        ]
        return "\n".join(lines)


def _lines(definition: Definition | None) -> list[str]:
    if definition is None:
        return []
    # Escaped: a person must see each invisible character.
    return json.dumps(definition.fields, indent=1, sort_keys=True, ensure_ascii=True).splitlines()


def is_known_identity(pins: Pins, seen: ToolSet) -> bool:
    """Whether a person has accepted this server under this name, version and instructions."""
    return pins.identity is not None and pins.identity.sha256 == seen.identity.sha256


def is_as_seen(pins: Pins, seen: ToolSet) -> bool:
    """Whether each accepted definition is one of this set."""
    of_set = {name: each.sha256 for name, each in seen.tools.items()}
    accepted = {name: each.definition.sha256 for name, each in pins.tools.items()}
    return is_known_identity(pins, seen) and accepted.items() <= of_set.items()


def compare(pins: Pins, seen: ToolSet) -> tuple[ToolChange, ...]:
    """The state of the server and of each tool."""
    return tuple(_compare(pins, seen))


def _compare(pins: Pins, seen: ToolSet) -> Iterator[ToolChange]:
    if is_known_identity(pins, seen):
        yield ToolChange("", "accepted", pins.identity, seen.identity)
    else:
        state: ToolState = "new" if pins.identity is None else "changed"
        yield ToolChange("", state, pins.identity, seen.identity)
    for name, definition in sorted(seen.tools.items()):
        accepted = pins.tools.get(name)
        before = None if accepted is None else accepted.definition
        if before is not None and before.sha256 == definition.sha256:
            yield ToolChange(name, "accepted", before, definition)
        elif pins.rejected.get(name) == definition.sha256:
            yield ToolChange(name, "rejected", before, definition)
        else:
            state = "new" if before is None else "changed"
            yield ToolChange(name, state, before, definition)
    for name, reason in sorted(seen.refused.items()):
        yield ToolChange(name, "refused", reason=reason)
    for name, tool in sorted(pins.tools.items()):
        if name not in seen.tools and name not in seen.refused:
            yield ToolChange(name, "gone", tool.definition)


def usable(pins: Pins, seen: ToolSet) -> frozenset[str]:
    """The tools that are exactly as accepted; none where the server itself has changed."""
    if not is_known_identity(pins, seen):
        return frozenset()
    return frozenset(each.name for each in compare(pins, seen) if each.state == "accepted") - {""}


def accept(
    pins: Pins,
    seen: ToolSet,
    names: frozenset[str],
    *,
    despite_findings: frozenset[str],
    offered_as: Mapping[str, str] = MappingProxyType({}),
    together: bool = False,
) -> Pins:
    """Accept these tools as they are now, and the server itself; drop those that are gone."""
    tools = {name: tool for name, tool in pins.tools.items() if name in seen.tools}
    for name in names:
        before = pins.tools.get(name)
        renamed = offered_as.get(name, "" if before is None else before.offered_as)
        tools[name] = AcceptedTool(seen.tools[name], name in despite_findings, renamed)
    rejected = {name: digest for name, digest in pins.rejected.items() if name not in names}
    return Pins(seen.identity, tools, rejected, seen.sha256 if together else "")


def reject(pins: Pins, seen: ToolSet, names: frozenset[str]) -> Pins:
    """Reject these tools as they are now; an accepted one is not offered any more."""
    tools = {name: tool for name, tool in pins.tools.items() if name not in names}
    digests = {name: seen.tools[name].sha256 for name in names if name in seen.tools}
    return replace(pins, tools=tools, rejected={**pins.rejected, **digests})


def plain_name(name: str) -> str:
    """The name as a model would confuse it with others: case and separators do not count."""
    return name.replace("-", "").replace("_", "").lower()


def to_json(tools: ToolSet) -> dict[str, Json]:
    """For storage; see `from_json`."""
    return {
        "identity": dict(tools.identity.fields),
        "tools": {name: dict(each.fields) for name, each in tools.tools.items()},
        "refused": dict(tools.refused),
    }
