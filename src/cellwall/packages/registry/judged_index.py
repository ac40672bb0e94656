"""An index with a verdict on each version, and the refusals that it causes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cellwall.core.network import Scheme
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict
from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.verdict import NOT_BUILT

_ENTRY_BYTES = 1024
"""About the memory of one artifact or verdict of an index."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that the agent asked for and did not get."""

    verdict: PackageVerdict
    was_asked: bool = False
    instead: str | None = None
    """The version that the index shows."""

    @property
    def is_unbuilt(self) -> bool:
        """Whether the version exists as source that may be built."""
        return any(each.code == NOT_BUILT for each in self.verdict.reasons)

    @property
    def text(self) -> str:
        strictest = max(self.verdict.reasons, key=lambda each: each.verdict)
        if self.instead is not None:
            return f"{strictest.text.partition('; ')[0]}; {self.instead} is allowed"
        asked = "; a person was asked and did not allow it" if self.was_asked else ""
        return f"{strictest.text}{asked}"


def denies_all(project: PackageVerdict) -> bool:
    """Whether the verdict on a project denies each version of it.

    A rule about versions decides on versions: their own verdicts count.
    """
    return any(
        each.verdict is Verdict.DENY and each.step is not EvidenceStep.RULE
        for each in project.reasons
    )


@dataclass(frozen=True, slots=True)
class SourceArchive:
    """The source of a version that may be built."""

    artifact: Artifact
    requires_python: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedIndex:
    """An index with a verdict on each version. `pages` are the answers by content type.

    A client chooses the text of its Accept header: the content types are few, these texts are not.
    """

    name: str
    verdict: PackageVerdict
    versions: Mapping[str, PackageVerdict]
    artifacts: Mapping[str, Artifact]
    """By the path of their URL, decoded."""
    choose_type: Callable[[str], str]
    pages: Mapping[str, bytes]
    digests: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    """Algorithm and digest of every file of a version, also of those that a cell is not shown."""
    sources: Mapping[str, SourceArchive] = field(default_factory=dict)
    """By version: the source archives that policy allows to build. No cell is shown them."""
    origin: bytes = b""
    """Of the URLs of files in the pages, with https."""
    tags: Mapping[str, str] = field(init=False)
    """The entity tags of the pages."""

    def __post_init__(self) -> None:
        tags = {kind: f'"{hashlib.sha256(page).hexdigest()}"' for kind, page in self.pages.items()}
        object.__setattr__(self, "tags", tags)

    @property
    def refusal(self) -> PackageVerdict | None:
        """The verdict to report where no version is shown; a question where a person can help."""
        verdicts = list(self.versions.values())
        denied = [e for e in self.verdict.reasons if e.verdict is Verdict.DENY]
        if not denies_all(self.verdict):
            if any(each.verdict is Verdict.ALLOW for each in verdicts):
                return None
            asked = [each for each in verdicts if each.verdict is Verdict.ASK]
            if asked:
                return asked[-1]
        if verdicts and not denied:
            # The newest version's reason, for the registry lists versions in order.
            return verdicts[-1]
        return None if self.verdict.verdict is Verdict.ALLOW else self.verdict

    @property
    def withheld(self) -> Refusal | None:
        """The newest version, if an older one is shown in its place: a resolver takes the older
        one, or finds none for a pin, and says no reason."""
        verdicts = list(self.versions.values())
        shown = [each for each in verdicts if each.verdict is Verdict.ALLOW]
        if not shown or verdicts[-1].verdict is Verdict.ALLOW:
            return None
        return Refusal(verdicts[-1], instead=shown[-1].version)

    @property
    def summary(self) -> PackageVerdict:
        """The verdict for a person: of the newest version that is shown, or why none is."""
        shown = [each for each in self.versions.values() if each.verdict is Verdict.ALLOW]
        refused = self.refusal
        if refused is not None and refused.version in self.sources:
            # An installation builds the version: for a person this is a remark, not a refusal.
            reasons = [
                replace(each, verdict=Verdict.ALLOW) if each.code == NOT_BUILT else each
                for each in refused.reasons
            ]
            return replace(refused, reasons=tuple(reasons))
        return refused or (shown[-1] if shown else self.verdict)

    def page(self, accept: str, scheme: Scheme) -> tuple[str, bytes, str]:
        """Content type, bytes and entity tag. A client that asks for the page without TLS asks for
        the files without TLS as well, from the same host: one connection serves both."""
        content_type = self.choose_type(accept)
        page = self.pages[content_type]
        if scheme == "http" and self.origin:
            page = page.replace(self.origin, b"/")
        return content_type, page, self.tags[content_type]

    @property
    def size(self) -> int:
        """About the memory that the index takes."""
        entries = len(self.versions) + len(self.artifacts) + len(self.sources) + 1
        return sum(map(len, self.pages.values())) + entries * _ENTRY_BYTES
