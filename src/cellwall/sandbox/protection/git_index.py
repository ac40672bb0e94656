"""Protected files that git in a run could not check out, told to the user (FS-8).

`git checkout other-branch` inside goes on where it may not replace CLAUDE.md: the file stays as it
was, and only git's own words in the output say so. The index tells which version git meant. It is
read for that message alone: an index that cannot be read gives none. gitformat-index(5).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Collection, Iterator

from cellwall.core.outcomes import Finding
from cellwall.sandbox.files.descriptors import held, open_regular
from cellwall.sandbox.files.root import Root

_INDEX = ".git/index"
_MAX_BYTES = 16 * 1024 * 1024
_MAX_NAME_BYTES = 4096
_MAX_TOLD = 20
_FIXED_BYTES = 62
_OID = slice(40, 60)
_EXTENDED = 0x4000


def read_index(root: Root) -> bytes:
    """The index of the repository at the top, as it is; empty where there is none."""
    return _read(root, _INDEX, _MAX_BYTES) or b""


def left_as_they_were(
    root: Root, protected: Collection[str], before: bytes, after: bytes
) -> tuple[Finding, ...]:
    """The protected files of which the index now names another version than lies there."""
    if not after or before == after:
        return ()
    try:
        old = dict(_entries(before, protected)) if before else {}
        new = dict(_entries(after, protected))
    except (ValueError, IndexError, struct.error):
        return ()
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    left = [path for path in changed if new.get(path) != _blob_id(root, path)]
    told = [_finding(path) for path in left[:_MAX_TOLD]]
    if len(left) > _MAX_TOLD:
        told.append(Finding("workspace", "low", f"{len(left) - _MAX_TOLD} more files like that"))
    return tuple(told)


def _finding(path: str) -> Finding:
    return Finding(
        "workspace",
        "low",
        f"{path!r} is protected and was left as it is, while git checked out another version of it "
        "inside; `git status` outside shows the difference, `git restore` takes that version",
    )


def _entries(data: bytes, protected: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Path and object id of each entry that is protected, or lies in a protected directory."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(version)
    depth = max((path.count("/") for path in protected), default=0)
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", data, start + _FIXED_BYTES - 2)
        at += _FIXED_BYTES + (2 if flags & _EXTENDED else 0)
        if version == 4:
            stripped, at = _varint(data, at)
            name = name[: len(name) - stripped]
        else:
            name = b""
        end = data.index(b"\0", at)
        name += data[at:end]
        if len(name) > _MAX_NAME_BYTES:
            raise ValueError(len(name))
        at = end + 1 if version == 4 else end + 8 - (end - start) % 8
        path = os.fsdecode(name)
        parts = path.split("/", depth + 1)[: depth + 1]
        if any("/".join(parts[:end]) in protected for end in range(1, len(parts) + 1)):
            yield path, data[start + _OID.start : start + _OID.stop]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1


def _blob_id(root: Root, path: str) -> bytes | None:
    data = _read(root, path, _MAX_BYTES)
    if data is None:
        return None
    # The name that git gives to contents, not a protection.
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


def _read(root: Root, path: str, most: int) -> bytes | None:
    try:
        with (
            root.node(path) as node,
            held(open_regular(node)) as fd,
            open(fd, "rb", closefd=False) as file,
        ):
            return file.read(most)
    except OSError:
        return None
