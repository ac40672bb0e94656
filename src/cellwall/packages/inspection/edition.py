"""Which inspection this is: a digest of its code, its data and what reads the files (PKG-1).

A passed inspection holds for one edition: an update of Cellwall, of Python or of a library that
parses the files inspects every artifact again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata

from cellwall.core import LOADED_AT_S

_PARTS = ("core", "packages", "parsing")
"""All that the inspection imports of ours; more than it needs, so that none is forgotten."""
_LIBRARIES = ("google-re2", "hyperscan", "packaging")


@cache
def inspection_edition() -> str | None:
    """The digest; None where the running code is not known to be the code on the disk."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        return digest_of([os.path.join(ours, part) for part in _PARTS], loaded_at_s=LOADED_AT_S)
    except (OSError, metadata.PackageNotFoundError):
        return None


def digest_of(folders: Sequence[str], *, loaded_at_s: float) -> str | None:
    """The digest of these folders; None if a file in them has changed since that time.

    A process that outlives an update runs the old code: it must not vouch for the new one.
    """
    found = hashlib.sha256(sys.version.encode())
    for name in _LIBRARIES:
        found.update(f"{name} {metadata.version(name)}\n".encode())
    for path in _files(folders):
        with open(path, "rb") as opened:
            info = os.fstat(opened.fileno())
            if info.st_ctime >= loaded_at_s:
                return None
            found.update(f"{path} {info.st_size}\n".encode())
            found.update(opened.read())
    return found.hexdigest()


def _files(folders: Sequence[str]) -> Iterator[str]:
    for top in folders:
        for folder, below, names in os.walk(top):
            below[:] = sorted(set(below) - {"__pycache__"})
            yield from (os.path.join(folder, name) for name in sorted(names))
