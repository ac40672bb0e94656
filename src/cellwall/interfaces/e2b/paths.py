"""Paths of envd and entries of directories.

E2B resolves a relative path below the home of its user, /home/user, and Cellwall below /workspace,
which is the home of a sandbox; /tmp and /dev/shm are reached as well. A path that a client names
below /home/user is taken for the same one below /workspace. A path is judged and resolved by the
runtime, never here (FS-1).
"""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from typing import Any

from cellwall.core.files import FileEntry, memory_root

WORKSPACE = "/workspace"
_HOME = ["home", "user"]
_MAX_SECONDS = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_TYPES = {"file": "FILE_TYPE_FILE", "dir": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_FORMATS = {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "symlink": stat.S_IFLNK}


def below_workspace(path: str) -> str:
    """The path, with E2B's home as the one of the sandbox. `..` is left to the kernel."""
    names = [name for name in path.split("/") if name not in {"", "."}]
    if not path.startswith("/") or names[:2] != _HOME:
        return path
    return "/".join((WORKSPACE, *names[2:]))


def absolute(path: str) -> str:
    """As code in the sandbox names the path; a relative one is below /workspace."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if memory_root(path, second_user=True) is not None:
        return "/".join(("", *parts))
    if path.startswith("/"):
        del parts[:1]
    return "/".join((WORKSPACE, *parts))


def entry_json(entry: FileEntry) -> dict[str, Any]:
    """`filesystem.EntryInfo`. The file API does not tell which user owns a file."""
    mode = stat.S_IMODE(entry.mode)
    return {
        "name": entry.name,
        "type": _TYPES.get(entry.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": absolute(entry.path),
        "size": str(entry.size_bytes),  # int64 is a text in the JSON of Protocol Buffers
        "mode": mode,
        "permissions": stat.filemode(_FORMATS.get(entry.kind, 0) | mode),
        "owner": "user",
        "group": "user",
        "modifiedTime": timestamp(entry.modified_s),
        "isSymlink": entry.kind == "symlink",
    }


def timestamp(seconds: float) -> str:
    """RFC 3339. The time of a file is the choice of the code inside, up to 2**63 seconds."""
    return (
        datetime.fromtimestamp(min(max(0.0, seconds), _MAX_SECONDS), UTC)
        .isoformat()
        .replace("+00:00", "Z")
    )
