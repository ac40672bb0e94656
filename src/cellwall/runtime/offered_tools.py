"""Which tools of the configured servers a model may see, and why others are withheld (SRV-7).

A tool is offered if a person has accepted its definition, the guard finds nothing in it that the
person has not seen, and no other tool has its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.guard.scanning import Scanner
from cellwall.guard.tool_definitions import screen_definition
from cellwall.mcp_servers.definitions import Definition, texts_of
from cellwall.mcp_servers.pins import plain_name
from cellwall.parsing.budget import ScanBudget
from cellwall.runtime.server_catalog import ServerEntry

OWN_TOOLS = (
    "run_code", "run_command", "read_file", "write_file", "list_files", "fetch_url",
    "install_package", "new_session", "end_session",
)  # fmt: skip
"""The names of Cellwall's own tools, which no other server's tool may have."""
_OURS = "Cellwall"
_SERIOUS = SEVERITIES.index("medium")
_SCAN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool of another server as a model sees it: the definition that a person has accepted."""

    server: str
    tool: str
    definition: Definition = field(repr=False)
    offered_as: str = ""

    @property
    def name(self) -> str:
        """For the client. The name of a server holds no hyphen, so it ends at the first one."""
        return f"{self.server}-{self.offered_as or self.tool}"


@dataclass(frozen=True, slots=True)
class Offer:
    """All tools that are offered, and the reasons why others are not, by server and tool."""

    tools: Mapping[tuple[str, str], OfferedTool]
    withheld: Mapping[tuple[str, str], str]


def owners_of(entries: Iterable[ServerEntry], *, but: str = "") -> dict[str, str]:
    """The plain name of each accepted tool and of Cellwall's own, and the owner."""
    owners = {plain_name(name): _OURS for name in OWN_TOOLS}
    for entry in entries:
        if entry.name != but:
            for name, accepted in entry.pins.tools.items():
                shown = accepted.offered_as or name
                for spelled in (shown, entry.name + shown):
                    owners.setdefault(plain_name(spelled), entry.name)
    return owners


def owner_of(owners: Mapping[str, str], server: str, tool: str) -> str:
    """Who has a tool that a model could take for this one, alone or with its server's name."""
    return owners.get(plain_name(tool)) or owners.get(plain_name(server + tool), "")


def one_budget() -> AbstractContextManager[None]:
    """Bounds the time to scan all definitions within; what is not scanned then counts as found."""
    return ScanBudget(base_s=_SCAN_S).running()


def findings_in(
    scanner: Scanner, definition: Definition, entries: Sequence[ServerEntry], *, server: str
) -> tuple[Finding, ...]:
    """Findings of the guard in a definition; those below `medium` are left out."""
    foreign = set(OWN_TOOLS)
    for entry in entries:
        if entry.name != server:
            foreign.update(entry.pins.tools)
    # Its own name is judged by `owner_of`; a name without a separator is a word of the language.
    foreign.discard(str(definition.fields.get("name", "")))
    names = frozenset(name for name in foreign if "_" in name or "-" in name)
    found = screen_definition(scanner, texts_of(definition.fields), foreign_tools=names)
    return tuple(each for each in found if SEVERITIES.index(each.severity) >= _SERIOUS)


def offer(entries: Sequence[ServerEntry], scanner: Scanner) -> Offer:
    """Decide about each accepted tool."""
    with one_budget():
        return _offer(entries, scanner)


def _offer(entries: Sequence[ServerEntry], scanner: Scanner) -> Offer:
    tools: dict[tuple[str, str], OfferedTool] = {}
    withheld: dict[tuple[str, str], str] = {}
    for entry in entries:
        owners = owners_of(entries, but=entry.name)
        for name, accepted in entry.pins.tools.items():
            key = (entry.name, name)
            owner = owner_of(owners, entry.name, accepted.offered_as or name)
            if owner:
                withheld[key] = f"{owner} has a tool of this name"
            elif not accepted.despite_findings and findings_in(
                scanner, accepted.definition, entries, server=entry.name
            ):
                withheld[key] = "the guard has found something in its definition"
            else:
                tools[key] = OfferedTool(
                    server=entry.name,
                    tool=name,
                    definition=accepted.definition,
                    offered_as=accepted.offered_as,
                )
    return Offer(tools, withheld)
