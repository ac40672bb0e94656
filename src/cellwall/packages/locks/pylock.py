"""`pylock.toml` (PEP 751), validated by `packaging`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.pylock import (
    Package,
    PackageArchive,
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockUnsupportedVersionError,
    PylockValidationError,
)

from cellwall.packages.locks.model import (
    BadLock,
    Lock,
    LockedFile,
    LockedPackage,
    bounded,
    by_name,
    check_counts,
    digest,
    locked_name,
    origin_of,
    text,
)
from cellwall.packages.names import Ecosystem
from cellwall.parsing.toml import load_untrusted_toml

PUBLIC_HOSTS = frozenset({"pypi.org", "files.pythonhosted.org"})


def parse_pylock(data: bytes) -> Lock:
    """The lock in the bytes of a `pylock.toml`."""
    try:
        lock = Pylock.from_dict(load_untrusted_toml(data))
    except PylockUnsupportedVersionError as error:
        raise BadLock(f"pylock.toml: {_short(error)}") from None
    except (PylockValidationError, ValueError, TypeError, RecursionError) as error:
        raise BadLock(f"not a pylock.toml: {_short(error)}") from None
    refs = _references(lock.packages)
    check_counts(len(refs), sum(len(each.dependencies or ()) for each in lock.packages))
    named = by_name((each.name, each) for each in lock.packages)
    needed = {id(each): tuple(_dependencies(each, named, refs)) for each in lock.packages}
    targets = {ref for each in needed.values() for ref in each}
    packages = [
        LockedPackage(
            ref := refs[id(each)],
            Ecosystem.PYPI,
            locked_name(Ecosystem.PYPI, each.name),
            None if each.version is None else str(each.version),
            tuple(_files(each)),
            needed[id(each)],
            # PEP 751 does not mark them: what no other package needs, the project requires.
            is_direct=ref not in targets,
            origin=_origin(each),
            # A quoted text in a marker may have line breaks, and pins are lines.
            marker=text(str(each.marker or ""), f"the marker of {each.name}"),
        )
        for each in lock.packages
    ]
    has_graph = any(each.dependencies is not None for each in lock.packages)
    return Lock("pylock.toml", bounded(packages), has_graph, created_by=lock.created_by)


def _references(packages: Sequence[Package]) -> dict[int, str]:
    """PEP 751 allows one name and version several times, with markers that exclude each other."""
    found: dict[int, str] = {}
    seen: dict[str, int] = {}
    for each in packages:
        plain = f"{each.name}@{each.version}"
        seen[plain] = seen.get(plain, 0) + 1
        found[id(each)] = plain if seen[plain] == 1 else f"{plain}#{seen[plain]}"
    return found


def _dependencies(
    package: Package, named: Mapping[str, Sequence[Package]], refs: Mapping[int, str]
) -> Iterator[str]:
    """A dependency entry names the keys that make the package unique in the file."""
    for entry in package.dependencies or ():
        name = locked_name(Ecosystem.PYPI, entry.get("name"))
        wanted = entry.get("version")
        for each in named.get(name, ()):
            if wanted is None or str(each.version) == wanted:
                yield refs[id(each)]


_File = PackageWheel | PackageSdist | PackageArchive


def _stated(package: Package) -> Iterator[_File]:
    yield from (each for each in (package.sdist, package.archive) if each is not None)
    yield from package.wheels or ()


def _files(package: Package) -> Iterator[LockedFile]:
    return map(_file, _stated(package))


def _file(each: _File) -> LockedFile:
    hashes = tuple(digest(algorithm.lower(), value) for algorithm, value in each.hashes.items())
    name = "" if isinstance(each, PackageArchive) else each.filename
    return LockedFile(
        text(name, "a file name"), text(each.url or "", "a URL"), hashes, each.size or 0
    )


def _origin(package: Package) -> str:
    if package.vcs is not None:
        kind = text(package.vcs.type, "a kind of repository")
        return f"{kind}+{origin_of(text(package.vcs.url or 'file:', 'a URL'))}"
    # An installer may take the path although there is a URL too.
    if package.directory is not None or any(each.path for each in _stated(package)):
        return "file: of this machine"
    urls = [each.url for each in _files(package) if each.url]
    if package.index is not None:
        urls.append(text(package.index, "the URL of an index"))
    return next(filter(None, (origin_of(each, PUBLIC_HOSTS) for each in urls)), "")


def _short(error: Any) -> str:  # noqa: ANN401  # any exception of the two parsers
    """The parser's message, which quotes the file: printable and bounded."""
    return "".join(each if each.isprintable() else "?" for each in str(error))[:300]
