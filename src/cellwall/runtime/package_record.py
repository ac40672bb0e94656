"""The packages of an action: one audit record for each that it got or was refused (PKG-1, AUD-1).

A package manager asks several times for one file, and code in a cell may ask in a loop: each
artifact and each refusal of an action is recorded once, and refusals only up to a bound.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.audit.log import AuditLog
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import Event, EventKind, PackageUse
from cellwall.core.types import Json

if TYPE_CHECKING:
    from cellwall.packages.evidence import PackageVerdict
    from cellwall.packages.inventory import InstalledPackage
    from cellwall.packages.kept_trees import RegistryAnswer

SERVED = "package-served"
REFUSED = "package-refused"
VERDICT = "package-verdict"
BUILT = "package-built"
MAX_REFUSALS = 200
"""Of one action; later ones are counted by the records of its connections alone."""
MAX_LISTED = 2000
"""Packages in one outcome; the audit log has all."""
MAX_ANSWERS = 4000
"""Of the registry to one installation whose tree is kept."""
MAX_ACTIONS = 1024
"""Whose packages are held, apart from installs that are under way."""


@dataclass(frozen=True, slots=True)
class SourceBuild:
    """A wheel that was built from a source archive, with the packages that the build needed."""

    source: InstalledPackage
    filename: str
    sha256: str
    size: int
    action_id: str
    """The action of the cells of the build."""
    requirements: tuple[InstalledPackage, ...]


@dataclass(slots=True)
class _ServedPackages:
    served: dict[tuple[str, str], InstalledPackage] = field(default_factory=dict)
    """By file name and digest."""
    writing: dict[tuple[str, str], Future[None]] = field(default_factory=dict)
    """Of those that are being recorded: done when the record is written, or has failed."""
    refused: set[tuple[str, str | None, str]] = field(default_factory=set)
    buildable: dict[str, None] = field(default_factory=dict)
    """Projects that the action asked for, with sources that may be built."""
    answers: dict[RegistryAnswer, None] = field(default_factory=dict)
    """What the registry answered in the current attempt of an installation."""


class PackageRecord:
    """Safe for threads: the registry services write, the runtime takes."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._lock = threading.Lock()
        self._actions: OrderedDict[str, _ServedPackages] = OrderedDict()
        self._kept: set[str] = set()

    async def note_install(self, package: InstalledPackage, who: EgressContext) -> None:
        """Record an artifact before its first byte reaches the cell; a failed write refuses."""
        key, written = (package.filename, package.digest), Future[None]()
        while True:
            with self._lock:
                found = self._of(who.action_id)
                if key in found.served:
                    return
                writing = found.writing.get(key)
                if writing is None:
                    found.writing[key] = written
                    break
            # The same file for another connection; if that write fails, this one is tried.
            await asyncio.shield(asyncio.wrap_future(writing))
        try:
            await self._write_install(package, who)
            with self._lock:
                self._of(who.action_id).served[key] = package
        finally:
            with self._lock:
                del found.writing[key]
            written.set_result(None)

    async def _write_install(self, package: InstalledPackage, who: EgressContext) -> None:
        body: dict[str, Json] = {"event": SERVED, **_use(package).to_json()}
        body |= {"package": package.purl, "file": package.filename, "size": package.size}
        if package.source is not None:
            body["source"] = {
                "file": package.source.filename,
                "url": package.source.url,
                **dict(package.source.hashes),
            }
        await self._write(body, who)

    @contextmanager
    def keeping(self, action_id: str) -> Iterator[None]:
        """Within this block the packages of the action are not dropped for those of others: the
        check for changed hashes needs all of them (PKG-5)."""
        with self._lock:
            self._kept.add(action_id)
        try:
            yield
        finally:
            with self._lock:
                self._kept.discard(action_id)

    def keeps(self, action_id: str) -> bool:
        """Whether the action is within `keeping`."""
        with self._lock:
            return action_id in self._kept

    def note_answer(self, answer: RegistryAnswer, who: EgressContext) -> None:
        """An answer of the registry to an installation: the tree is made of these."""
        with self._lock:
            found = self._of(who.action_id).answers
            if len(found) < MAX_ANSWERS:
                found[answer] = None

    def take_answers(self, action_id: str) -> tuple[RegistryAnswer, ...]:
        """The answers since the last call; none where there were too many."""
        with self._lock:
            found = self._actions.get(action_id)
            if found is None:
                return ()
            answers, found.answers = tuple(found.answers), {}
        return answers if len(answers) < MAX_ANSWERS else ()

    def served(self, action_id: str) -> tuple[InstalledPackage, ...]:
        """The packages that the action got so far, each once."""
        with self._lock:
            found = self._actions.get(action_id)
            return () if found is None else tuple(found.served.values())

    async def note_refusal(self, verdict: PackageVerdict, who: EgressContext) -> None:
        """Record a refused package with the reason of each step."""
        strictest = max(verdict.reasons, key=lambda each: each.verdict)
        key = verdict.name, verdict.version, strictest.code
        with self._lock:
            refused = self._of(who.action_id).refused
            if key in refused or len(refused) >= MAX_REFUSALS:
                return
            refused.add(key)
        reasons: list[Json] = [
            {"step": each.step.value, "verdict": each.verdict.word, "text": each.text}
            for each in verdict.reasons
        ]
        body: dict[str, Json] = {
            "event": REFUSED,
            "ecosystem": verdict.ecosystem.value,
            "name": verdict.name,
            "version": verdict.version,
            "verdict": verdict.verdict.word,
            "reason": strictest.text,
            "reasons": reasons,
            "risk": _risk_points(verdict),
            "suggestion": verdict.suggestion,
        }
        await self._write(body, who)

    def note_buildable(self, name: str, who: EgressContext) -> None:
        """The action asked for the index of a project with sources that may be built."""
        with self._lock:
            found = self._of(who.action_id).buildable
            if len(found) < MAX_LISTED:
                found[name] = None

    def buildable(self, action_id: str) -> tuple[str, ...]:
        """The projects of `note_buildable`, in the order of the requests."""
        with self._lock:
            found = self._actions.get(action_id)
            return () if found is None else tuple(found.buildable)

    async def note_build(self, build: SourceBuild, who: EgressContext) -> None:
        """Record a wheel before the index shows it; a failed write refuses."""
        needed: list[Json] = [
            {"package": each.purl, "file": each.filename, each.algorithm: each.digest}
            for each in build.requirements
        ]
        body: dict[str, Json] = {
            "event": BUILT,
            "package": build.source.purl,
            "source": build.source.filename,
            "source_sha256": build.source.digest,
            "wheel": build.filename,
            "wheel_sha256": build.sha256,
            "size": build.size,
            "build_requirements": needed,
            "build_action": build.action_id,
        }
        await self._write(body, who)

    async def note_verdict(self, verdict: PackageVerdict, who: EgressContext) -> None:
        """Record the rule or the person that decided about a package (PKG-2)."""
        decision = verdict.ruling.decision
        body: dict[str, Json] = {
            "event": VERDICT,
            "package": f"{verdict.ecosystem.value}:{verdict.name}",
            "version": verdict.version,
            "verdict": verdict.verdict.word,
            "rule": decision.rule if decision else "",
            "source": decision.source if decision else "",
            "rule_reason": decision.reason if decision else "",
            "approved_by": verdict.ruling.approved_by,
            "answered": [each.code for each in verdict.answered],
            "reasons": [each.text for each in verdict.reasons],
            "risk": _risk_points(verdict),
        }
        await self._write(body, who)

    def take(self, action_id: str) -> tuple[PackageUse, ...]:
        """The packages that the action got since the last call, each once."""
        with self._lock:
            found = self._actions.pop(action_id, _ServedPackages())
        return tuple(dict.fromkeys(map(_use, found.served.values())))[:MAX_LISTED]

    def _of(self, action_id: str) -> _ServedPackages:
        found = self._actions.setdefault(action_id, _ServedPackages())
        self._actions.move_to_end(action_id)
        if len(self._actions) - len(self._kept) > MAX_ACTIONS:
            oldest = next((each for each in self._actions if each not in self._kept), action_id)
            del self._actions[oldest]
        return found

    async def _write(self, body: dict[str, Json], who: EgressContext) -> None:
        context = who.action_id, who.principal, who.interface
        await self._audit.record(Event(EventKind.CONNECTION, *context, body, who.session_id))


def _risk_points(verdict: PackageVerdict) -> int:
    from cellwall.packages.risk import risk_of  # noqa: PLC0415  # most runs judge no package

    return risk_of(verdict).points


def _use(package: InstalledPackage) -> PackageUse:
    return PackageUse(
        package.ecosystem.value, package.name, package.version, package.algorithm, package.digest
    )
