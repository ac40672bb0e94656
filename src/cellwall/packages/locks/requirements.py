"""`requirements.txt` as pip and uv write it: pins with hashes, and `# via` comments.

pip reads more than it writes: `-rother.txt`, `--req other.txt`, other encodings, and words behind
a hash, which it ignores. What could hide a package from this reader, and not from pip, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement

from cellwall.packages.locks.model import (
    BadLock,
    Lock,
    LockedFile,
    LockedPackage,
    bounded,
    by_name,
    digest,
    locked_name,
    origin_of,
    text,
)
from cellwall.packages.locks.pylock import PUBLIC_HOSTS
from cellwall.packages.names import Ecosystem

_HASH = re.compile(r"\s--hash[= ](\w{1,20}):(\S{1,200})")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_HASHES = re.compile(r"(?:\s+--hash[= ]\S+)*\s*")
_INDEX = re.compile(r"(?:-i|--index-url|--extra-index-url|-f|--find-links)(?:=|\s+)(\S+)")
_OTHER_OPTION = re.compile(
    r"(?:--no-binary|--only-binary|--trusted-host|--use-feature)(?:=|\s+)[^\s-]\S*"
    r"|--(?:no-index|prefer-binary|require-hashes|pre)"
)
_ENCODING = re.compile(rb"#.*?coding[:=]\s*([-\w.]+)")
_INCLUDES = ("-r", "-c", "--requirement", "--constraint")
_EDITABLE = ("-e", "--editable")
_VIA = re.compile(r"^\s*#\s*via\b\s*(.*)$")
_VIA_MORE = re.compile(r"^\s*#\s{2,}(\S.*)$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(slots=True)
class _RequirementLine:
    """One requirement or option, with the names of the `# via` comment below."""

    content: str
    causes: list[str] = field(default_factory=list)


def parse_requirements(data: bytes) -> Lock:
    """The lock in the bytes of a `requirements.txt`."""
    _check_encoding(data)
    try:
        entries = list(_entries(data.decode()))
    except UnicodeDecodeError:
        raise BadLock("requirements.txt is not UTF-8") from None
    origin = next(filter(None, map(_other_index, entries)), "")
    packages: list[tuple[LockedPackage, list[str]]] = []
    seen: dict[str, int] = {}
    for entry in entries:
        if not entry.content.startswith("-"):
            package = _package(entry.content, origin, seen)
            packages.append((package, entry.causes))
    by_name((each.name, each) for each, _ in packages)
    return _linked(packages)


def _check_encoding(data: bytes) -> None:
    """pip reads a comment such as `# coding: utf-7`, by which another comment holds a line end."""
    for line in data.split(b"\n")[:2]:
        found = _ENCODING.match(line)
        if found is not None and found[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8"):
            raise BadLock("requirements.txt names another encoding than UTF-8")


def _linked(packages: list[tuple[LockedPackage, list[str]]]) -> Lock:
    """The lock with the edges of the `# via` comments, which name what needs a package."""
    edges: dict[str, list[str]] = {}
    direct: set[str] = set()
    for package, causes in packages:
        names = [each.lower() for each in causes if _NAME.fullmatch(each)]
        for name in names:
            edges.setdefault(locked_name(Ecosystem.PYPI, name), []).append(package.ref)
        if len(names) < len(causes) or not causes:  # `-r requirements.in`, `app (pyproject.toml)`
            direct.add(package.ref)
    linked = [
        LockedPackage(
            each.ref,
            each.ecosystem,
            each.name,
            each.version,
            each.files,
            tuple(edges.get(each.name, ())),
            is_direct=each.ref in direct,
            origin=each.origin,
        )
        for each, _ in packages
    ]
    return Lock("requirements.txt", bounded(linked), bool(edges))


def _entries(content: str) -> Iterator[_RequirementLine]:
    """The logical lines: continued by a backslash, without comments and empty lines."""
    current: _RequirementLine | None = None
    joined = ""
    is_via = False
    for line in content.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            found = _VIA.match(line) or (_VIA_MORE.match(line) if is_via else None)
            is_via = found is not None
            if found is not None and current is not None and found[1]:
                current.causes += [each.strip() for each in found[1].split(",")]
            continue
        is_via = False
        joined = f"{joined} {_COMMENT.sub('', stripped)}"
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        if joined.strip():
            current = _RequirementLine(_checked(joined.strip()))
            yield current
        joined = ""
    if joined.strip():
        yield _RequirementLine(_checked(joined.strip()))


def _checked(content: str) -> str:
    first = content.split(maxsplit=1)[0].partition("=")[0]
    if first in _INCLUDES:
        raise BadLock(
            "requirements.txt includes another file",
            hint="Write one file with every pin: uv pip compile --generate-hashes.",
        )
    if first in _EDITABLE:
        raise BadLock("requirements.txt names an editable folder, which no registry has")
    is_option = content.startswith("-")
    if is_option and not (_INDEX.fullmatch(content) or _OTHER_OPTION.fullmatch(content)):
        raise BadLock(
            f"requirements.txt has an option that is not read: {ascii(content)[:80]}",
            hint="Write each option on a line of its own, with its whole name.",
        )
    return content


def _other_index(entry: _RequirementLine) -> str:
    found = _INDEX.match(entry.content)
    return origin_of(text(found[1], "the URL of an index"), PUBLIC_HOSTS) if found else ""


def _package(content: str, origin: str, seen: dict[str, int]) -> LockedPackage:
    hashes = tuple(digest(kind.lower(), value) for kind, value in _HASH.findall(content))
    plain = re.split(r"\s--", content, maxsplit=1)[0]
    if _HASHES.fullmatch(content, len(plain)) is None:
        raise BadLock(f"more than hashes behind a requirement: {ascii(plain)[:80]}")
    try:
        requirement = Requirement(text(plain, "a requirement"))
    except (InvalidRequirement, RecursionError):
        raise BadLock(f"not a requirement with a name: {ascii(plain)[:80]}") from None
    name = locked_name(Ecosystem.PYPI, requirement.name)
    pins = [each.version for each in requirement.specifier if each.operator in {"==", "==="}]
    is_pinned = len(pins) == 1 and not pins[0].endswith("*")
    version = pins[0] if is_pinned else None
    ref = f"{name}@{version}"
    seen[ref] = seen.get(ref, 0) + 1  # once for each marker
    return LockedPackage(
        ref if seen[ref] == 1 else f"{ref}#{seen[ref]}",
        Ecosystem.PYPI,
        name,
        version,
        tuple(LockedFile(hashes=(each,)) for each in hashes),
        origin=origin_of(requirement.url, ()) if requirement.url else origin,
    )
