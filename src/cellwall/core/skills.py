"""Skills: folders of instructions and programs that a person has signed (SKL-1). Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
