"""Port of the signatures under standing grants: what a person has allowed until it is withdrawn.

Where `approvals.key` is configured, the process that uses a grant believes it only with a signature
of the approver's key (POL-13).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cellwall.core.types import Json


class GrantKind(StrEnum):
    """What is granted; part of the signed text."""

    POLICY = "policy"
    """The allow rules of a policy file at a path, for all projects. Not by its real path: a link in
    its place to another signed file is another grant."""
    PROJECT = "project"
    """Those of a file of a project, whose folder is a real path, for this project alone."""
    SKILL = "skill"
    """An approved skill, by its name."""
    INSTRUCTIONS = "instructions"
    """The instruction files of a folder, or one file, by its real path."""
    SECRET = "secret"  # noqa: S105  # a kind
    """One grant of a secret of one vault."""
    MCP = "mcp"
    """An accepted MCP server by its name, or one accepted tool of it, as `server/tool`. The end of
    the server's ends those of its tools."""


@dataclass(frozen=True, slots=True)
class StandingGrant:
    """One grant. `digest` covers the exact content."""

    kind: GrantKind
    subject: str
    digest: str


class GrantsPort(Protocol):
    """Whether the approver has signed a grant."""

    def is_signed(self, grant: StandingGrant) -> bool: ...

    def require(self, grant: StandingGrant) -> None:
        """Raise `Denied` unless the grant is signed."""

    @property
    def stamp(self) -> object:
        """A value that differs after every change."""


def digest_of(*parts: Json) -> str:
    """The digest of structured content."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
