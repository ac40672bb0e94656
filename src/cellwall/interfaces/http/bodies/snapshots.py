"""Snapshots and forks of sandboxes."""

from __future__ import annotations

from pydantic import BaseModel, Field

from cellwall.core.snapshots import MAX_NAME_CHARS, MAX_TTL_S, MIN_TTL_S
from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples
from cellwall.interfaces.http.bodies.sessions import SESSION_ID, Session
from cellwall.interfaces.sdk.snapshots import MAX_FORKS

SNAPSHOT_ID = "snp_0123456789abcdefghjkmnpqrs"


class _CarryOptions(RequestBody):
    state: bool = Field(True, description="carry variables of the interpreter that are plain data")
    end_processes: bool = Field(
        False, description="end all programs of the sandbox first: then nothing is copied"
    )


class NewSnapshot(_CarryOptions):
    """A snapshot of the files of a sandbox."""

    name: str = Field("", max_length=MAX_NAME_CHARS, description="for people")
    ttl: float | None = Field(
        None, ge=MIN_TTL_S, le=MAX_TTL_S, description="seconds; the configuration has the most"
    )
    model_config = examples({"name": "before the migration"}, {})


class ForkRequest(_CarryOptions):
    """New sandboxes with the files and options of one."""

    count: int = Field(1, ge=1, le=MAX_FORKS)
    model_config = examples({"count": 3}, {})


class NotCarriedBody(BaseModel):
    """What a snapshot does not hold."""

    name: str = Field(description="a variable; `*` for all of them")
    reason: str


class SnapshotBody(BaseModel):
    """Files of a sandbox as they were at one time."""

    id: str = Field(examples=[SNAPSHOT_ID])
    name: str
    session: str = Field(examples=[SESSION_ID])
    template: str
    created: Seconds
    expires: Seconds
    bytes: int = Field(description="of all its layers; layers are shared between snapshots")
    files: int
    layers: int
    variables: list[str] = Field(description="of the interpreter")
    not_carried: list[NotCarriedBody] = Field(description="in the answer to its creation alone")


class SnapshotPage(BaseModel):
    """Some of the caller's snapshots, by id."""

    snapshots: list[SnapshotBody]
    next: str | None = Field(description="`after` of the next page; null on the last")


class ForksBody(BaseModel):
    """The new sandboxes."""

    sessions: list[Session]
    not_carried: list[NotCarriedBody]
