"""Judges the entries of a lock file: what an installation of them would meet today (PKG-5).

  (1) the steps of an installation: rules, feed, name and, with the registry, its facts;
  (2) the advisories that cover the locked version, with the version that fixes each;
  (3) the lock itself: a version for each entry, a strong hash, the public registry as origin, and
      files of the package and version that the entry names: npm and uv fetch what the URL names;
  (4) with the registry: the hashes of the lock are those of the registry.

A vulnerability does not prevent an installation, so (1) allows it; an audit asks about it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
    parse_wheel_filename,
)

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.locks.model import STRONG_ALGORITHMS, LockedFile, LockedPackage
from cellwall.packages.locks.npm import is_tarball_of
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, one_spelling
from cellwall.packages.registry.judged_index import JudgedIndex


@dataclass(frozen=True, slots=True)
class AdvisoryMatch:
    """An advisory that covers a locked version; `fixed` is None where no fix is known."""

    id: str
    is_malicious: bool
    fixed: str | None
    summary: str


@dataclass(frozen=True, slots=True)
class AuditedPackage:
    """The verdict on one entry of a lock; the strictest reason counts."""

    package: LockedPackage
    reasons: tuple[Reason, ...]
    advisories: tuple[AdvisoryMatch, ...] = ()
    suggestion: str | None = None
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        worst = max((each.verdict for each in self.reasons), default=Verdict.ALLOW)
        object.__setattr__(self, "verdict", worst)


@dataclass(frozen=True, slots=True)
class LockRules:
    """What an audit demands of the lock itself. `origins`: mirrors of the configuration."""

    origins: Collection[str] = ()
    needs_hashes: bool = True


def audit_package(
    package: LockedPackage,
    judged: PackageVerdict,
    advisories: Sequence[Advisory],
    rules: LockRules,
    *,
    index: JudgedIndex | None = None,
) -> AuditedPackage:
    """The verdict on one entry. `judged` is the answer of (1); `index` is None offline."""
    reasons = [
        replace(each, verdict=Verdict.ASK) if each.code == "vulnerable" else each
        for each in judged.reasons
    ]
    reasons += _judge_lock(package, rules)
    if index is not None and not _is_elsewhere(package, rules):
        reasons += _judge_hashes(package, index)
    matches = tuple(_match(each, package.version or "") for each in advisories)
    return AuditedPackage(package, tuple(reasons), matches, judged.suggestion)


def version_in(index: JudgedIndex, package: LockedPackage) -> str | None:
    """The registry's spelling of the locked version; None where the registry does not have it."""
    wanted = package.version
    if wanted is None or wanted in index.versions or package.ecosystem is Ecosystem.NPM:
        return wanted if wanted in index.versions else None
    spelled = {canonicalize_version(each): each for each in index.versions}
    return spelled.get(canonicalize_version(wanted))


def judge_in_index(package: LockedPackage, index: JudgedIndex) -> PackageVerdict:
    """The registry proxy's own answer for the entry."""
    if package.version is None or not index.versions:
        return index.verdict
    version = version_in(index, package)
    if version is not None:
        return index.versions[version]
    text = f"{package.name} {package.version} is not on {package.ecosystem.value}"
    missing = Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unknown-version", text)
    return replace(index.verdict, reasons=(*index.verdict.reasons, missing))


# (3)
def _judge_lock(package: LockedPackage, rules: LockRules) -> list[Reason]:
    found = []
    if package.version is None:
        text = f"{package.name} is not pinned to a version"
        found.append(Reason(EvidenceStep.VERSION, Verdict.ASK, "unpinned", text))
    if _is_elsewhere(package, rules):
        text = f"{package.name} comes from {package.origin}, not from {package.ecosystem.value}"
        found.append(Reason(EvidenceStep.REGISTRY, Verdict.ASK, "origin", text))
    elif not all(_is_of(package, each) for each in package.files):
        text = f"the lock names a file of another package or version for {package.name}"
        found.append(Reason(EvidenceStep.ARTIFACT, Verdict.ASK, "other-file", text))
    is_strong = any(algorithm in STRONG_ALGORITHMS for algorithm, _ in package.hashes)
    if rules.needs_hashes and not is_strong:
        text = f"the lock has no SHA-256 or stronger hash of {package.name}"
        found.append(Reason(EvidenceStep.ARTIFACT, Verdict.ASK, "no-hash", text))
    return found


def _is_elsewhere(package: LockedPackage, rules: LockRules) -> bool:
    return bool(package.origin) and package.origin not in rules.origins


def _is_of(package: LockedPackage, file: LockedFile) -> bool:
    """Whether all names of a file of the registry are of this package and version."""
    if package.ecosystem is Ecosystem.NPM:
        return not file.url or is_tarball_of(package, file.url)
    path = unquote(urlsplit(file.url).path)
    names = {unquote(file.filename), path.rpartition("/")[2]} - {""}
    return all(_is_named_for(package, each) for each in names)


def _is_named_for(package: LockedPackage, filename: str) -> bool:
    parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        name, version, *_ = parse(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):  # of the years before PEP 440
        return canonicalize_name(filename).startswith(f"{package.name}-")
    return name == package.name and _same_version(str(version), package.version or "")


def _same_version(left: str, right: str) -> bool:
    return one_spelling(Ecosystem.PYPI, left) == one_spelling(Ecosystem.PYPI, right)


# (4)
def _judge_hashes(package: LockedPackage, index: JudgedIndex) -> list[Reason]:
    version = version_in(index, package)
    known = index.digests.get(version) if version is not None else None
    if known is None:
        return []
    algorithms = {algorithm for algorithm, _ in known}
    comparable = {each for each in package.hashes if each[0] in algorithms}
    changed = sorted(comparable - known)
    if not changed:
        return []
    text = (
        f"{package.name} {package.version}: the hash {':'.join(changed[0])[:23]}… of the lock is "
        f"not that of a file on {package.ecosystem.value}"
    )
    return [Reason(EvidenceStep.ARTIFACT, Verdict.DENY, "hash-changed", text)]


# (2)
def _match(advisory: Advisory, version: str) -> AdvisoryMatch:
    fixes = (each.fixed_in(version) for each in advisory.affected)
    fixed = next(filter(None, fixes), None)
    return AdvisoryMatch(advisory.id, advisory.is_malicious, fixed, advisory.summary)
