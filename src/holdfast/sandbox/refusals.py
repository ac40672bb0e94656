"""What the file API says when it refuses: the user's own path, a code and a mend (ERR-1)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import WorkspaceError

_REFUSALS = {
    errno.EXDEV: ("HF-PATH-OUTSIDE", "leads out of the workspace"),
    errno.ELOOP: ("HF-PATH-OUTSIDE", "goes through a link that is not followed"),
    errno.EINVAL: ("HF-PATH-INVALID", "does not end in a name that can be used here"),
    errno.ENAMETOOLONG: ("HF-PATH-INVALID", "is too long"),
    errno.ENOENT: ("HF-NOT-FOUND", "does not exist"),
    errno.ENOTDIR: ("HF-NOT-A-DIRECTORY", "is no directory, or goes through something that is not"),
    errno.EISDIR: ("HF-NOT-A-FILE", "is a directory"),
    errno.EEXIST: ("HF-ALREADY-EXISTS", "exists already"),
    errno.ENOTEMPTY: ("HF-NOT-EMPTY", "is a directory that is not empty"),
    errno.ENOSPC: ("HF-DISK-FULL", "does not fit: the disk is full"),
    errno.EDQUOT: ("HF-DISK-FULL", "does not fit: the quota is used up"),
    errno.EFBIG: ("HF-FILE-TOO-LARGE", "is larger than a file may be here"),
    errno.EROFS: ("HF-READ-ONLY", "lies on a read-only file system"),
    errno.EACCES: ("HF-NO-PERMISSION", "may not be accessed by this user"),
    errno.EPERM: ("HF-NO-PERMISSION", "may not be accessed by this user"),
    errno.EBUSY: ("HF-IN-USE", "is in use"),
    errno.EAGAIN: ("HF-IN-USE", "is being moved all the time"),
}


_MENDS = {
    "HF-PATH-OUTSIDE": "Use a path inside the workspace, without links that lead out.",
    "HF-PATH-INVALID": "Use a path relative to the workspace, such as src/main.py.",
    "HF-NOT-A-FILE": "Name a regular file.",
    "HF-NOT-A-DIRECTORY": "Name a directory, or move away what is there.",
    "HF-PATH-PROTECTED": "Leave it out; what is protected is in the configuration.",
    "HF-NOT-EMPTY": "Remove it recursively.",
    "HF-DISK-FULL": "Remove files, or raise the disk limit.",
    "HF-FILE-TOO-LARGE": "Use a smaller file, or raise the file size limit.",
    "HF-EXTENSION-BLOCKED": "Use another name, or change the blocked extensions.",
    "HF-WORKSPACE-FULL": "Remove files, or raise the limit.",
    "HF-ARCHIVE-INVALID": "Send a tar archive, plain or gzip, as `tar -c` or `tar -cz` writes it.",
    "HF-ARCHIVE-TRUNCATED": "Send the whole archive, with the end that `tar` writes.",
    "HF-ARCHIVE-LINK": "Pack what links point to instead: `tar --dereference --hard-dereference`.",
    "HF-ARCHIVE-SPECIAL": "Pack regular files and directories only.",
    "HF-ARCHIVE-SPARSE": "Pack the file without `--sparse`.",
    "HF-ARCHIVE-CONFLICT": "Pack every name once, as a file or as a directory.",
    "HF-ARCHIVE-TOO-LARGE": "Use a smaller tree, or raise the limit.",
    "HF-LINK-IN-TREE": "Remove it, name a smaller directory, or leave such names out: skip_links.",
    "HF-WATCH-LIMIT": "Close other watches, or raise fs.inotify.max_user_instances.",
    "HF-WATCH-TOO-LARGE": "Watch a smaller directory, or only its own names: recursive=False.",
    "HF-WORKSPACE-TOO-LARGE": "Name a smaller directory, or raise the file count limit.",
}


def refused(path: str, code: str, why: str, *, detail: str = "") -> WorkspaceError:
    """The error that names the path as the user typed it and nothing else of the host (ERR-1)."""
    shown = repr(path if len(path) <= 200 else path[:200] + "…")
    return WorkspaceError(f"{shown} {why}", mend=_MENDS.get(code, ""), code=code, detail=detail)


def refused_archive(code: str, why: str) -> WorkspaceError:
    """The error for an archive as a whole, of which no single name is to blame."""
    return WorkspaceError(f"the archive {why}", mend=_MENDS.get(code, ""), code=code)


def refusal(path: str, error: OSError) -> WorkspaceError:
    """What an operating system's error on `path` means to a user."""
    code, why = _REFUSALS.get(error.errno or 0, ("HF-WORKSPACE", "cannot be used"))
    return refused(path, code, why, detail=errno.errorcode.get(error.errno or 0, ""))


@contextmanager
def telling(path: str) -> Iterator[None]:
    """An operating system's error in the block is told as ours, about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error
