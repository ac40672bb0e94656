"""A skill as it reaches a cell (SKL-1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SKILLS_INSIDE = "/skills"
"""The read-only mount point of skills in a cell."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A signed folder of instructions and programs (SKL-1), created only after its verification."""

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    """Relative path -> content."""
    executables: frozenset[str] = field(repr=False)
    digest: str
    """SHA-256 of the manifest, which covers the name and every path, mode and content."""
    signers: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))
