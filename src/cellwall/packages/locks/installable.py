"""Locks from which Cellwall installs: each package by name, version and hash (PKG-5).

A lock names each file by its hash and by its URL. Only the hash counts: the files come from the
configured index, by name, version and hash, so that no lock can name another source. An audit
reads every lock; an installation needs more of one:

  (1) from 1 to MAX_INSTALLED_PACKAGES packages, each with a version of the registry;
  (2) `pylock.toml`: wheels with SHA-256, for sources are not built; no choice of extras or groups;
  (3) `package-lock.json`: SHA-512 for each package; no folder, link or repository. npm does use the
      URL of a file: it must be that of the package and version in a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cellwall.core.packages import Package
from cellwall.packages.locks.model import BadLock, Lock, LockedFile, LockedPackage
from cellwall.packages.locks.npm import is_tarball_of, parse_package_lock
from cellwall.packages.locks.pylock import parse_pylock

MAX_INSTALLED_BYTES = 8 * 1024 * 1024
"""Of a lock file that is installed."""
MAX_INSTALLED_PACKAGES = 2000
_PYLOCK_HINT = "Make the lock anew: cellwall packages lock NAME -o pylock.toml"
_NPM_HINT = "Make the lock anew: cellwall packages lock --ecosystem npm NAME -o package-lock.json"
# Conditions on what a caller selects from a lock; they have no meaning in a requirement.
_SELECTIONS = ("extras", "dependency_groups")


def installable_pylock(content: bytes) -> Lock:
    """The lock in a `pylock.toml`; raises `BadLock` for one that cannot be installed."""
    return _check(content, parse_pylock, _pylock_problems, _PYLOCK_HINT)


def installable_package_lock(content: bytes) -> Lock:
    """The lock in a `package-lock.json`; raises `BadLock` for one that cannot be installed."""
    return _check(content, parse_package_lock, _npm_problems, _NPM_HINT)


def packages_of(lock: Lock) -> tuple[Package, ...]:
    """Each name and version once, in the order of the lock."""
    return tuple(dict.fromkeys(Package(each.name, each.version or "") for each in lock.packages))


def pins_of(lock: Lock) -> bytes:
    """An installable `pylock.toml` as requirements with hashes."""
    return "".join(map(_render_pin, lock.packages)).encode()


def _check(
    content: bytes,
    parse: Callable[[bytes], Lock],
    problems: Callable[[Lock], Iterator[str]],
    hint: str,
) -> Lock:
    if len(content) > MAX_INSTALLED_BYTES:
        raise BadLock(f"the lock is larger than {MAX_INSTALLED_BYTES:,} bytes", hint=hint)
    try:
        lock = parse(content)
    except BadLock as error:
        raise BadLock(error.message, hint=error.hint or hint) from None
    # (1)
    if not 0 < len(lock.packages) <= MAX_INSTALLED_PACKAGES:
        text = f"a lock to install has from 1 to {MAX_INSTALLED_PACKAGES:,} packages"
        raise BadLock(text, hint=hint)
    for problem in problems(lock):
        raise BadLock(problem, hint=hint)
    return lock


# (2)
def _pylock_problems(lock: Lock) -> Iterator[str]:
    for each in lock.packages:
        wheels = _wheels(each)
        if each.version is None or not each.files or not all(f.filename for f in each.files):
            yield f"{each.name} has no version of an index, but a folder or a URL"
        if any(word in each.marker for word in _SELECTIONS):
            yield f"{each.name} depends on an extra or a group of the lock"
        if not wheels:
            yield f"{each.name} exists as source only, and sources are not built"
        if not all("sha256" in dict(wheel.hashes) for wheel in wheels):
            yield f"{each.name} has a file without a SHA-256 hash"


def _wheels(package: LockedPackage) -> list[LockedFile]:
    return [each for each in package.files if each.filename.endswith(".whl")]


def _render_pin(package: LockedPackage) -> str:
    marker = f" ; {package.marker}" if package.marker else ""
    digests = dict.fromkeys(dict(each.hashes)["sha256"] for each in _wheels(package))
    hashes = " \\\n".join(f"    --hash=sha256:{digest}" for digest in digests)
    return f"{package.name}=={package.version}{marker} \\\n{hashes}\n"


# (3)
def _npm_problems(lock: Lock) -> Iterator[str]:
    for path in lock.local:
        yield f"{path[:100]} is a folder or a link of the project, not a package of npm"
    for each in lock.packages:
        if not each.is_bundled and not any(name == "sha512" for name, _ in each.hashes):
            yield f"{each.name[:100]} has no SHA-512 hash"
    yield from foreign_places(lock)


def foreign_places(lock: Lock) -> Iterator[str]:
    """The packages of a `package-lock.json` that npm would take from elsewhere."""
    for each in lock.packages:
        for file in each.files:
            if file.url and (each.is_bundled or not _is_in_registry(file.url, each)):
                yield f"{each.name[:100]} comes from another place than its own in a registry"


def _is_in_registry(url: str, package: LockedPackage) -> bool:
    """Whether a URL is that of the tarball of this package: npm installs what is there."""
    return url.lower().startswith(("http://", "https://")) and is_tarball_of(package, url)
