"""Opens a host directory that a user gives as a workspace; refuses dangerous ones (FS-1)."""

from __future__ import annotations

import errno
import os
import sys

import cellwall
from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import GIT_LAYOUT, is_git_layout
from cellwall.core.text import to_bytes

_PACKAGE = os.path.dirname(os.path.realpath(cellwall.__file__))

# Each of these exposes the machine, a whole home, or files that Cellwall itself relies on.
_NEVER = frozenset(
    {
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/lib32",
        "/lib64",
        "/media",
        "/mnt",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/tmp",
        "/usr",
        "/usr/local",
        "/var",
        "/var/lib",
        "/var/log",
        "/var/tmp",
        "/var/run",
    }
)
_NEVER_BELOW = ("/proc", "/sys", "/dev", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib", "/run")

# The top directories in which a cell has files of its own.
_OF_CELLS = (
    *_NEVER_BELOW,
    "/lib32",
    "/lib64",
    "/libx32",
    "/workspace",
    "/code",
    "/skills",
    "/.cellwall",
    "/opt/python",
    "/opt/packages",
)
_MAX_OWN_PATH_BYTES = 1024
_MAX_OWN_PATH_PARTS = 64

# The content is protected by this name, which is lost when the directory becomes the root.
_NEVER_WITHIN = frozenset({".git", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"})


def open_host_directory(directory: str, *, state_home: str) -> tuple[int, str]:
    """An O_PATH descriptor of the directory, and its real path.

    The checks use the descriptor's path, not the path that was typed: a path can be replaced
    between check and use, the descriptor cannot.
    """
    if not to_bytes(directory, what="the workspace's name") or "\0" in directory:
        raise _refuse("no directory was named", "Write --workspace DIR[:ro|rw|cow].")
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory.rstrip("/") or "/", flags)
    except OSError as error:
        raise _refuse(*_why(directory, error)) from error
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        _check_place(directory, place, state_home)
        # O_PATH opens an unreadable directory, too; the run would fail later with a vaguer error.
        os.close(
            os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )
    except PermissionError as error:
        os.close(descriptor)
        raise _refuse(
            f"the workspace {directory[:200]!r} cannot be read", "Check its permissions."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, place


def identity_of(descriptor: int) -> tuple[int, int]:
    """Device and inode, which identify a directory under any name."""
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def cellwall_paths_below(place: str) -> tuple[str, ...]:
    """Paths of Cellwall's own installation below `place`: code that writes there controls it."""
    found = set()
    for own in (_PACKAGE, os.path.realpath(sys.prefix)):
        prefix = place.rstrip("/") + "/"
        if own.startswith(prefix):
            found.add(own.removeprefix(prefix))
    return tuple(sorted(found))


def own_path(place: str) -> str | None:
    """The second path of the directory inside a cell; None if that is /workspace already.

    Nothing is mounted over a cell's own files: a project below such a path is refused.
    """
    if place == "/workspace":
        return None
    hint = "Move the project, for example below your home directory."
    # Below /tmp is allowed: the mount point is created in the cell's own /tmp.
    if place == "/tmp" or any(place == own or place.startswith(own + "/") for own in _OF_CELLS):
        why = "a sandbox has files of its own there"
    elif not place.isprintable():
        why = "its path holds a line break or another unprintable character"
        hint = "Rename the folder to a name without such characters."
    elif len(os.fsencode(place)) > _MAX_OWN_PATH_BYTES or place.count("/") >= _MAX_OWN_PATH_PARTS:
        why = f"its path is longer than {_MAX_OWN_PATH_BYTES} bytes or too deep"
        hint = "Move the project to a shorter path."
    else:
        return place
    raise WorkspaceError(
        f"{place[-200:]!r} cannot be shown inside at its own path: {why}",
        hint=hint,
        code="CW-WORKSPACE-OWN-PATH",
    )


def is_forbidden_root(place: str) -> bool:
    """Whether a directory is refused because it holds the system or a whole home."""
    return (
        place in _NEVER
        or place == os.path.realpath(os.path.expanduser("~"))
        or any(place == top or place.startswith(top + "/") for top in _NEVER_BELOW)
        or os.path.dirname(place) == "/home"
        or not _NEVER_WITHIN.isdisjoint(place.split("/"))
    )


def _check_place(directory: str, place: str, state_home: str) -> None:
    state = os.path.realpath(state_home)
    if is_forbidden_root(place):
        raise _refuse(
            f"{directory[:200]!r} cannot be a workspace: it exposes the system or a whole home",
            "Give the one project directory that the code needs.",
        )
    if _is_within_git_dir(place):
        raise _refuse(
            f"{directory[:200]!r} lies within a git directory, whose files git runs or obeys",
            "Give the working tree, or the repository itself.",
        )
    if place == _PACKAGE or place.startswith(_PACKAGE + "/"):
        raise _refuse(
            f"{directory[:200]!r} is a part of Cellwall itself", "Give another directory."
        )
    for inner, outer in ((state, place), (place, state)):
        if inner == outer or inner.startswith(outer.rstrip("/") + "/"):
            raise _refuse(
                f"{directory[:200]!r} overlaps Cellwall's own state",
                "Give another directory, or set CELLWALL_HOME elsewhere.",
            )


def _is_within_git_dir(place: str) -> bool:
    """Whether a directory above has the layout of a git directory, under any name: as a root,
    `hooks` of a bare repository has lost the name that protects it."""
    above = os.path.dirname(place)
    while above != "/":
        if is_git_layout(name for name in GIT_LAYOUT if os.path.lexists(f"{above}/{name}")):
            return True
        above = os.path.dirname(above)
    return False


def _why(directory: str, error: OSError) -> tuple[str, str]:
    shown = repr(directory[:200])
    match error.errno:
        case errno.ENOENT:
            return f"the workspace {shown} does not exist", "Create it first, or check the name."
        case errno.ENOTDIR | errno.ELOOP:
            if os.path.islink(directory.rstrip("/")):
                return f"the workspace {shown} is a symlink", "Give the directory it points to."
            return f"the workspace {shown} is not a directory", "Give a directory."
        case errno.EACCES:
            return f"the workspace {shown} cannot be opened", "Check its permissions."
        case errno.ENAMETOOLONG:
            return "the workspace's name is too long", "Give a shorter path."
        case _:
            return f"the workspace {shown} cannot be opened", "Check that it is a directory."


def _refuse(message: str, hint: str) -> WorkspaceError:
    return WorkspaceError(message, hint=hint, code="CW-WORKSPACE-REFUSED")
