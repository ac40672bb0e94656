"""`uv.lock`, the lock of a uv project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from cellwall.packages.locks.model import (
    BadLock,
    Lock,
    LockedFile,
    LockedPackage,
    bounded,
    by_name,
    check_counts,
    digest,
    listed,
    locked_name,
    origin_of,
    table,
    text,
)
from cellwall.packages.locks.pylock import PUBLIC_HOSTS
from cellwall.packages.names import Ecosystem
from cellwall.parsing.toml import load_untrusted_toml

_VERSION = 1
_LOCAL = ("virtual", "editable", "directory")
_SOURCES = frozenset({*_LOCAL, "registry", "git", "url", "path"})
_GROUPS = ("optional-dependencies", "dev-dependencies")

Entry = Mapping[str, Any]


def parse_uv_lock(data: bytes) -> Lock:
    """The lock in the bytes of a `uv.lock`."""
    try:
        document = load_untrusted_toml(data)
    except (ValueError, RecursionError):
        raise BadLock("uv.lock is not TOML") from None
    if document.get("version") != _VERSION:
        raise BadLock(
            "uv.lock has a version that Cellwall does not read",
            hint="Export it: uv export --format pylock.toml -o pylock.toml.",
        )
    entries = [table(each, "a package") for each in listed(document.get("package", []), "package")]
    check_counts(len(entries), sum(len(group) for each in entries for group in _groups(each)))
    named = by_name((_name(each), each) for each in entries)
    direct = {ref for each in entries if _is_local(each) for ref in _needed(each, named)}
    packages = [_package(each, named, direct) for each in entries if not _is_local(each)]
    return Lock("uv.lock", bounded(packages))


def _package(entry: Entry, named: Mapping[str, list[Entry]], direct: set[str]) -> LockedPackage:
    ref = _reference(entry)
    return LockedPackage(
        ref,
        Ecosystem.PYPI,
        _name(entry),
        _version(entry),
        tuple(_files(entry)),
        tuple(dict.fromkeys(_needed(entry, named))),
        is_direct=ref in direct,
        origin=_origin(entry),
    )


def _name(entry: Entry) -> str:
    return locked_name(Ecosystem.PYPI, entry.get("name"))


def _version(entry: Entry) -> str | None:
    version = entry.get("version")
    return None if version is None else text(version, "a version")


def _source(entry: Entry) -> Entry:
    source = table(entry.get("source") or {}, "the source of a package")
    # Attack: uv installs a package with a registry *and* a folder from the registry.
    if len(_SOURCES & source.keys()) > 1:
        raise BadLock(f"uv.lock names more than one source of {_name(entry)}")
    return source


def _is_local(entry: Entry) -> bool:
    return any(each in _source(entry) for each in _LOCAL)


def _reference(entry: Entry) -> str:
    plain = f"{_name(entry)}@{_version(entry)}"
    origin = _origin(entry)
    return f"{plain} {origin}" if origin else plain


def _groups(entry: Entry) -> list[list[Any]]:
    groups = [listed(entry.get("dependencies") or [], "dependencies")]
    for kind in _GROUPS:
        tables = table(entry.get(kind) or {}, kind)
        groups += [listed(each, kind) for each in tables.values()]
    return groups


def _needed(entry: Entry, named: Mapping[str, list[Entry]]) -> Iterator[str]:
    """A dependency names a version where the lock has several of one name."""
    for dependency in chain.from_iterable(_groups(entry)):
        wanted = table(dependency, "a dependency")
        for each in named.get(_name(wanted), ()):
            is_chosen = wanted.get("version") in {None, each.get("version")}
            if is_chosen and not _is_local(each):
                yield _reference(each)


def _files(entry: Entry) -> Iterator[LockedFile]:
    sources = [entry["sdist"]] if entry.get("sdist") else []
    for each in (*sources, *listed(entry.get("wheels") or [], "wheels")):
        file = table(each, "a file")
        url = text(file.get("url") or "", "a URL")
        algorithm, _, value = text(file.get("hash") or "", "a hash").partition(":")
        hashes = (digest(algorithm, value),) if algorithm else ()
        yield LockedFile(url.partition("?")[0].partition("#")[0].rpartition("/")[2], url, hashes)


def _origin(entry: Entry) -> str:
    source = _source(entry)
    if "git" in source:
        return f"git+{origin_of(text(source['git'], 'a URL'))}"
    if "path" in source:
        return "file: of this machine"
    urls = [source.get("registry"), source.get("url"), *(each.url for each in _files(entry))]
    named = [text(each, "a URL") for each in urls if each]
    if "url" in source:
        return origin_of(text(source["url"], "a URL"))
    return next(filter(None, (origin_of(each, PUBLIC_HOSTS) for each in named)), "")
