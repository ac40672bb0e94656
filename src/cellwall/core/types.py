"""An `Action` and its parts: principal and role, operation, workspace."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.limits import Limits
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.users_inside import SANDBOX_USER, UserInside

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Audience: TypeAlias = Literal["program", "model"]
"""Who reads the result: a program gets it redacted, a model cleaned and marked as data (GRD-4)."""
Cover: TypeAlias = tuple[Literal["ro", "hide", "pin"], str]
"""How a path of a workspace is protected, and the path below its root."""
OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]


ROLE_NAMES = ("guest", "user", "power-user", "administrator", "owner")
"""In ascending order; `accounts/roles.toml` lists the permissions of each."""
INTERFACE_NAMES = ("cli", "sdk", "hook", "mcp", "http", "mcp-http")
"""The interfaces through which a principal can act."""
REMOTE_INTERFACES = frozenset({"http", "mcp-http"})
"""Reached over the network: the requester is not the user who started the process."""
OWNER = "owner"
GUEST = "guest"


class WorkspaceMode(StrEnum):
    """How a host directory is shared with a run (FS-2); `PRIVATE` shares none."""

    PRIVATE = "private"
    READ_ONLY = "ro"
    READ_WRITE = "rw"
    COPY_ON_WRITE = "cow"


class Permission(StrEnum):
    """A permission that a role may hold."""

    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    SANDBOX_EXECUTE = "sandbox:execute"
    SANDBOX_STOP = "sandbox:stop"
    TOOLS_CALL = "tools:call"
    SKILLS_USE = "skills:use"
    SKILLS_APPROVE = "skills:approve"
    NETWORK_USE = "network:use"
    SECRETS_USE = "secrets:use"
    PACKAGES_INSTALL = "packages:install"
    APPROVALS_ANSWER = "approvals:answer"
    CHAT_SEND = "chat:send"
    CHANNELS_RELAY = "channels:relay"
    AUDIT_READ = "audit:read"
    AUDIT_EXPORT = "audit:export"
    METRICS_READ = "metrics:read"
    POLICY_WRITE = "policy:write"
    CONFIG_WRITE = "config:write"
    USERS_MANAGE = "users:manage"


@dataclass(frozen=True, slots=True)
class Role:
    """A role with all its permissions, inherited ones included."""

    name: str
    permissions: frozenset[Permission]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRef:
    """The account behind a remote principal: who pays for an action (RBAC-4)."""

    user_id: str
    teams: frozenset[str]
    credential: str
    """The id of the sign-in or of the service token."""
    address: str


@dataclass(frozen=True, slots=True)
class Principal:
    """The requester. Without accounts, the user who started the process."""

    name: str
    interface: str
    role: str = ""
    """The upper bound of the role; the configuration may lower it further. Left out, a local
    principal has no bound and a remote one is a guest."""
    scopes: frozenset[Permission] | None = None
    """Of a service token: no other permission of the role counts. None: no such bound."""
    account: AccountRef | None = None
    """None for a user of this machine, who has neither rates nor budgets."""

    def __post_init__(self) -> None:
        if not self.role:
            own = GUEST if self.interface in REMOTE_INTERFACES else OWNER
            object.__setattr__(self, "role", own)


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run a program with arguments, without a shell."""

    argv: tuple[str, ...]
    cwd: str = "/workspace"
    background: bool = False
    """In a live sandbox: do not wait for the program's end."""
    terminal: tuple[int, int] | None = None
    """Rows and columns of a new terminal; background programs only."""
    user: UserInside = SANDBOX_USER
    """The user inside that the program runs as."""


TERMINAL_SHELL = ("/bin/sh", "-i")
"""The program of a person's terminal. No rule about commands judges what is typed into it, so rules
name the terminal itself: `Terminal`."""


@dataclass(frozen=True, slots=True)
class RunCode:
    """Run source code in a language."""

    language: str
    code: bytes
    context: str = ""
    """The variables that Python code in a live sandbox sees; the empty name is the first set of
    them. All contexts share one process: no wall is between them."""


@dataclass(frozen=True, slots=True)
class ProcessOperation:
    """One operation on the processes of a live sandbox."""

    name: Literal[
        "list", "read", "follow", "wait", "write", "close_stdin", "resize", "signal", "interrupt"
    ]
    process: int = 0
    data: bytes = b""
    number: int = 0
    """The signal number."""
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class CallTool:
    """Code inside calls a host function (LANG-3). Plain data only."""

    name: str
    args: Sequence[Json] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    parent: str = ""
    """The id of the action whose code makes the call."""


@dataclass(frozen=True, slots=True)
class SetDomains:
    """Replace the domains that a live sandbox may reach.

    The action's `allow_domains` repeats them, and they are judged as in any other action.
    """

    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReachHost:
    """Code inside connects to a destination that no rule names (NET-9)."""

    host: str
    """Canonical; an IPv6 address without brackets."""
    port: int
    method: str
    """Of the request: `CONNECT`, `GET`; `SOCKS` or `TCP` where the protocol is not HTTP."""
    parent: str = ""
    """The id of the action whose code connects."""

    @property
    def destination(self) -> str:
        """As rules write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServeClient:
    """Give a program outside of any sandbox the egress of a sandbox (NET-8).

    The action's `allow_domains` and `secrets` are those of the client.
    """

    client: str
    token_sha256: bytes = field(repr=False)
    """The token itself is known to the interface and to the client alone."""
    hold: Callable[[Mapping[str, bytes], Mapping[str, str]], Awaitable[None]] = field(repr=False)
    """Called once the client can connect, with the files and variables that a cell would get; the
    client is served until this returns."""
    address: str = ""
    """Where it connects, for the audit log."""
    tokenless_address: str = ""
    """Where it can connect without a token."""


@dataclass(frozen=True, slots=True)
class FetchUrl:
    """Fetch one web page by the egress rules (NET-4)."""

    url: str
    form: Literal["markdown", "text", "raw"] = "markdown"
    """The form for HTML; other text stays unchanged."""


@dataclass(frozen=True, slots=True)
class UseTool:
    """An agent wants to use its own tool: judged and logged here, run by its host."""

    tool: str
    input: Mapping[str, Json]
    cwd: str
    """The absolute base of relative paths in the input."""
    agent_session: str = ""
    call: str = ""
    """The host's id of this call; its result bears the same id."""
    is_inside: bool = False
    """Whether a shell command will run in a sandbox; else it can reach all that its host can."""
    host_asks: bool = False
    """Whether the host can ask its user; else a question is a denial."""
    project: str = ""
    """The directory around `cwd` that the sandbox of a shell command gets; empty: `cwd`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of such a tool on its way to the agent. The tool has run, so it is not judged."""

    tool: str
    response: Json
    agent_session: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A background program of a live sandbox."""

    id: int
    pid: int | None
    """The PID inside the sandbox."""
    command: tuple[str, ...]
    started_s: float
    is_running: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """The files of a run: a host directory in some mode, or the session's own folder."""

    mode: WorkspaceMode = WorkspaceMode.PRIVATE
    directory: str | None = None
    at_own_path: bool = False
    """Mount the directory at its host path as well as at /workspace."""
    base: str = ""
    """The directory on the host that a relative name starts from; empty: this process's own."""

    @property
    def host_path(self) -> str | None:
        """The path of the directory from this process; errors and records show `directory`."""
        return None if self.directory is None else os.path.join(self.base, self.directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceMount:
    """A workspace ready to be mounted at /workspace.

    Descriptors, not names: the directory that was checked is the one mounted (FS-1). Without
    `dir_fd` the cell gets an empty in-memory file system that ends with it.
    """

    mode: WorkspaceMode
    dir_fd: int | None = None
    path: str | None = None
    layers_fd: int | None = None
    layers_path: str | None = None
    """For copy-on-write: the directory with `upper` and `work`."""
    more_lowers: tuple[tuple[int, str], ...] = ()  # layers below `dir_fd`: descriptors and paths
    covers: tuple[Cover, ...] = ()
    home: bool = True
    """Whether HOME is the workspace; false for a user's directory."""
    own_path: str | None = None
    """The second mount point: the host path of the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A request. Interfaces build it from untrusted bytes and do nothing else."""

    principal: Principal
    operation: (
        RunCommand
        | RunCode
        | FileOperation
        | ProcessOperation
        | ConnectPort
        | CallTool
        | SetDomains
        | ReachHost
        | ServeClient
        | FetchUrl
        | InstallPackages
        | CallServerTool
        | RunServer
        | UseTool
        | ToolResult
        | ReceiveMessage
        | SendReply
        | UseAccount
        | TakeSnapshot
        | RestoreSnapshot
    )
    workspace: WorkspaceRequest = WorkspaceRequest()
    session_id: str | None = None
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    brief: Mapping[str, str] = field(default_factory=dict)
    """Variables of this call alone in a live sandbox; they override `env`."""
    stdin: bytes | None = None
    allow_domains: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    """Package registries that the cell reaches through Cellwall's proxy: `pypi`, `npm` (PKG-1)."""
    asks_destinations: bool = False
    """A person is asked about destinations that no rule names. By the configuration alone (NET-9).
    """
    secrets: tuple[str, ...] = ()
    """Names of secrets; the code gets placeholders for them (SEC-5)."""
    tools: tuple[str, ...] = ()
    """Names of host functions that the code may call."""
    template: str = "python"
    """The template, with its packages, in which Python runs."""
    policy: tuple[str, ...] = ()
    """Policy files that a person has named; never chosen by an agent."""
    asked_in: str = ""
    """The requester's working directory on the host: the policies of the projects around it apply.
    Empty: this process's own."""
    skills: tuple[str, ...] = ()
    """Names of approved skills, mounted below /skills (SKL-1)."""
    second_user: bool = False
    """The sandbox has a second unprivileged user, `root`, beside `sandbox`."""
    spills_output: bool = False
    """The caller's sink gets all output, as much as a file may hold; the result has both ends."""
    audience: Audience = "program"
    context: str = ""
    """The conversation of an agent that uses several sessions, which share their labels (POL-9);
    chosen by the interface. Empty: the session alone."""
    id: str = field(default_factory=lambda: new_id("act"))
