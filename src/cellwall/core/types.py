"""What goes into the house: an `Action`, and what it is made of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSink, ByteSource
from cellwall.core.limits import Limits
from cellwall.core.roles import OWNER

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Audience: TypeAlias = Literal["program", "model"]
"""Who reads what comes back. A program gets it as it is but for secrets, and tells apart itself
what is data; a model gets it cleaned and marked as data (GRD-4)."""
Cover: TypeAlias = tuple[Literal["ro", "hide", "pin"], str]
"""How a name in a workspace is covered, and its path beneath it."""
OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]

_ID = re.compile(r"[a-z]{1,4}_[0-9a-hjkmnp-tv-z]{20,32}")
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u to misread
_ID_OF_BYTE = bytes(ord(_ID_ALPHABET[byte & 31]) for byte in range(256))


def new_id(prefix: str) -> str:
    """A random id of 130 bits; it is a name, never a path until `check_id` has seen it (FS-6)."""
    return f"{prefix}_{os.urandom(26).translate(_ID_OF_BYTE).decode('ascii')}"


def check_id(text: object, *, what: str = "id") -> str:
    """The id itself if it has the one allowed form; ids come from users and become file names."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise BadInput(
            f"{what} {str(text)[:40]!r} does not look like a Cellwall id",
            hint="Use the id that Cellwall printed.",
            code="CW-BAD-ID",
        )
    return text


class WorkspaceMode(StrEnum):
    """The ways to give a directory (FS-2); `PRIVATE` gives none of the host's."""

    PRIVATE = "private"
    READ_ONLY = "ro"
    READ_WRITE = "rw"
    COPY_ON_WRITE = "cow"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. On one machine without accounts it is the user who started the process."""

    name: str
    interface: str
    role: str = OWNER
    """The most that it can be; configuration bounds it further, and the strictest counts."""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run a program with arguments; no shell is involved unless it is the program."""

    argv: tuple[str, ...]
    cwd: str = "/workspace"
    background: bool = False
    """In a live sandbox: do not wait for its end."""
    terminal: tuple[int, int] | None = None
    """Rows and columns of a terminal of its own; only in the background."""


@dataclass(frozen=True, slots=True)
class RunCode:
    """Run a piece of code in a language."""

    language: str
    code: bytes


FILE_READS = frozenset({"read", "list", "stat", "exists", "download", "watch"})
"""Names of file operations that change nothing; every other one counts as a write."""


@dataclass(frozen=True, slots=True)
class FileOperation:
    """One call of the file API on a session's workspace (FS-7)."""

    name: Literal[
        "read",
        "write",
        "list",
        "stat",
        "exists",
        "make_dir",
        "move",
        "remove",
        "upload",
        "download",
        "watch",
    ]
    path: str
    content: bytes = b""
    target: str = ""
    source: ByteSource | None = field(default=None, repr=False)
    """For `upload`: a tar stream, which need not be in memory."""
    sink: ByteSink | None = field(default=None, repr=False)
    """For `download`: where the tar stream goes."""
    recursive: bool = True
    skip_links: bool = False


@dataclass(frozen=True, slots=True)
class ProcessOperation:
    """One call about what runs in a live sandbox."""

    name: Literal[
        "list", "read", "follow", "wait", "write", "close_stdin", "resize", "signal", "interrupt"
    ]
    process: int = 0
    data: bytes = b""
    number: int = 0
    """Of a signal."""
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class CallTool:
    """Code inside asks for a function that the host offers (LANG-3). Plain data only."""

    name: str
    args: Sequence[Json] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    parent: str = ""
    """The id of the action whose code asks."""


@dataclass(frozen=True, slots=True)
class SetDomains:
    """From now on a live sandbox may reach these, and nothing else.

    They stand in the action's `allow_domains` as well, and are judged as those of any other.
    """

    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchUrl:
    """Bring one page from outside, by the rules of the way out (NET-4)."""

    url: str
    form: Literal["markdown", "text", "raw"] = "markdown"
    """What becomes of HTML; other text stays as it is."""


@dataclass(frozen=True, slots=True)
class UseTool:
    """An agent wants to use a tool of its own: judged and recorded here, done by its host."""

    tool: str
    input: Mapping[str, Json]
    cwd: str
    """What relative paths in it are relative to; absolute itself."""
    agent_session: str = ""
    call: str = ""
    """The host's own name for this call; its result comes with the same one."""
    is_inside: bool = False
    """Whether a shell command will run within walls; else it can reach all that its host can."""
    host_asks: bool = False
    """Whether the host can put a question to a person; else what would be asked is denied."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What such a tool brought back, on its way to the agent. It has happened: nobody judges it."""

    tool: str
    response: Json
    agent_session: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A program that was started in the background of a live sandbox."""

    id: int
    pid: int | None
    """Its number inside."""
    command: tuple[str, ...]
    started_s: float
    is_running: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name in a workspace."""

    name: str
    path: str
    kind: Literal["file", "dir", "symlink", "other"]
    size_bytes: int
    mode: int
    modified_s: float


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """Which files a run works on: a host directory in some mode, or a session's own folder."""

    mode: WorkspaceMode = WorkspaceMode.PRIVATE
    directory: str | None = None
    at_own_path: bool = False
    """Show the directory inside at the host's own path as well, not only at /workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceMount:
    """A workspace made ready: what the sandbox mounts at /workspace.

    Descriptors, not names: what was judged is what is mounted (FS-1). Without `dir_fd` the cell
    gets an empty file system in memory that ends with it.
    """

    mode: WorkspaceMode
    dir_fd: int | None = None
    path: str | None = None
    layers_fd: int | None = None
    layers_path: str | None = None
    """For copy-on-write: the directory that holds `upper` and `work`."""
    covers: tuple[Cover, ...] = ()
    home: bool = True
    """Whether the program's HOME is the workspace; not for a directory of the user's."""
    own_path: str | None = None
    """The second mount point: the path that the directory has on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What somebody wants to do. Interfaces make it from untrusted bytes and do nothing else."""

    principal: Principal
    operation: (
        RunCommand
        | RunCode
        | FileOperation
        | ProcessOperation
        | CallTool
        | SetDomains
        | FetchUrl
        | UseTool
        | ToolResult
    )
    workspace: WorkspaceRequest = WorkspaceRequest()
    session_id: str | None = None
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    brief: Mapping[str, str] = field(default_factory=dict)
    """Variables that a live sandbox has for this call alone, over those in `env`."""
    stdin: bytes | None = None
    allow_domains: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    """Names of secrets for which the code gets placeholders (SEC-5)."""
    tools: tuple[str, ...] = ()
    """Names of the host's functions that the code may ask for."""
    template: str = "python"
    """The prepared runtime, with its packages, in which Python runs."""
    policy: tuple[str, ...] = ()
    """Policy files that a person has named for it; never what an agent says."""
    skills: tuple[str, ...] = ()
    """Names of approved skills that the code sees below /skills (SKL-1)."""
    audience: Audience = "program"
    id: str = field(default_factory=lambda: new_id("act"))


SKILLS_INSIDE = "/skills"
"""Where a cell sees them, read-only."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One whose every byte was compared with what was signed. Only such ones are ever made."""

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    """path below the skill's folder -> content."""
    executables: frozenset[str] = field(repr=False)
    digest: str
    """SHA-256 of the manifest: it stands for the name, every path, mode and content."""
    signers: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))
