"""The lock file of a workspace, `pylock.toml` (PEP 751), compared and merged (PKG-5). Pure.

The file is in the workspace, so code inside can write it: it is untrusted text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cellwall.packages.inventory import InstalledPackage
from cellwall.packages.locks.model import MAX_LOCK_BYTES, BadLock
from cellwall.packages.locks.pylock import parse_pylock
from cellwall.packages.names import Ecosystem

LOCK_NAME = "pylock.toml"
_ALGORITHM = "sha256"


@dataclass(frozen=True, slots=True)
class WorkspaceLock:
    """The files of a lock with their hashes."""

    files: tuple[InstalledPackage, ...]
    is_own: bool
    """Whether Cellwall wrote the file; a lock of another tool is read and left as it is."""


def read_workspace_lock(content: bytes) -> WorkspaceLock:
    """Every file of the lock with its hash; raises `BadLock` for another form."""
    if len(content) > MAX_LOCK_BYTES:
        raise _bad(f"it is larger than {MAX_LOCK_BYTES} bytes")
    try:
        lock = parse_pylock(content)
    except BadLock as error:
        raise _bad(error.message) from None
    files = [
        InstalledPackage(
            Ecosystem.PYPI,
            package.name,
            package.version,
            each.filename,
            each.url,
            _ALGORITHM,
            digest,
            each.size,
        )
        for package in lock.packages
        if package.version is not None
        for each in package.files
        for algorithm, digest in each.hashes
        if algorithm == _ALGORITHM and each.filename
    ]
    return WorkspaceLock(tuple(files), is_own=lock.created_by == "cellwall")


def changed_hash(
    locked: Iterable[InstalledPackage], served: Iterable[InstalledPackage]
) -> InstalledPackage | None:
    """The first served file that the lock names with another hash, or whose source it does."""
    known = {(each.name, each.filename): each.digest for each in locked}
    return next(
        (
            each
            for each in served
            if any(known.get((each.name, name), value) != value for name, value in _digests(each))
        ),
        None,
    )


def _digests(package: InstalledPackage) -> list[tuple[str, str]]:
    found = [(package.filename, package.digest)]
    if package.source is not None:
        found += [(package.source.filename, value) for _, value in package.source.hashes]
    return found


def merge_locks(
    locked: Sequence[InstalledPackage], served: Sequence[InstalledPackage]
) -> list[InstalledPackage]:
    """The lock after an installation: a served package replaces its other versions."""
    versions = {each.name: each.version for each in served}
    kept = [each for each in locked if versions.get(each.name, each.version) == each.version]
    return list({(each.name, each.filename): each for each in (*kept, *served)}.values())


def _bad(problem: str) -> BadLock:
    return BadLock(
        f"{LOCK_NAME} of this workspace cannot be read: {problem}",
        hint=f"Restore or remove {LOCK_NAME}, then install again.",
    )
