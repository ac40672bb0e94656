"""Decisions about builds from source (PKG-3): the version, the requirements, the result. Pure.

The texts come from source archives and from code that ran in a cell: all of them are untrusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from cellwall.core.errors import BadInput, Denied
from cellwall.core.packages import parse_requirement
from cellwall.packages.inspection.archives import UnsafeArchive, read_archive
from cellwall.packages.inspection.sources import PROJECT_FILE, read_build_system
from cellwall.packages.registry.judged_index import JudgedIndex

MAX_BUILD_REQUIREMENTS = 50
MAX_WHEEL_BYTES = 512 * 1024 * 1024
_LEGACY = ("setuptools>=40.8.0",)
"""For an archive without `[build-system]` (PEP 517)."""
_BACKEND = re.compile(r"\w+(?:\.\w+)*(?::\w+(?:\.\w+)*)?", re.ASCII)
_MAX_BACKEND_PATHS = 10
_MAX_PROJECT_BYTES = 1024 * 1024
_FILENAME = re.compile(r"[A-Za-z0-9._!+~-]{1,150}\.whl")


class BuildRefused(Denied):
    """A source archive that is not built, or a wheel that is not taken."""

    default_code = "CW-PACKAGE-REFUSED"


# The version


def choose_source(index: JudgedIndex, versions: str, python: str) -> str | None:
    """The version to build for a requirement that no wheel meets: the newest allowed one.

    `versions` are the clauses of the requirement; empty for a dependency of another package, for
    only the resolver knows that range. `python` is the version of the Python inside, `3.12`.
    """
    wanted = SpecifierSet(versions)
    fitting = _tags(python)
    wheels = [each for each in index.artifacts.values() if not each.is_metadata]
    if _best(wanted, (each.version for each in wheels if _fits(each.filename, fitting))):
        return None
    sources = (
        version
        for version, source in index.sources.items()
        if _runs_on(source.requires_python, python)
    )
    return _best(wanted, sources)


def _best(wanted: SpecifierSet, versions: Iterable[str]) -> str | None:
    found = list(wanted.filter(dict.fromkeys(versions)))
    return max(found, key=Version, default=None)


def _tags(python: str) -> frozenset[Tag]:
    major, minor = python.split(".")[:2]
    numbers = int(major), int(minor)
    found = (*cpython_tags(numbers), *compatible_tags(numbers, f"cp{major}{minor}"))
    return frozenset(found)


def _fits(filename: str, tags: frozenset[Tag]) -> bool:
    try:
        return not tags.isdisjoint(parse_wheel_filename(filename)[3])
    except (InvalidWheelFilename, InvalidVersion):
        return False


def _runs_on(requires_python: str | None, python: str) -> bool:
    try:
        return SpecifierSet(requires_python or "").contains(python, prereleases=True)
    except InvalidSpecifier:
        return False


# The requirements


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """`[build-system]` of `pyproject.toml` (PEP 517, 518)."""

    requires: tuple[str, ...]
    backend: str = "setuptools.build_meta:__legacy__"
    backend_path: tuple[str, ...] = ()


def read_build(stream: IO[bytes], filename: str, size: int, python: str) -> BuildSystem:
    """How an archive is built; reads the archive and executes nothing."""
    stream.seek(0)
    project = b""
    try:
        for member in read_archive(stream, filename, size):
            if member.name.partition("/")[2] == PROJECT_FILE:
                project = member.read(_MAX_PROJECT_BYTES + 1)
    except UnsafeArchive as error:
        raise BuildRefused(f"the source archive is refused: {error}") from None
    if len(project) > _MAX_PROJECT_BYTES:
        raise BuildRefused(f"{PROJECT_FILE} is larger than {_MAX_PROJECT_BYTES:,} bytes")
    table = read_build_system(project)
    requires = build_requirements(table.get("requires", list(_LEGACY)), python)
    backend, paths = table.get("build-backend"), table.get("backend-path", [])
    if backend is None:
        return BuildSystem(requires)
    if not isinstance(backend, str) or _BACKEND.fullmatch(backend) is None:
        raise BuildRefused(f"{PROJECT_FILE} names no build backend that can be imported")
    if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
        raise BuildRefused(f"backend-path in {PROJECT_FILE} is not a list of folders")
    return BuildSystem(requires, backend, tuple(paths[:_MAX_BACKEND_PATHS]))


def build_requirements(texts: object, python: str) -> tuple[str, ...]:
    """Names, extras and versions of an index; a URL, a path or an option is refused.

    A requirement whose marker does not hold for the Python inside is left out.
    """
    if not isinstance(texts, list) or len(texts) > MAX_BUILD_REQUIREMENTS:
        raise BuildRefused("the build requirements are not a list of bounded length")
    return tuple(dict.fromkeys(_needed(texts, python)))


def _needed(texts: Sequence[object], python: str) -> Iterator[str]:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    for text in texts:
        try:
            parsed = Requirement(text if isinstance(text, str) else "")
            is_needed = parsed.marker is None or parsed.marker.evaluate(environment)
        except (InvalidRequirement, ValueError, KeyError, RecursionError):
            raise BuildRefused("a build requirement cannot be read") from None
        if parsed.url is not None:
            raise BuildRefused(
                f"the build needs {canonicalize_name(parsed.name)[:100]} by its URL, not from the "
                "index"
            )
        if is_needed:
            extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
            try:
                yield parse_requirement(f"{parsed.name}{extras}{parsed.specifier}")
            except BadInput as error:
                raise BuildRefused(f"a build requirement is refused: {error.message}") from None


def hook_requirements(data: bytes, python: str) -> tuple[str, ...]:
    """The answer of `get_requires_for_build_wheel`, which code in a cell has written."""
    try:
        texts = json.loads(data)
    except (ValueError, RecursionError):
        raise BuildRefused("the build backend answered with no list of requirements") from None
    return build_requirements(texts, python)


# The result


def check_wheel_name(names: Sequence[str], name: str, version: str, python: str) -> str:
    """The file name of the one wheel of this project and version, for this Python."""
    if len(names) != 1 or _FILENAME.fullmatch(names[0]) is None:
        raise BuildRefused("the build did not leave exactly one wheel")
    try:
        found, built, *_ = parse_wheel_filename(names[0])
    except (InvalidWheelFilename, InvalidVersion):
        raise BuildRefused("the build did not leave a wheel") from None
    if (canonicalize_name(found), built) != (name, Version(version)):
        raise BuildRefused(f"the build of {name} {version} left a wheel of another name or version")
    if not _fits(names[0], _tags(python)):
        raise BuildRefused(f"the build of {name} {version} left a wheel for another Python")
    return names[0]
