"""Snapshots of workspaces: what is asked, and what is told about them (FS-9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from cellwall.core.errors import BadInput, NotFound

MAX_NAME_CHARS = 100
MAX_STATE_BYTES = 8 * 1024 * 1024
MIN_TTL_S = 1.0
MAX_TTL_S = 3650 * 86_400.0
SnapshotField: TypeAlias = "str | float | list[str] | list[dict[str, str]]"


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the files of a session's private workspace as they are now."""

    name: str = ""
    """For people; ids are unique, names need not be."""
    ttl_s: float | None = None
    """None: as long as the configuration keeps snapshots, which is also the most."""
    end_processes: bool = False
    """End every process of the session first: its files become the snapshot without a copy."""
    state: bytes = field(default=b"", repr=False)
    """Variables of the interpreter as JSON, or nothing."""

    tool: ClassVar[str] = "Snapshot"
    """Its name in rules."""

    @property
    def subject(self) -> str:
        """For questions to a person."""
        return self.name or "of the files of this sandbox"


@dataclass(frozen=True, slots=True)
class RestoreSnapshot:
    """Begin a session with the files of a snapshot. The interface makes the session once this is
    allowed."""

    snapshot: str

    tool: ClassVar[str] = "RestoreSnapshot"
    """Its name in rules."""

    @property
    def subject(self) -> str:
        """For questions to a person."""
        return self.snapshot


@dataclass(frozen=True, slots=True)
class NotCarried:
    """A variable, a program or a file that a snapshot does not hold, and why."""

    name: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSnapshot:
    """A snapshot, as its owner sees it."""

    id: str
    name: str
    session: str
    """The session whose workspace it holds."""
    template: str
    owner: str
    """The account; empty: the user of this machine."""
    created_s: float
    expires_s: float
    size_bytes: int
    """Of all its layers. Layers that snapshots share are stored once, and counted once."""
    files: int
    layers: int
    variables: tuple[str, ...] = ()
    """Names of interpreter variables that it holds."""
    not_carried: tuple[NotCarried, ...] = ()
    """In the answer to `snapshot` alone."""

    def to_json(self) -> dict[str, SnapshotField]:
        """As every interface renders it; without the owner."""
        return {
            "id": self.id,
            "name": self.name,
            "session": self.session,
            "template": self.template,
            "created": self.created_s,
            "expires": self.expires_s,
            "bytes": self.size_bytes,
            "files": self.files,
            "layers": self.layers,
            "variables": list(self.variables),
            "not_carried": [each.to_json() for each in self.not_carried],
        }

    @classmethod
    def of(cls, body: Mapping[str, object]) -> WorkspaceSnapshot:
        """The reverse; of our own process, so a wrong form is a bug."""
        known: dict[str, object] = dict(body)
        lacking = known.pop("not_carried")
        assert isinstance(lacking, list)  # noqa: S101  # by `to_json`
        renamed = {"created": "created_s", "expires": "expires_s", "bytes": "size_bytes"}
        fields = {renamed.get(name, name): value for name, value in known.items()}
        fields["variables"] = tuple(fields["variables"])  # type: ignore[arg-type]  # a list of names
        fields["not_carried"] = tuple(NotCarried(**each) for each in lacking)
        return cls(**{"owner": "", **fields})  # type: ignore[arg-type]  # the fields of `to_json`


def variables_in(state: bytes) -> tuple[str, ...]:
    """The names of the variables in a state; raises for one of another form."""
    if not state:
        return ()
    if len(state) > MAX_STATE_BYTES:
        raise BadInput(
            f"the variables take {len(state)} bytes; {MAX_STATE_BYTES} are kept",
            hint="Write large values to a file in the workspace, or pass state=False.",
            code="CW-SNAPSHOT-STATE",
        )
    try:
        known = json.loads(state)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(name.isidentifier() for name in known):
        raise BadInput("the state of a snapshot is a JSON object of variables")
    return tuple(sorted(known))


def check_snapshot(name: str, ttl_s: float | None) -> None:
    """Raise for a name that would disturb a terminal or a log, and for a senseless time."""
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise BadInput(
            f"the name of a snapshot has at most {MAX_NAME_CHARS} printable characters",
            hint="Leave it out, or use a short text in one line.",
            code="CW-SNAPSHOT-NAME",
        )
    # Not in this range is also true of NaN.
    if ttl_s is not None and not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise BadInput(
            "the time to live of a snapshot is between one second and ten years",
            hint="Leave it out for the time of the configuration.",
            code="CW-SNAPSHOT-TTL",
        )


def no_such_snapshot() -> NotFound:
    """The same for a snapshot of another account, an expired one, and one that never was."""
    return NotFound(
        "there is no such snapshot",
        hint="It was deleted, has expired, or belongs to another user: list your snapshots.",
        code="CW-NO-SNAPSHOT",
    )
