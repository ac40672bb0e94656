"""Adds, reviews and removes MCP servers behind the gateway (SRV-7): what people do, not agents.

(1) look: start the server in its cell and read what it says; nothing is accepted by that
(2) review: compare with the pins, scan every text, look for names of others
(3) decide about exactly the set that was shown: not if the server says something else by then
(4) write intent and outcome to the audit log
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import anyio

from cellwall.admin.tool_reviews import (
    ReviewedTool,
    ServerReview,
    changed_meanwhile,
    chosen_tools,
)
from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.keys import SigningKey
from cellwall.core.outcomes import EventKind
from cellwall.core.ports import ApproverPort
from cellwall.core.standing_grants import GrantKind
from cellwall.core.tool_servers import is_tool_name
from cellwall.core.types import Json, Permission, Principal
from cellwall.egress.destinations.hostnames import parse_url
from cellwall.mcp_servers.definitions import ToolSet
from cellwall.mcp_servers.pins import AcceptedTool, accept, compare, plain_name, reject
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.app import App
from cellwall.runtime.approver_key import AskPassphrase
from cellwall.runtime.egress import check_domain
from cellwall.runtime.judging import require
from cellwall.runtime.offered_tools import findings_in, one_budget, owner_of, owners_of
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.server_catalog import (
    ServerCatalog,
    check_header,
    describe,
    labels_together,
)
from cellwall.runtime.server_entries import ServerEntry, ServerSettings
from cellwall.runtime.server_grants import entry_grants, tool_subject
from cellwall.runtime.signed_grants import signed_grants
from cellwall.runtime.tool_servers import ToolServers

__all__ = [
    "ServerEntry",
    "ServerSettings",
    "ToolServerAdmin",
    "check_settings",
    "describe",
    "labels_together",
]


class ToolServerAdmin:
    """The servers of the state folder of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._grants = signed_grants(app.store.home, app.settings)
        self._catalog = ServerCatalog(app.store.home, self._grants)
        self.server_errors = ""
        """The end of the standard error of a server that did not start; its own text."""

    def entries(self) -> list[ServerEntry | CellwallError]:
        """Each server, or why its entry cannot be used."""
        found: list[ServerEntry | CellwallError] = []
        for name in self._catalog.names():
            try:
                found.append(self._catalog.read(name))
            except CellwallError as error:
                found.append(error)
        return found

    def add(self, settings: ServerSettings, *, who: Principal) -> ServerEntry:
        """Add a server; nothing of it is offered before a review."""
        refuse_agents("an MCP server")
        require(self._app.settings, who, Permission.CONFIG_WRITE)
        check_settings(settings)
        with self._recorded("add", settings.name, who, {"server": settings.name}) as outcome:
            entry = self._catalog.add(settings)
            outcome |= dict(describe(entry))
        return entry

    def remove(self, name: str, *, who: Principal) -> None:
        """Remove a server and all that was accepted of it."""
        refuse_agents("the removal of an MCP server")
        require(self._app.settings, who, Permission.CONFIG_WRITE)
        with self._recorded("remove", name, who, {"server": name}):
            if self._grants is not None:
                self._grants.withdraw(GrantKind.MCP, name)
            self._catalog.remove(name)

    async def look(self, name: str, *, who: Principal, ask: ApproverPort | None) -> ServerEntry:
        """(1) Start the server and keep what it says for the review."""
        refuse_agents("a review of an MCP server")
        self._catalog.read(name)
        seen: ToolSet | None = None
        problem: CellwallError | None = None
        async with anyio.create_task_group() as tasks:
            servers = ToolServers(self._app, tasks, starter=who, ask=ask)
            try:
                seen = await servers.look(name)
            except CellwallError as error:
                problem = error
                self.server_errors = servers.errors_of(name)
            finally:
                with anyio.CancelScope(shield=True):
                    await servers.close()
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        assert seen is not None  # noqa: S101  # else there is a problem
        return self._catalog.note_seen(name, seen)

    def review(self, name: str) -> ServerReview:
        """(2) The last set that the server has shown."""
        entry = self._catalog.read(name)
        if entry.seen is None:
            raise BadInput(
                f"the MCP server {name} has not been looked at yet",
                hint=f"Start it with: cellwall mcp gateway review {name}",
                code="CW-MCP-REVIEW",
            )
        entries = [each for each in self.entries() if isinstance(each, ServerEntry)]
        owners = owners_of(entries, but=name)
        tools: list[ReviewedTool] = []
        with one_budget():
            for change in compare(entry.pins, entry.seen):
                if change.after is None:
                    tools.append(ReviewedTool(change))
                    continue
                findings = findings_in(self._app.scanner, change.after, entries, server=name)
                shadows = owner_of(owners, name, change.name) if change.name else ""
                tools.append(ReviewedTool(change, findings, shadows))
        return ServerReview(entry, entry.seen, tuple(tools))

    def accept(
        self,
        review: ServerReview,
        *,
        only: Sequence[str] = (),
        despite_findings: bool = False,
        offered_as: str = "",
        together: bool = False,
        who: Principal,
        ask: AskPassphrase | None = None,
    ) -> frozenset[str]:
        """(3) Accept the server and the tools that wait; returns their names. `together`: the
        person consents to all labels of the server, for this set; else such a consent ends. `ask`
        asks for the passphrase of the approver, where a key is configured (POL-13)."""
        refuse_agents("the tools of an MCP server")
        require(self._app.settings, who, Permission.CONFIG_WRITE)
        doubtful = self.check_acceptable(
            review,
            only=only,
            despite_findings=despite_findings,
            offered_as=offered_as,
            together=together,
        )
        approver = self._unlock(ask, review.entry.name)
        chosen = chosen_tools(review, only)
        names = frozenset(each.change.name for each in chosen)
        known: dict[str, Json] = {"server": review.entry.name, "sha256": review.seen.sha256}
        with self._recorded("accept", review.entry.name, who, known) as outcome:
            outcome |= {"tools": sorted(names), "despite_findings": sorted(doubtful)}
            outcome |= {"offered_as": offered_as, "together": together}
            entry = self._decide(
                review,
                names,
                lambda entry: replace(
                    entry,
                    pins=accept(
                        entry.pins,
                        review.seen,
                        names,
                        despite_findings=doubtful,
                        offered_as=dict.fromkeys(names, offered_as) if offered_as else {},
                        together=together,
                    ),
                ),
            )
            if self._grants is not None and approver is not None:
                self._grants.sign(entry_grants(entry), approver, replaces=True)
        return names

    def _unlock(self, ask: AskPassphrase | None, server: str) -> SigningKey | None:
        """The approver's key; None: no key is configured."""
        if self._grants is None:
            return None
        command = f"cellwall mcp gateway review --accept {server}"
        return self._grants.key.ask_for("the tools of an MCP server", ask, command=command)

    def check_acceptable(
        self,
        review: ServerReview,
        *,
        only: Sequence[str] = (),
        despite_findings: bool = False,
        offered_as: str = "",
        together: bool = False,
    ) -> frozenset[str]:
        """Raise for what cannot be accepted; returns the names of definitions with findings."""
        if together and not labels_together(review.entry.settings):
            raise BadInput(
                f"the MCP server {review.entry.name} lacks private data or egress",
                hint="Its calls do not ask by themselves: leave out --together.",
                code="CW-USAGE",
            )
        if offered_as and (len(only) != 1 or not is_tool_name(offered_as)):
            raise BadInput(
                "another name is for one tool, in letters, digits, _ and -",
                hint="Write --tool NAME --as OTHER_NAME.",
                code="CW-USAGE",
            )
        chosen = chosen_tools(review, only)
        for each in chosen:
            owner = self._owner_of_name(review, each, offered_as)
            if owner:
                raise Denied(
                    f"{owner} has a tool named like {offered_as or each.change.name}",
                    hint="Leave it out with --tool, or offer it under another name with --as.",
                    code="CW-MCP-SHADOWED",
                )
        doubtful = frozenset(
            each.change.name for each in (*chosen, review.tools[0]) if each.findings
        )
        if doubtful and not despite_findings:
            listed = ", ".join(sorted(name or "the server itself" for name in doubtful))
            raise Denied(
                f"the guard has found something in: {listed}",
                hint="Leave these out with --tool, or accept them with "
                "--dangerously-despite-findings.",
                code="CW-MCP-POISONED",
            )
        return doubtful

    def reject(
        self, review: ServerReview, *, only: Sequence[str] = (), who: Principal
    ) -> frozenset[str]:
        """(3) Reject tools as they are now; returns their names."""
        refuse_agents("the tools of an MCP server")
        require(self._app.settings, who, Permission.CONFIG_WRITE)
        names = frozenset(each.change.name for each in chosen_tools(review, only, any_state=True))
        known: dict[str, Json] = {"server": review.entry.name, "sha256": review.seen.sha256}
        with self._recorded("reject", review.entry.name, who, known) as outcome:
            outcome["tools"] = sorted(names)
            try:
                self._decide(
                    review,
                    names,
                    lambda entry: replace(entry, pins=reject(entry.pins, review.seen, names)),
                )
            finally:
                # Also if somebody has just changed the file, which would keep the signatures.
                self._withdraw(review.entry.name, names)
        return names

    def _withdraw(self, server: str, tools: Iterable[str]) -> None:
        if self._grants is not None:
            for name in tools:
                self._grants.withdraw(GrantKind.MCP, tool_subject(server, name))

    def _owner_of_name(self, review: ServerReview, tool: ReviewedTool, offered_as: str) -> str:
        accepted = review.entry.pins.tools.get(tool.change.name)
        shown = offered_as or (accepted.offered_as if accepted is not None else "")
        if not shown:
            return tool.shadows
        server = review.entry
        entries = [each for each in self.entries() if isinstance(each, ServerEntry)]
        others = dict.fromkeys(
            plain_name(each.offered_as or name)
            for name, each in server.pins.tools.items()
            if name != tool.change.name
        )
        if plain_name(shown) in others:
            return server.name
        return owner_of(owners_of(entries, but=server.name), server.name, shown)

    def _decide(
        self,
        review: ServerReview,
        names: frozenset[str],
        change: Callable[[ServerEntry], ServerEntry],
    ) -> ServerEntry:
        def checked(stored: ServerEntry) -> ServerEntry:
            # Without what is not signed: the person was not shown it as accepted.
            entry = self._catalog.counting_part(stored)
            if entry.seen is None or entry.seen.sha256 != review.seen.sha256:
                raise changed_meanwhile(review.entry.name)
            if entry.settings != review.entry.settings:  # signed with the tools
                raise changed_meanwhile(review.entry.name)
            # Of two people who decide about a tool at once, one is first.
            if any(_pinned(entry, name) != _pinned(review.entry, name) for name in names):
                raise changed_meanwhile(review.entry.name)
            return change(entry)

        return self._catalog.update(review.entry.name, checked)

    def _recorded(
        self, what: str, name: str, who: Principal, known: dict[str, Json]
    ) -> AbstractContextManager[dict[str, Json]]:
        """(4)"""
        change = AdminChange(EventKind.CONFIG, f"gateway {what}", name, known)
        return change.recorded(self._app.audit, who)


def _pinned(entry: ServerEntry, name: str) -> tuple[AcceptedTool | None, str | None]:
    return entry.pins.tools.get(name), entry.pins.rejected.get(name)


def check_settings(settings: ServerSettings) -> None:
    """Raise `BadInput` for settings that contradict each other."""
    if bool(settings.argv) == bool(settings.url):
        raise BadInput(
            "name a command or an address",
            hint="Write --url URL, or the command after `--`.",
            code="CW-USAGE",
        )
    if settings.url:
        if parse_url(settings.url).scheme != "https":
            raise BadInput(
                "a remote server is reached over https alone",
                hint="Use an https:// URL.",
                code="CW-BAD-URL",
            )
        if settings.domains or settings.directory or settings.env:
            raise BadInput(
                "a remote server has no files, variables or other domains",
                hint="Leave out --workspace, --env and --allow-domain.",
                code="CW-USAGE",
            )
    elif settings.headers:
        raise BadInput("headers are for a remote server", hint="Name --url.", code="CW-USAGE")
    for header in settings.headers:
        check_header(header)
    for domain in settings.domains:
        check_domain(domain)
    if settings.directory and not os.path.isabs(settings.directory):
        raise BadInput("the directory must be absolute", code="CW-BAD-WORKSPACE")
