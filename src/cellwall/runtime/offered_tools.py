"""Which tools of the configured servers a model may see, and why others are withheld (SRV-7).

A tool is offered if a person has accepted its definition, the guard finds nothing in it that the
person has not seen, and no other tool has its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.standing_grants import GrantsPort
from cellwall.guard.scanning import Scanner
from cellwall.guard.tool_definitions import screen_definition
from cellwall.mcp_servers.definitions import Definition, joined_texts_of, texts_of
from cellwall.mcp_servers.pins import plain_name
from cellwall.parsing.budget import ScanBudget
from cellwall.runtime.server_catalog import ServerCatalog
from cellwall.runtime.server_entries import ServerEntry

OWN_TOOLS = (
    "run_code", "run_command", "read_file", "write_file", "list_files", "fetch_url",
    "install_package", "new_session", "end_session", "list_calendar_events",
    "create_calendar_event",
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
    by_name: Mapping[str, OfferedTool]
    """Of two tools with one name the first."""


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
    fields = definition.fields
    found = screen_definition(
        scanner, texts_of(fields), joined=joined_texts_of(fields), foreign_tools=names
    )
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
    return Offer(tools, withheld, {each.name: each for each in reversed(tools.values())})


class OfferedServers:
    """The configured servers and the offer that follows from them. Safe for threads.

    A service has one for all its users: the definitions are scanned once, not for each of them.
    """

    def __init__(
        self, home: str, scanner: Callable[[], Scanner], grants: GrantsPort | None
    ) -> None:
        self.catalog = ServerCatalog(home, grants)
        self._scanner = scanner
        self._entries: dict[str, ServerEntry] = {}
        self._offer = Offer({}, {}, {})
        self._version: object = None
        """That of the catalog when it was last read; see `ServerCatalog.version`."""
        self._lock = threading.Lock()

    def current(self) -> Offer:
        """The offer as of now; computed again after a change of the catalog."""
        with self._lock:
            entries = self._read()
            if not self._has_same_pins(entries):
                self._offer = offer(list(entries.values()), self._scanner())
            self._entries = entries
            return self._offer

    def current_if_known(self) -> Offer | None:
        """`current` without a scan: None if the offer must be computed, or is being computed."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            # For each call of a tool. The entry of its server is read again to judge it.
            if self._version is not None and self._version is self.catalog.version():
                return self._offer
            entries = self._read()
            if not self._has_same_pins(entries):
                return None
            self._entries = entries
            self._version = self.catalog.version()
            return self._offer
        finally:
            self._lock.release()

    def _read(self) -> dict[str, ServerEntry]:
        entries: dict[str, ServerEntry] = {}
        for name in self.catalog.names():
            with suppress(CellwallError):  # a damaged entry offers nothing, and hides no other
                entries[name] = self.catalog.read(name)
        return entries

    def _has_same_pins(self, entries: dict[str, ServerEntry]) -> bool:
        """Attack: other tools each second, to have all definitions scanned again and again."""
        return entries.keys() == self._entries.keys() and all(
            entry is self._entries[name] or entry.pins == self._entries[name].pins
            for name, entry in entries.items()
        )

    def for_entry(self, entry: ServerEntry) -> Offer:
        """The offer, with this entry as it was just read."""
        if entry is self._entries.get(entry.name):
            return self._offer
        return self.current()
