"""Chooses the reader of a lock file by its name, and bounds what is read."""

from __future__ import annotations

import os
import stat

from cellwall.packages.locks.model import MAX_LOCK_BYTES, BadLock, Lock
from cellwall.packages.locks.npm import parse_package_lock
from cellwall.packages.locks.pylock import parse_pylock
from cellwall.packages.locks.requirements import parse_requirements
from cellwall.packages.locks.uv import parse_uv_lock

KINDS = "pylock.toml, uv.lock, package-lock.json, npm-shrinkwrap.json, requirements.txt"
_READERS = {
    "uv.lock": parse_uv_lock,
    "package-lock.json": parse_package_lock,
    "npm-shrinkwrap.json": parse_package_lock,
    # The lock that npm keeps beside what it has installed.
    ".package-lock.json": parse_package_lock,
}


def read_lock(path: str) -> Lock:
    """The lock in a file; raises `BadLock` for anything else."""
    name = os.path.basename(path)
    if name in _READERS:
        parse = _READERS[name]
    elif name.startswith("pylock.") and name.endswith(".toml"):
        parse = parse_pylock
    elif name.endswith(".txt"):
        parse = parse_requirements
    else:
        raise BadLock(
            f"{ascii(name)[:80]} is not the name of a lock file", hint=f"Cellwall reads {KINDS}."
        )
    return parse(_read_bounded(path, name))


def _read_bounded(path: str, name: str) -> bytes:
    try:
        # O_NONBLOCK: a FIFO of this name must not block the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadLock(f"{ascii(name)[:80]} is not a file")
            data = file.read(MAX_LOCK_BYTES + 1)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise BadLock(f"{ascii(name)[:80]} cannot be read: {reason}") from None
    if len(data) > MAX_LOCK_BYTES:
        raise BadLock(f"{ascii(name)[:80]} is larger than {MAX_LOCK_BYTES:,} bytes")
    return data
