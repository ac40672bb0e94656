"""Data of the guard's models, read whole and checked by hash.

Attack: without its words or weights a model finds nothing, and says so of every text. So damage is
an error, never a silent absence.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from cellwall.core.errors import CellwallError

MAX_DATA_BYTES = 8_000_000


def read_shipped(package: str, name: str) -> bytes:
    """A file of a package; empty if it cannot be read."""
    try:
        with (resources.files(package) / name).open("rb") as stream:
            return stream.read(MAX_DATA_BYTES)
    except OSError:
        return b""


def read_checked(package: str, name: str, sha256: str) -> str:
    """The text of a file, or `CellwallError` if it is not the one that was trained."""
    data = read_shipped(package, name)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise damaged()
    return data.decode()


def damaged() -> CellwallError:
    """The error of a file that is not what was trained."""
    return CellwallError(
        "the guard's classifier is missing or damaged, so no text can be looked at",
        hint="Install Cellwall anew.",
        code="CW-NO-CLASSIFIER",
    )
