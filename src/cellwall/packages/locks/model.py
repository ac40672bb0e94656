"""A lock file in one form for all kinds: packages, versions, files with hashes, dependencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from cellwall.core.errors import BadInput
from cellwall.packages.names import Ecosystem, canonical_name

MAX_LOCK_BYTES = 16 * 2**20
MAX_LOCKED_PACKAGES = 50_000
MAX_DEPENDENCIES = 200_000
MAX_VERSIONS_OF_ONE_NAME = 100
_MAX_TEXT = 2000
_DIGEST_BYTES = {"sha256": 32, "sha384": 48, "sha512": 64, "sha1": 20, "md5": 16}
STRONG_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})


class BadLock(BadInput):
    """A lock file cannot be read. The message names the entry, never a host path."""

    default_code = "CW-BAD-LOCK"


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One artifact of a package; without name and URL where the lock has hashes only."""

    filename: str = ""
    url: str = ""
    hashes: tuple[tuple[str, str], ...] = ()
    """Algorithm and hexadecimal digest."""
    size: int = 0
    """In bytes, as the lock states it; 0 where it does not."""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock. `ref` is unique within the lock."""

    ref: str
    ecosystem: Ecosystem
    name: str
    version: str | None
    """None: the lock does not pin a version."""
    files: tuple[LockedFile, ...] = ()
    dependencies: tuple[str, ...] = ()
    """The `ref` of each package that this one needs."""
    is_direct: bool = False
    """Whether the project itself requires the package."""
    origin: str = ""
    """Where the package comes from, if the lock names a place other than the public registry."""
    licence: str = ""
    marker: str = ""
    """The condition on the machine under which the package is installed (PyPI)."""
    is_bundled: bool = False
    """Whether the package lies in the file of another one, and has no hash of its own (npm)."""

    @property
    def purl(self) -> str:
        return package_url(self.ecosystem, self.name, self.version)

    @property
    def hashes(self) -> frozenset[tuple[str, str]]:
        return frozenset(each for file in self.files for each in file.hashes)


@dataclass(frozen=True, slots=True)
class Lock:
    """The packages of one lock file, in the order of the file."""

    kind: str
    packages: tuple[LockedPackage, ...]
    has_graph: bool = True
    """False where the file does not say which package needs which."""
    requirements: Mapping[str, str] = field(default_factory=dict)
    """The names and versions that the project asks for, where the file has them (npm)."""
    local: tuple[str, ...] = ()
    """The paths of packages that are folders or links of the project itself (npm)."""
    created_by: str = ""
    """The tool that wrote the file, where the file names it (PEP 751)."""
    by_ref: Mapping[str, LockedPackage] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_ref", {each.ref: each for each in self.packages})

    def path_to(self, name: str) -> tuple[LockedPackage, ...]:
        """The shortest path from a direct requirement to the package; empty if there is none."""
        came_from: dict[str, str | None] = {
            each.ref: None for each in self.packages if each.is_direct
        }
        waiting = deque(came_from)
        while waiting:
            ref = waiting.popleft()
            package = self.by_ref[ref]
            if package.name == name:
                return tuple(self._steps_back(ref, came_from))[::-1]
            for needed in package.dependencies:
                if needed not in came_from:
                    came_from[needed] = ref
                    waiting.append(needed)
        return ()

    def _steps_back(
        self, ref: str | None, came_from: Mapping[str, str | None]
    ) -> Iterable[LockedPackage]:
        while ref is not None:
            yield self.by_ref[ref]
            ref = came_from[ref]


Entry = TypeVar("Entry")


def by_name(entries: Iterable[tuple[str, Entry]]) -> dict[str, list[Entry]]:
    """The entries of each name; the bound keeps the resolution of dependencies linear."""
    found: dict[str, list[Entry]] = {}
    for name, entry in entries:
        found.setdefault(name, []).append(entry)
    if any(len(each) > MAX_VERSIONS_OF_ONE_NAME for each in found.values()):
        raise BadLock(f"the lock file names one package more than {MAX_VERSIONS_OF_ONE_NAME} times")
    return found


def check_counts(packages: int, dependencies: int) -> None:
    """Raise `BadLock` for more than a lock file may name."""
    if packages > MAX_LOCKED_PACKAGES:
        raise BadLock(f"the lock file names more than {MAX_LOCKED_PACKAGES:,} packages")
    if dependencies > MAX_DEPENDENCIES:
        raise BadLock(f"the lock file names more than {MAX_DEPENDENCIES:,} dependencies")


def bounded(packages: list[LockedPackage]) -> tuple[LockedPackage, ...]:
    """The packages, if their references are unique and the graph is closed and of bounded size."""
    check_counts(len(packages), sum(len(each.dependencies) for each in packages))
    if len({each.ref for each in packages}) < len(packages):
        raise BadLock("the lock file names one package and version twice")
    return tuple(packages)


def package_url(ecosystem: Ecosystem, name: str, version: str | None) -> str:
    """The package URL (ECMA-427): a scope is its namespace."""
    scope, _, plain = name.rpartition("/")
    namespace = f"{quote(scope, safe='')}/" if scope else ""
    pinned = f"@{quote(version, safe='')}" if version is not None else ""
    return f"pkg:{ecosystem.value}/{namespace}{quote(plain)}{pinned}"


def locked_name(ecosystem: Ecosystem, value: object) -> str:
    """The canonical name of an entry."""
    try:
        return canonical_name(ecosystem, text(value, "a package name"))
    except BadInput as error:
        raise BadLock(error.message) from None


def text(value: object, what: str) -> str:
    """A bounded, printable string; anything else is not a lock file of this kind."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise BadLock(f"{what} is not a printable text of at most {_MAX_TEXT} characters")
    return value


def table(value: object, what: str) -> Mapping[str, Any]:
    """A table or an object; anything else is not a lock file of this kind."""
    if not isinstance(value, Mapping):
        raise BadLock(f"{what} is not a table")
    return value


def listed(value: object, what: str) -> list[Any]:
    """A list; anything else is not a lock file of this kind."""
    if not isinstance(value, list):
        raise BadLock(f"{what} is not a list")
    return value


def digest(algorithm: str, hexadecimal: str) -> tuple[str, str]:
    """One hash with a digest of the length that its algorithm has."""
    size = _DIGEST_BYTES.get(algorithm)
    try:
        found = bytes.fromhex(hexadecimal)
    except ValueError:
        found = b""
    if size is None or len(found) != size:
        raise BadLock(f"a {text(algorithm, 'a hash algorithm')[:20]} hash is malformed")
    return algorithm, found.hex()


def origin_of(url: str, public_hosts: Iterable[str] = ()) -> str:
    """Scheme, host and, for a repository, the path of a URL, without credentials and query.

    Empty for the hosts of the public registry.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "a malformed URL"
    if parts.scheme in {"http", "https"}:
        if parts.scheme == "https" and host in public_hosts and port in {None, 443}:
            return ""
        return f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    if not host:
        return f"{parts.scheme or 'file'}: of this machine"
    return f"{parts.scheme}://{host}{parts.path}"
