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

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import assert_never

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.errors import CellwallError
from cellwall.core.files import FileOperation
from cellwall.core.labels import Label, LabelKey, LabelSet, LabelSource
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Json,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
)

_FILE_TOOLS = frozenset(
    {"Read", "Glob", "Grep", "LS", "NotebookRead", "Write", "Edit", "MultiEdit", "NotebookEdit"}
)
_NO_ATTACK = frozenset({"secret", "credential", "network", "workspace", "packages", "canary"})
"""Categories of findings that tell nothing of the intent of a text."""
_SUSPICIOUS = SEVERITIES.index("medium")
_WEAK_COUNTS = frozenset({"instruction"})
"""Categories of which a low finding labels the session too: a doubt of the classifier is no reason
to remove a passage, but the text is not trusted (GRD-3)."""
_MAX_PACKAGES = 8
_MAX_DOMAINS = 24
"""Named one by one."""
_CELLS = (RunCommand, RunCode, RunServer, ServeClient)
_CELL_NAMES = frozenset(each.__name__ for each in _CELLS)
_FILE_NAMES = frozenset(
    each.__name__ for each in (InstallPackages, FileOperation, ProcessOperation, ConnectPort)
)
_WITHOUT_LABELS = (
    *_CELLS,
    CallTool,
    SetDomains,
    FileOperation,
    ProcessOperation,
    ConnectPort,
    TakeSnapshot,
    RestoreSnapshot,
)
"""Operations that bring no label beside those of their settings."""
_CONTENT = "content of "
_PATTERN = re.compile(r"\*\.[^\s:/]+")
"""The host of a rule about all hosts below a domain."""


@dataclass(frozen=True, slots=True)
class BroughtLabels:
    """All that an action brings."""

    sources: tuple[LabelSource, ...]
    """Without an action, where the same sources were found before."""
    named: frozenset[LabelKey] = frozenset()
    """Of them, those that a person has named in this request."""
    keys: frozenset[LabelKey] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(each.key for each in self.sources))

    def joined(self, others: Sequence[LabelSource]) -> BroughtLabels:
        """With sources that no person has named."""
        return BroughtLabels(tuple(dict.fromkeys((*self.sources, *others))), self.named)


NOTHING = BroughtLabels(())


@dataclass(frozen=True, slots=True)
class LabelRules:
    """The configured part of the rules."""

    trusted: tuple[str, ...] = ()
    """Domains that bring no label."""
    domains: tuple[str, ...] = ()
    """Domains of every sandbox, also of those in which an agent's own commands run."""

    def labels_of(
        self, action: Action, *, directory: str | None, server: LabelSet
    ) -> BroughtLabels:
        """`directory`: of the host, on which the session works. `server`: the labels of the server
        whose tool is called. The same object for equal settings."""
        operation = action.operation
        settings = _settings_labels(
            type(operation).__name__,
            operation.name if isinstance(operation, CallTool) else "",
            action.allow_domains,
            action.registries,
            action.secrets,
            directory,
            self.trusted,
        )
        if isinstance(operation, _WITHOUT_LABELS):
            return settings
        done = [
            LabelSource(*key)
            for key in _of_operation(action, server, _untrusted_of(self.domains, self.trusted))
            if not _is_trusted(*key, self.trusted)
        ]
        return settings.joined(done) if done else settings

    def without_redirects(
        self, action: Action, held: Collection[Label], admitted: Collection[LabelKey]
    ) -> Action:
        """A page that is fetched beside private data, or whose labels are not counted since its
        domain is trusted: redirects lead only to its own host, and to those that a person has
        consented to or trusts."""
        from cellwall.egress.destinations.allowlist import Allowlist
        from cellwall.egress.destinations.hostnames import parse_url

        assert isinstance(action.operation, FetchUrl)  # noqa: S101  # by the caller
        try:
            url = parse_url(action.operation.url)
        except CellwallError:
            return action  # refused later
        is_trusted = _is_trusted(Label.EGRESS, url.domain, self.trusted)
        if Label.PRIVATE not in held and not is_trusted:
            return action
        kept: list[str] = []
        for rule in action.allow_domains:
            is_known = (Label.EGRESS, rule) in admitted
            if is_known or _is_trusted(Label.EGRESS, rule, self.trusted):
                kept.append(rule)
            elif Allowlist.of((rule,)).reach(url.host, url.port):
                # Of a pattern, this host alone.
                kept.append(_PATTERN.sub(url.host, rule, count=1))
        return replace(action, allow_domains=tuple(kept))


@lru_cache(maxsize=1024)
def _settings_labels(
    kind: str,
    function: str,
    domains: tuple[str, ...],
    registries: tuple[str, ...],
    secrets: tuple[str, ...],
    directory: str | None,
    trusted: tuple[str, ...],
) -> BroughtLabels:
    """Equal for most actions of a session."""
    others = _untrusted_of(domains, trusted)
    keys = _of_settings(kind, function, others, registries, secrets, directory)
    sources = tuple(
        dict.fromkeys(LabelSource(*key) for key in keys if not _is_trusted(*key, trusted))
    )
    return BroughtLabels(sources, frozenset(each.key for each in sources))


def _is_trusted(label: Label, name: str, trusted: Sequence[str]) -> bool:
    if not trusted or label is Label.PRIVATE:
        return False
    host = name.removeprefix(_CONTENT).partition(":")[0]
    return any(
        host == each or (each.startswith("*.") and host.endswith(each[1:])) for each in trusted
    )


def _untrusted_of(domains: Sequence[str], trusted: Sequence[str]) -> Sequence[str]:
    """Before the rest of a long list becomes one source."""
    if not trusted:
        return domains
    return [each for each in domains if not _is_trusted(Label.EGRESS, each, trusted)]


def finding_sources(action_id: str, findings: Sequence[Finding]) -> tuple[LabelSource, ...]:
    """A text in which the guard finds an attack was written by an attacker."""
    names = dict.fromkeys(
        f"guard finding {each.rule or each.category}"
        for each in findings
        if (SEVERITIES.index(each.severity) >= _SUSPICIOUS or each.category in _WEAK_COUNTS)
        and each.category not in _NO_ATTACK
    )
    return tuple(LabelSource(Label.UNTRUSTED, name, action_id) for name in names)


def _of_settings(
    kind: str,
    function: str,
    domains: Sequence[str],
    registries: Sequence[str],
    secrets: Sequence[str],
    directory: str | None,
) -> Iterator[LabelKey]:
    is_cell = kind in _CELL_NAMES
    if is_cell or kind == SetDomains.__name__:
        yield from _of_domains(domains)
    if kind == CallTool.__name__:
        # A function of the embedding program: what it does with its arguments is unknown.
        yield Label.UNTRUSTED, f"result of the host function {function}"
        yield Label.EGRESS, f"host function {function}"
    if directory is not None and (is_cell or kind in _FILE_NAMES):
        yield Label.PRIVATE, f"files of {directory}"
    if is_cell:
        for name in registries:
            yield Label.UNTRUSTED, f"packages of {name}"
        for name in secrets:
            yield Label.PRIVATE, f"secret {name}"


def _of_domains(domains: Sequence[str]) -> Iterator[LabelKey]:
    for each in domains[:_MAX_DOMAINS]:
        yield Label.UNTRUSTED, f"{_CONTENT}{each}"
        yield Label.EGRESS, each
    if left := domains[_MAX_DOMAINS:]:
        # By digest, as of packages. One source: a session has a bounded number of them, and
        # consent to a long list would not fit.
        more = f"{len(left)} more domains ({_digest_of(left)})"
        yield Label.UNTRUSTED, f"{_CONTENT}{more}"
        yield Label.EGRESS, more


def _digest_of(names: Sequence[str]) -> str:
    joined = "\0".join(names).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:12]


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
            if left := requirements[_MAX_PACKAGES:]:
                # By digest: consent to some packages is none to others at the same place.
                more = f"{len(left)} more packages of {ecosystem}"
                yield Label.UNTRUSTED, f"{more} ({_digest_of(left)})"
        case CallServerTool() as call:
            yield Label.UNTRUSTED, f"tools of the MCP server {call.server}"
            for label in (Label.PRIVATE, Label.EGRESS):
                if label in server.labels:
                    yield label, f"MCP server {call.server}"
        case ReachHost() as reach:
            yield from _of_domains((reach.destination.removesuffix(":443"),))
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
            | CallTool() | FileOperation() | ProcessOperation() | ConnectPort()
            | TakeSnapshot() | RestoreSnapshot()
        ):  # fmt: skip
            pass  # see `_of_settings`
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
        return domain_of(url).removesuffix(":443")
    except CellwallError:
        return "an unknown host"
