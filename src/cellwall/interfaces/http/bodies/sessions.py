"""Sandboxes, runs and files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.base import NO_NUL, RequestBody, Seconds, examples
from cellwall.interfaces.http.bodies.policies import DecisionBody
from cellwall.interfaces.http.sandboxes import MAX_KEEP_ALIVE_S

Names = Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=200)]
Variables = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=65_536)]],
    Field(max_length=200),
]
SESSION_ID = "sbx_0123456789abcdefghjkmnpqrs"


class NewSession(RequestBody):
    """A sandbox that lives until it is deleted, or unused for `keep_alive`."""

    template: str = Field("python", max_length=100, description="the template in which code runs")
    timeout: float | None = Field(None, gt=0, description="seconds for one run, at most")
    memory: str | int | None = Field(None, description="bytes, or text such as 512m")
    limits: dict[str, int | float] = Field({}, max_length=20, description="further limits by name")
    envs: Variables = Field({}, description="environment variables")
    allow_domains: Names = Field([], description="domains that the sandbox may reach")
    packages: list[Literal["pypi", "npm"]] = Field(
        [], max_length=2, description="registries, through the proxy"
    )
    secrets: Names = Field([], description="names of secrets; code gets placeholders")
    skills: Names = Field([], description="names of approved skills")
    team: str | None = Field(None, max_length=60, description="a team that shares the sandbox")
    keep_alive: float = Field(
        900, gt=0, le=MAX_KEEP_ALIVE_S, description="seconds without a request until the end"
    )
    resume: str | None = Field(
        None,
        max_length=60,
        pattern=NO_NUL,
        description="an ended session of the caller whose files were kept",
    )
    from_snapshot: str | None = Field(
        None,
        max_length=60,
        pattern=NO_NUL,
        description="a snapshot of the caller whose files the sandbox has at its beginning",
    )
    restart_from_snapshot: bool = Field(
        False,
        description="start again from its last snapshot when its host is lost, with the next "
        "request; for fleets whose hosts share a folder",
    )
    second_user: bool = Field(
        False,
        description="beside `sandbox` there is a second unprivileged user, `root`, for commands",
    )
    model_config = examples({"timeout": 30, "memory": "512m"}, {})


class Kept(BaseModel):
    """Files of an ended session, encrypted."""

    bytes: int = Field(description="size of the archive")
    expires: Seconds = Field(description="removed then, or before if space is short")


class Session(BaseModel):
    """A sandbox, live or ended."""

    id: str = Field(examples=[SESSION_ID])
    state: Literal["live", "ended"]
    template: str
    limits: dict[str, int | float] = Field(description="limits of one run")
    team: str | None
    created: Seconds
    ended: Seconds | None
    ends_in: float | None = Field(description="seconds until the end if no request comes")
    is_busy: bool
    kept: Kept | None = Field(None, description="what the caller keeps of its files")
    restarted: Seconds | None = Field(
        None, description="the time of the snapshot it was started again from, after a lost host"
    )


class SessionPage(BaseModel):
    """Some of the caller's sandboxes, by id."""

    sessions: list[Session]
    next: str | None = Field(description="`after` of the next page; null on the last")


class RunRequest(RequestBody):
    """What code and commands have in common."""

    timeout: float | None = Field(None, gt=0, description="seconds; can only lower the limit")
    envs: Variables = Field({}, description="environment variables of this run alone")
    stdin: str | None = Field(None, description="standard input")


class CodeRequest(RunRequest):
    """Code for the live interpreter of the sandbox."""

    code: str
    language: str = Field("python", max_length=40)
    model_config = examples({"code": "x = 20\nx + 1"}, {"code": "1 + 1", "language": "javascript"})


class CommandRequest(RunRequest):
    """A program: a text is run by the shell, a list directly."""

    command: str | list[str]
    cwd: str = Field("/workspace", max_length=4096)
    user: str | None = Field(
        None,
        max_length=64,
        description="`sandbox`, or `root` in a session with a second user",
    )
    output_file: str | None = Field(
        None,
        max_length=4096,
        description="a file of the sandbox that gets all output; the answer has its beginning "
        "and its end",
    )
    model_config = examples({"command": "ls -la"}, {"command": ["ls", "-la"]})


class PortRequest(RequestBody):
    """A link to a server inside."""

    lifetime: float = Field(3600, gt=0, le=86_400, description="seconds until the link ends")
    model_config = examples({}, {"lifetime": 600})


class PortLink(BaseModel):
    """How to reach a server inside. What it answers is untrusted."""

    url: str = Field(description="for a browser; with the token, which becomes a cookie")
    address: str = Field(description="for a program, with the token in `X-Cellwall-Token`")
    token: str = Field(description="opens this port alone")
    expires: Seconds


class UsageBody(BaseModel):
    """What a run took."""

    wall_s: float
    cpu_s: float
    memory_peak: int
    io_bytes: int | None


class RunError(BaseModel):
    """Why an action was refused or failed."""

    code: str
    message: str
    hint: str
    retry_after_s: float | None = Field(None, description="where a rate or budget is used up")


class OutcomeBody(BaseModel):
    """What came of an action. A refusal has the status `denied`."""

    status: Literal["ok", "failed", "limit", "denied", "error"]
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    limit: str | None
    value: Any = Field(description="the value of the last expression, as JSON")
    text: str | None
    results: list[Any]
    code_error: Any
    usage: UsageBody
    decision: DecisionBody
    findings: list[dict[str, Any]]
    error: RunError | None
    audit_id: str
    packages: list[dict[str, Any]] = []
    model_config = examples(
        {
            "status": "ok",
            "exit_code": None,
            "stdout": "",
            "stderr": "",
            "truncated": False,
            "limit": None,
            "value": 21,
            "text": "21",
            "results": [],
            "code_error": None,
            "usage": {"wall_s": 0.01, "cpu_s": 0.008, "memory_peak": 9_000_000, "io_bytes": 0},
            "decision": {"verdict": "allow", "rule": "Code", "reason": "", "source": "x.toml:6"},
            "findings": [],
            "error": None,
            "audit_id": "evt_0123456789abcdefghjkmnpqrs",
        }
    )


class Entry(BaseModel):
    """One entry of a directory."""

    name: str
    path: str
    kind: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int
    modified: Seconds


class Listing(BaseModel):
    """Some of the entries of a directory, by name."""

    entries: list[Entry]
    next: str | None = Field(description="`after` of the next page; null on the last")


class ChangedEntry(BaseModel):
    """One path that differs from the start of the sandbox."""

    path: str
    kind: Literal["added", "modified", "removed", "mode", "type"]
    entry_kind: str = Field(description="file, dir, symlink or other")
    size_before: int | None
    size_after: int | None
    is_binary: bool
    mark: str = Field(description="why to look at it first; empty for an ordinary file")


class DiffBody(BaseModel):
    """What was changed in the workspace since the start of the sandbox."""

    changes: list[ChangedEntry] = Field(description="at most 1000, programs and instructions first")
    total: int = Field(description="of all changes")
    diff: str = Field(description="in the format of git diff, truncated at 1 MiB with a note")
