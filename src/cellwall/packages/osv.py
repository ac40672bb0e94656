"""One advisory in the OSV format (ossf.github.io/osv-schema), read from untrusted JSON.

Only the fields that a verdict needs are kept. An advisory whose identifier begins with `MAL-`
reports a malicious package (github.com/ossf/malicious-packages); all others report a vulnerability.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version
from semver import Version as SemanticVersion

from cellwall.core.errors import BadInput
from cellwall.packages.names import Ecosystem, canonical_name

MAX_RECORD_BYTES = 4 * 2**20
MAX_VERSIONS = 100_000
_MAX_IDENTIFIER = 100
_IDENTIFIER = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{_MAX_IDENTIFIER - 1}}}")
_NPM_PREFIX = re.compile(r"^[=v\s]+")
"""What npm skips before a version."""
_MALICIOUS = "MAL-"
_ECOSYSTEMS = {"PyPI": Ecosystem.PYPI, "npm": Ecosystem.NPM}


class BadAdvisory(Exception):
    """The record is not a readable OSV record; never leaves this part."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Affected from `introduced` (None: the first version) until before `fixed`, or to `last`."""

    introduced: str | None
    fixed: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class Affected:
    """The versions of one package that an advisory names. Without any, all versions are."""

    ecosystem: Ecosystem
    name: str
    versions: frozenset[str]
    ranges: tuple[VersionRange, ...]

    def covers(self, version: str | None) -> bool:
        """Whether the version is affected; for None (unknown), whether any version is."""
        if version is None or not (self.versions or self.ranges):
            return True
        spelled = one_spelling(self.ecosystem, version)
        # A local version (PEP 440) is somebody's own build of the public one.
        forms = (spelled, spelled.partition("+")[0]) if "+" in spelled else (spelled,)
        if not self.versions.isdisjoint(forms):
            return True
        return any(_is_within(self.ecosystem, form, each) for each in self.ranges for form in forms)

    def fixed_in(self, version: str) -> str | None:
        """The version that ends the range in which this version is; None: no fix is known."""
        fixes = (r.fixed for r in self.ranges if r.fixed and _is_within(self.ecosystem, version, r))
        return next(fixes, None)


@dataclass(frozen=True, slots=True)
class Advisory:
    """A report on packages. `modified` is the RFC 3339 time of its last change."""

    id: str
    modified: str
    summary: str
    is_withdrawn: bool
    affected: tuple[Affected, ...]
    is_snapshot: bool = False
    """Whether it stands for the shipped list of malicious versions (`snapshot.py`)."""

    @property
    def is_malicious(self) -> bool:
        return self.is_snapshot or self.id.startswith(_MALICIOUS)


def parse_advisory(data: bytes) -> Advisory:
    """The advisory in one OSV record. Packages of other ecosystems are left out."""
    if len(data) > MAX_RECORD_BYTES:
        raise BadAdvisory(f"larger than {MAX_RECORD_BYTES} bytes")
    try:
        record = json.loads(data)
        return Advisory(
            _identifier(record["id"]),
            parse_modified(_text(record["modified"], 64)),
            _text(record.get("summary") or "", 1000),
            record.get("withdrawn") is not None,
            tuple(_parse_affected(record.get("affected") or ())),
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BadAdvisory(f"not an OSV record ({type(error).__name__})") from None


def parse_modified(text: str) -> str:
    """An RFC 3339 time in UTC with microseconds: texts of this form compare like their times."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _identifier(value: object) -> str:
    """Reasons quote the identifier to people and models: letters, digits and few signs alone."""
    text = _text(value, _MAX_IDENTIFIER + 1)
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError("not an identifier")
    return text


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError("text expected")
    return value[:most]


def _parse_affected(entries: Sequence[dict[str, Any]]) -> list[Affected]:
    parsed = []
    for entry in entries:
        package = entry.get("package") or {}
        ecosystem = _ECOSYSTEMS.get(package.get("ecosystem", ""))
        if ecosystem is None:
            continue
        try:
            name = canonical_name(ecosystem, _text(package["name"], 1000))
        except BadInput:
            continue  # no registry accepts this name, so nobody can install the package
        versions = entry.get("versions") or ()
        if len(versions) > MAX_VERSIONS:
            raise ValueError("too many versions")
        ranges = [
            found
            for each in entry.get("ranges") or ()
            if each.get("type") in {"ECOSYSTEM", "SEMVER"}
            for found in _parse_events(each.get("events") or ())
        ]
        listed = frozenset(one_spelling(ecosystem, _text(each, 200)) for each in versions)
        parsed.append(Affected(ecosystem, name, listed, tuple(ranges)))
    return parsed


@functools.lru_cache(maxsize=16_384)
def one_spelling(ecosystem: Ecosystem, version: str) -> str:
    """`1.0-beta` and `1.0.0b0` are one version of PyPI (PEP 440), `v1.0.0` and `1.0.0+a` of npm."""
    if ecosystem is Ecosystem.NPM:
        return _NPM_PREFIX.sub("", version).partition("+")[0].strip()
    try:
        return canonicalize_version(version)
    except ValueError:  # a number with more digits than Python reads
        return version


def _parse_events(events: Sequence[dict[str, str]]) -> list[VersionRange]:
    """OSV lists events in the order of versions: each `introduced` opens a range."""
    ranges: list[VersionRange] = []
    for event, following in pairwise((*events, {})):
        if "introduced" not in event:
            continue
        introduced = _text(event["introduced"], 200)
        fixed, last = following.get("fixed"), following.get("last_affected")
        ranges.append(
            VersionRange(
                None if introduced == "0" else introduced,
                None if fixed is None else _text(fixed, 200),
                None if last is None else _text(last, 200),
            )
        )
    return ranges


def _is_within(ecosystem: Ecosystem, version: str, affected: VersionRange) -> bool:
    """Whether the range covers the version. What cannot be compared counts as covered."""
    try:
        number = _parse_version(ecosystem, version)
        return not (
            (affected.introduced and number < _parse_version(ecosystem, affected.introduced))
            or (affected.fixed and number >= _parse_version(ecosystem, affected.fixed))
            or (affected.last and number > _parse_version(ecosystem, affected.last))
        )
    except (InvalidVersion, ValueError):
        return True


@functools.lru_cache(maxsize=16_384)
def _parse_version(ecosystem: Ecosystem, version: str) -> Any:  # noqa: ANN401  # of two libraries
    """Every version of a project is compared with the ranges of every advisory."""
    parse = Version if ecosystem is Ecosystem.PYPI else SemanticVersion.parse
    return parse(version)
