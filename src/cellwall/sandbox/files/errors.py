"""Errors of the file API: the path as the user typed it, a code and a hint (ERR-1)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cellwall.core.errors import WorkspaceError

_BY_ERRNO = {
    errno.EXDEV: ("CW-PATH-OUTSIDE", "leads out of the workspace"),
    errno.ELOOP: ("CW-PATH-OUTSIDE", "goes through a link that is not followed"),
    errno.EINVAL: ("CW-PATH-INVALID", "does not end in a usable name"),
    errno.ENAMETOOLONG: ("CW-PATH-INVALID", "is too long"),
    errno.ENOENT: ("CW-NOT-FOUND", "does not exist"),
    errno.ENOTDIR: ("CW-NOT-A-DIRECTORY", "is not a directory, or a part of the path is not"),
    errno.EISDIR: ("CW-NOT-A-FILE", "is a directory"),
    errno.EEXIST: ("CW-ALREADY-EXISTS", "exists already"),
    errno.ENOTEMPTY: ("CW-NOT-EMPTY", "is a directory that is not empty"),
    errno.ENOSPC: ("CW-DISK-FULL", "does not fit: the disk is full"),
    errno.EDQUOT: ("CW-DISK-FULL", "does not fit: the quota is used up"),
    errno.EFBIG: ("CW-FILE-TOO-LARGE", "is larger than a file may be here"),
    errno.EROFS: ("CW-READ-ONLY", "lies on a read-only file system"),
    errno.EACCES: ("CW-NO-PERMISSION", "cannot be accessed by this user"),
    errno.EPERM: ("CW-NO-PERMISSION", "cannot be accessed by this user"),
    errno.EBUSY: ("CW-IN-USE", "is in use"),
    errno.EAGAIN: ("CW-IN-USE", "is moved too often to be opened"),
}


_HINTS = {
    "CW-PATH-OUTSIDE": "Use a path inside the workspace, without links that lead out.",
    "CW-PATH-INVALID": "Use a path relative to the workspace, such as src/main.py.",
    "CW-NOT-A-FILE": "Name a regular file.",
    "CW-NOT-A-DIRECTORY": "Name a directory, or remove the file in its place.",
    "CW-PATH-PROTECTED": "Leave the path out; the configuration lists the protected names.",
    "CW-NOT-EMPTY": "Remove it recursively.",
    "CW-DISK-FULL": "Remove files, or raise the disk limit.",
    "CW-FILE-TOO-LARGE": "Use a smaller file, or raise the file size limit.",
    "CW-EXTENSION-BLOCKED": "Use another name, or change the blocked extensions.",
    "CW-WORKSPACE-FULL": "Remove files, or raise the limit.",
    "CW-ARCHIVE-INVALID": "Send a tar archive, plain or gzip, as `tar -c` or `tar -cz` writes it.",
    "CW-ARCHIVE-TRUNCATED": "Send the whole archive, with the end that `tar` writes.",
    "CW-ARCHIVE-LINK": "Pack what links point to instead: `tar --dereference --hard-dereference`.",
    "CW-ARCHIVE-SPECIAL": "Pack regular files and directories only.",
    "CW-ARCHIVE-SPARSE": "Pack the file without `--sparse`.",
    "CW-ARCHIVE-CONFLICT": "Pack every name once, as a file or as a directory.",
    "CW-ARCHIVE-TOO-LARGE": "Use a smaller tree, or raise the limit.",
    "CW-LINK-IN-TREE": "Remove it, name a smaller directory, or leave such names out: skip_links.",
    "CW-WATCH-LIMIT": "Close other watches, or raise fs.inotify.max_user_instances.",
    "CW-WATCH-TOO-LARGE": "Watch a smaller directory, or only its own names: recursive=False.",
    "CW-WORKSPACE-TOO-LARGE": "Name a smaller directory, or raise the file count limit.",
}


def path_error(path: str, code: str, why: str, *, detail: str = "") -> WorkspaceError:
    """An error that names the path as the user typed it, and no other path of the host (ERR-1)."""
    shown = repr(path if len(path) <= 200 else path[:200] + "…")
    return WorkspaceError(f"{shown} {why}", hint=_HINTS.get(code, ""), code=code, detail=detail)


def archive_error(code: str, why: str) -> WorkspaceError:
    """An error about an archive as a whole, not about one member."""
    return WorkspaceError(f"the archive {why}", hint=_HINTS.get(code, ""), code=code)


def from_os_error(path: str, error: OSError) -> WorkspaceError:
    """The error for an OSError on `path`."""
    code, why = _BY_ERRNO.get(error.errno or 0, ("CW-WORKSPACE", "cannot be used"))
    return path_error(path, code, why, detail=errno.errorcode.get(error.errno or 0, ""))


@contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Turn an OSError in the block into a `WorkspaceError` about `path`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(path, error) from error
