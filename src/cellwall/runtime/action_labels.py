"""The labels that an action brings (POL-9). Pure.

An effect that is only possible counts as certain, as for permissions: a cell that reaches a domain
reads what the domain answers. Two groups: the settings of the action, which the user of the
interface has chosen and no agent can (workspace, domains, registries, secrets, host functions), and
its operation.

Package registries are no egress: Cellwall's proxy lets names of packages out, to the registry
alone, where no attacker reads them. Skills are signed, and are trusted content.
"""

# ruff: noqa: PLC0415  # late imports: most runs have no egress

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from cellwall.core.errors import CellwallError
from cellwall.core.files import FileOperation
from cellwall.core.labels import Label, LabelKey, LabelSet, LabelSource
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Json,
    ProcessOperation,
    ReceiveMessage,
    RunCode,
    RunCommand,
    SendReply,
    ServeClient,
    SetDomains,
    ToolResult,
    UseAccount,
    UseTool,
)

_FILE_TOOLS = frozenset(
    {"Read", "Glob", "Grep", "LS", "NotebookRead", "Write", "Edit", "MultiEdit", "NotebookEdit"}
)
_NO_ATTACK = frozenset({"secret", "credential", "network", "workspace", "packages", "canary"})
"""Categories of findings that tell nothing of the intent of a text."""
_SUSPICIOUS = SEVERITIES.index("medium")
_MAX_PACKAGES = 8
_CONTENT = "content of "


@dataclass(frozen=True, slots=True)
class BroughtLabels:
    """All that an action brings."""

    sources: tuple[LabelSource, ...]
    named: frozenset[LabelKey] = frozenset()
    """Of them, those that a person has named in this request."""


_NOTHING = BroughtLabels(())


@dataclass(frozen=True, slots=True)
class LabelRules:
    """The configured part of the rules."""

    trusted: tuple[str, ...] = ()
    """Domains that bring no label."""
    domains: tuple[str, ...] = ()
    """Domains of every sandbox, also of those in which an agent's own commands run."""

    def labels_of(
        self,
        action: Action,
        *,
        directory: str | None,
        content: Sequence[LabelSource],
        server: LabelSet,
    ) -> BroughtLabels:
        """`directory`: of the host, on which the session works. `content`: the untrusted content in
        the files that it reads. `server`: the labels of the server whose tool is called."""
        own = [*_of_settings(action, directory)]
        done = [*_of_operation(action, server, self.domains)]
        if not (own or done or content):
            return _NOTHING
        brought = dict.fromkeys(
            LabelSource(label, name, action.id)
            for label, name in (*own, *done)
            if not self._is_trusted(label, name)
        )
        named = frozenset(LabelSource(*key).key for key in own)
        return BroughtLabels((*brought, *(each for each in content if each not in brought)), named)

    def _is_trusted(self, label: Label, name: str) -> bool:
        if not self.trusted or label is Label.PRIVATE:
            return False
        host = name.removeprefix(_CONTENT).partition(":")[0]
        return any(
            host == each or (each.startswith("*.") and host.endswith(each[1:]))
            for each in self.trusted
        )


def finding_sources(action_id: str, findings: Sequence[Finding]) -> tuple[LabelSource, ...]:
    """A text in which the guard finds an attack was written by an attacker."""
    names = dict.fromkeys(
        f"guard finding {each.rule or each.category}"
        for each in findings
        if SEVERITIES.index(each.severity) >= _SUSPICIOUS and each.category not in _NO_ATTACK
    )
    return tuple(LabelSource(Label.UNTRUSTED, name, action_id) for name in names)


def _of_settings(action: Action, directory: str | None) -> Iterator[LabelKey]:
    match action.operation:
        case RunCommand() | RunCode() | RunServer() | ServeClient() | SetDomains():
            yield from _of_domains(action.allow_domains)
        case CallTool(name):
            # A function of the embedding program: what it does with its arguments is unknown.
            yield Label.UNTRUSTED, f"result of the host function {name}"
            yield Label.EGRESS, f"host function {name}"
        case InstallPackages() | FileOperation() | ProcessOperation():
            pass
        case _:
            return  # no cell, no workspace
    if directory is not None and not isinstance(action.operation, CallTool | SetDomains):
        yield Label.PRIVATE, f"files of {directory}"
    if isinstance(action.operation, RunCommand | RunCode | RunServer | ServeClient):
        for name in action.registries:
            yield Label.UNTRUSTED, f"packages of {name}"
        for name in action.secrets:
            yield Label.PRIVATE, f"secret {name}"


def _of_domains(domains: Sequence[str]) -> Iterator[LabelKey]:
    for each in domains:
        yield Label.UNTRUSTED, f"{_CONTENT}{each}"
        yield Label.EGRESS, each


def _of_operation(  # noqa: C901, PLR0912  # one case for each operation
    action: Action, server: LabelSet, domains: Sequence[str]
) -> Iterator[LabelKey]:
    match action.operation:
        case FetchUrl(url):
            yield from _of_domains((_host_of(url),))
            for name in action.secrets:
                yield Label.PRIVATE, f"secret {name}"
        case InstallPackages(ecosystem, requirements):
            for each in requirements[:_MAX_PACKAGES]:
                yield Label.UNTRUSTED, f"package {each} of {ecosystem}"
        case CallServerTool() as call:
            yield Label.UNTRUSTED, f"tools of the MCP server {call.server}"
            for label in (Label.PRIVATE, Label.EGRESS):
                if label in server.labels:
                    yield label, f"MCP server {call.server}"
        case ReceiveMessage() as message:
            yield Label.UNTRUSTED, f"message by {message.channel}"
        case SendReply() as message:
            yield Label.EGRESS, f"reply by {message.channel}"
        case UseAccount() as use:
            yield Label.PRIVATE, f"account {use.account}"
            # Invitations of other people are among the events. A new event has no guests, and
            # goes into the owner's own calendar: that is no egress.
            if use.name == "list_events":
                yield Label.UNTRUSTED, f"events of the account {use.account}"
        case UseTool(tool, given, cwd) as own:
            yield from _of_agent_tool(tool, given, cwd)
            if tool == "Bash":
                yield from _of_domains(domains)
                if not own.is_inside:  # what its commands fetch is not known
                    yield Label.EGRESS, "any host"
        case ToolResult(tool):
            yield from _of_agent_tool(tool, {}, "")
        case (
            RunCommand() | RunCode() | RunServer() | ServeClient() | SetDomains()
            | CallTool() | FileOperation() | ProcessOperation()
        ):  # fmt: skip
            pass
        case _ as unknown:
            assert_never(unknown)


def _of_agent_tool(tool: str, given: Mapping[str, Json], cwd: str) -> Iterator[LabelKey]:
    """The tool of an agent's own host."""
    if tool in _FILE_TOOLS or tool == "Bash":
        yield Label.PRIVATE, f"files of {cwd or 'the host'}"
    elif tool == "WebFetch":
        url = given.get("url")
        yield from _of_domains((_host_of(url) if isinstance(url, str) else "the web",))
    elif tool == "WebSearch":
        yield from _of_domains(("the web",))
    elif tool.startswith("mcp__"):
        server = tool.split("__")[1]
        yield Label.UNTRUSTED, f"tools of the MCP server {server}"
        yield Label.EGRESS, f"MCP server {server}"


def _host_of(url: str) -> str:
    """As rules about domains spell it; a malformed URL is refused later."""
    from cellwall.egress.destinations.hostnames import domain_of

    try:
        return domain_of(url)
    except CellwallError:
        return "an unknown host"
