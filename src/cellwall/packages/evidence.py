"""Facts, rules and the verdict about one package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from cellwall.core.packages import InstallRuling
from cellwall.core.verdict import Verdict
from cellwall.packages.facts import Project
from cellwall.packages.history import Before
from cellwall.packages.names import Ecosystem, Resemblance
from cellwall.packages.osv import Advisory


class EvidenceStep(Enum):
    """The numbered steps, by what they look at."""

    RULE = "rule"
    FEED = "feed"
    NAME = "name"
    REGISTRY = "registry"
    VERSION = "version"
    ARTIFACT = "artifact"


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding. `text` is for people and models: no host path, no internal state."""

    step: EvidenceStep
    verdict: Verdict
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class PackageRules:
    """The settings of `[packages]` that the steps apply."""

    min_age: timedelta = timedelta(days=7)
    allow_source: bool = False
    without_feed: Verdict = Verdict.ASK
    max_feed_age: timedelta = timedelta(days=14)
    without_rule: Verdict = Verdict.ALLOW
    denied_licenses: tuple[str, ...] = ()
    unknown_license: Verdict = Verdict.ALLOW
    pinned: frozenset[str] = frozenset()
    """SHA-256 of the artifacts in the shipped locks, whose pins answer questions about them."""

    @property
    def needs_licenses(self) -> bool:
        return bool(self.denied_licenses) or self.unknown_license is not Verdict.ALLOW


@dataclass(frozen=True, slots=True)
class Evidence:
    """All facts about one name. `project` is None where the registry does not have the name;
    `is_registry_known` is false where no registry was asked."""

    ecosystem: Ecosystem
    name: str
    now: datetime
    ruling: InstallRuling = InstallRuling()
    advisories: Sequence[Advisory] = ()
    feed_updated: datetime | None = None
    rank: int | None = None
    resemblances: Sequence[Resemblance] = ()
    is_registry_known: bool = False
    project: Project | None = None
    earlier: Mapping[str, Before] | None = None
    """The releases before each version (`releases_before`); None: not computed yet."""


@dataclass(frozen=True, slots=True)
class PackageVerdict:
    """The answer for one package, or for one version of it."""

    ecosystem: Ecosystem
    name: str
    version: str | None
    reasons: tuple[Reason, ...]
    suggestion: str | None = None
    """The name or the version to use instead."""
    ruling: InstallRuling = InstallRuling()
    answered: tuple[Reason, ...] = ()
    """Reasons that a rule or a person has answered."""
    artifact: str = ""
    """The file and its hash, where the verdict is on its bytes: an answer is about these alone."""
    verdict: Verdict = field(init=False)

    @property
    def is_ruled(self) -> bool:
        """Whether a rule or a person has decided."""
        return self.ruling.decision is not None or bool(self.ruling.approved_by)

    def __post_init__(self) -> None:
        worst = max((each.verdict for each in self.reasons), default=Verdict.ALLOW)
        object.__setattr__(self, "verdict", worst)
