"""What a registry says about a project, in one form for PyPI and npm. Plain data.

The registry modules fill these classes from untrusted documents; the verdict reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from cellwall.packages.names import Ecosystem


class ProjectStatus(Enum):
    """The status markers of PEP 792; npm projects are active."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    DEPRECATED = "deprecated"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Release:
    """One version. A time, a provenance or a size that the registry does not give is None."""

    version: str
    uploaded: datetime | None = None
    is_yanked: bool = False
    deprecation: str = ""
    has_built_file: bool = True
    """A wheel on PyPI, always true on npm: without one the version must be built from source."""
    has_own_build: bool = False
    """Cellwall has built a wheel from the source of this version."""
    has_provenance: bool | None = None
    install_scripts: tuple[str, ...] = ()
    publisher: str | None = None
    maintainers: frozenset[str] = frozenset()
    """As the version's own document names them; PyPI keeps no history of them."""
    license: str | None = None
    """An SPDX expression; None: that of the project counts."""


@dataclass(frozen=True, slots=True)
class Project:
    """All releases of one package, by version, in the order of upload where times are known."""

    ecosystem: Ecosystem
    name: str
    releases: Mapping[str, Release] = field(default_factory=dict)
    status: ProjectStatus = ProjectStatus.ACTIVE
    license: str | None = None
    written: str = ""
    """The name as the registry has it, where that can differ from the canonical one (npm)."""

    @property
    def created(self) -> datetime | None:
        """When the first release was uploaded."""
        return min(
            (each.uploaded for each in self.releases.values() if each.uploaded), default=None
        )
