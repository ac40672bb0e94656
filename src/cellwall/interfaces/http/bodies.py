"""The bodies of requests and responses, with examples: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cellwall.interfaces.http.sandboxes import MAX_KEEP_ALIVE_S

Names = Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=200)]
Variables = dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=65_536)]]


class _Request(BaseModel):
    """An unknown field is an error: a misspelled limit must not be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewSession(_Request):
    """A sandbox that lives until it is deleted, or unused for `keep_alive`."""

    template: str = Field("python", max_length=100, description="the template in which code runs")
    timeout: float | None = Field(None, gt=0, description="seconds for one run")
    memory: str | int | None = Field(None, description="bytes, or text such as 512m")
    limits: dict[str, float] = Field({}, max_length=20, description="further limits by name")
    envs: Variables = Field({}, max_length=200, description="environment variables")
    allow_domains: Names = Field([], description="domains that the sandbox may reach")
    packages: list[Literal["pypi", "npm"]] = Field([], description="registries, through the proxy")
    secrets: Names = Field([], description="names of secrets; code gets placeholders")
    skills: Names = Field([], description="names of approved skills")
    keep_alive: float = Field(
        900, gt=0, le=MAX_KEEP_ALIVE_S, description="seconds without a request until the end"
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"timeout": 30, "memory": "512m"}]}, **_Request.model_config
    )


class Session(BaseModel):
    """A live sandbox."""

    id: str = Field(examples=["sbx_0123456789abcdefghjkmnpqrs"])
    template: str
    created: float = Field(description="seconds since 1970, UTC")
    ends_in: float = Field(description="seconds until the end if no request comes")
    is_busy: bool


class SessionPage(BaseModel):
    """Some of the caller's sandboxes."""

    sessions: list[Session]
    next: str | None = Field(description="`after` of the next page; null on the last")


class _RunRequest(_Request):
    timeout: float | None = Field(None, gt=0, description="seconds; can only lower the limit")
    envs: Variables = Field({}, max_length=200)
    stdin: str | None = Field(None, description="standard input")


class CodeRequest(_RunRequest):
    """Code for the live interpreter of the sandbox."""

    code: str
    language: str = Field("python", max_length=40)
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"code": "print(6 * 7)"}]}, **_Request.model_config
    )


class CommandRequest(_RunRequest):
    """A program: a text is run by the shell, a list directly."""

    command: str | list[str]
    cwd: str = Field("/workspace", max_length=4096)
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"command": "ls -la"}, {"command": ["ls", "-la"]}]},
        **_Request.model_config,
    )


class Entry(BaseModel):
    """One entry of a directory."""

    name: str
    path: str
    kind: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int
    modified: float


class Listing(BaseModel):
    """Some of the entries of a directory, by name."""

    entries: list[Entry]
    next: str | None = Field(description="`after` of the next page; null on the last")


class ErrorBody(BaseModel):
    """The form of every error."""

    code: str = Field(examples=["CW-DENIED"])
    message: str
    hint: str
    audit_id: str


class ErrorResponse(BaseModel):
    """An error."""

    error: ErrorBody


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "The request is malformed.",
        401: "No valid access token came with the request.",
        403: "A rule, a role or a person refused the action.",
        404: "The caller has nothing of this name.",
        413: "The body is too large.",
        429: "Too many requests.",
        503: "The host has no capacity, or the service is stopping.",
    }.items()
}
