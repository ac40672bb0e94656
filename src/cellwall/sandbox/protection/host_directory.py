"""A user's directory as a workspace: opened or refused (FS-1), and the mounts that cover its
protected names (FS-4, FS-8).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import cellwall
from cellwall.core.errors import WorkspaceError
from cellwall.core.git_names import GIT_LAYOUT, is_git_layout
from cellwall.core.protected_names import NameTreatment
from cellwall.core.text import to_bytes
from cellwall.core.types import Cover, WorkspaceMode
from cellwall.sandbox.files.descriptors import OPEN_DIRECTORY, is_empty_dir
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.paths import parents_of
from cellwall.sandbox.linux._syscalls import file_handle
from cellwall.sandbox.protection.found_names import ProtectedPath

_PACKAGE = os.path.dirname(os.path.realpath(cellwall.__file__))

# Each of these exposes the machine, a whole home, or files that Cellwall itself relies on.
_NEVER = frozenset(
    (
        *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/media"),
        *("/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr"),
        *("/usr/local", "/var", "/var/lib", "/var/log", "/var/tmp", "/var/run"),
    )
)
_NEVER_BELOW = ("/proc", "/sys", "/dev", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib", "/run")

# The top directories in which a cell has files of its own.
_OF_CELLS = (
    *_NEVER_BELOW,
    *("/lib32", "/lib64", "/libx32", "/workspace", "/code", "/skills", "/.cellwall"),
    *("/opt/python", "/opt/packages"),
)
_MAX_OWN_PATH_BYTES = 1024
_MAX_OWN_PATH_PARTS = 64

# The content is protected by this name, which is lost when the directory becomes the root.
_NEVER_WITHIN = frozenset({".git", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"})


def open_host_directory(directory: str, *, state_home: str, base: str = "") -> tuple[int, str]:
    """An O_PATH descriptor of the directory, and its real path.

    The checks use the descriptor's path, not the path that was typed: a path can be replaced
    between check and use, the descriptor cannot. A relative name starts at `base`, if given.
    """
    if not to_bytes(directory, what="the workspace's name") or "\0" in directory:
        raise _refuse("no directory was named", "Write --workspace DIR[:ro|rw|cow].")
    try:
        descriptor = os.open(os.path.join(base, directory.rstrip("/") or "/"), OPEN_DIRECTORY)
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


def cellwall_paths_below(place: str) -> tuple[str, ...]:
    """Paths of Cellwall's own installation below `place`: code that writes there controls it."""
    paths = set()
    for own in (_PACKAGE, os.path.realpath(sys.prefix)):
        prefix = place.rstrip("/") + "/"
        if own.startswith(prefix):
            paths.add(own.removeprefix(prefix))
    return tuple(sorted(paths))


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
    quoted = repr(directory[:200])
    match error.errno:
        case errno.ENOENT:
            return f"the workspace {quoted} does not exist", "Create it first, or check the name."
        case errno.ENOTDIR | errno.ELOOP:
            if os.path.islink(directory.rstrip("/")):
                return f"the workspace {quoted} is a symlink", "Give the directory it points to."
            return f"the workspace {quoted} is not a directory", "Give a directory."
        case errno.EACCES:
            return f"the workspace {quoted} cannot be opened", "Check its permissions."
        case errno.ENAMETOOLONG:
            return "the workspace's name is too long", "Give a shorter path."
        case _:
            return f"the workspace {quoted} cannot be opened", "Check that it is a directory."


def _refuse(message: str, hint: str) -> WorkspaceError:
    return WorkspaceError(message, hint=hint, code="CW-WORKSPACE-REFUSED")


_NUMBER = "inode "


@dataclass(frozen=True, slots=True)
class ExtraCovers:
    """Paths to cover besides the protected names that a scan found."""

    read_only: tuple[str, ...] = ()
    """Placeholders of this run and of others, and empty directories in their places."""
    pinned: tuple[str, ...] = ()
    """Files of another type in their places, which may be changed but not replaced."""

    def merge(self, other: ExtraCovers) -> ExtraCovers:
        return ExtraCovers(
            tuple(dict.fromkeys((*self.read_only, *other.read_only))),
            tuple(dict.fromkeys((*self.pinned, *other.pinned))),
        )


def covers_for(
    protected: Sequence[ProtectedPath], mode: WorkspaceMode, *, extra: ExtraCovers | None = None
) -> tuple[Cover, ...]:
    """The mounts that init makes, in order.

    Hidden names are covered in every mode. Read-only names are covered where writes reach the host
    at once; there the directories above a protected name are pinned, or code could rename one away
    and create the name anew, or move a hidden name past another run that is just starting.
    """
    extra = extra or ExtraCovers()
    required: dict[str, Cover] = {path: ("ro", path) for path in extra.read_only}
    for item in protected:
        if item.treatment is NameTreatment.HIDE:
            required[item.path] = ("hide", item.path)
        elif mode is WorkspaceMode.READ_WRITE and not item.target:
            # A symlink to instructions is compared after the run, and restored.
            if item.is_symlink:
                raise WorkspaceError(
                    f"{item.path[:200]} is a symlink with a protected name, and no mount can keep "
                    "code from replacing it",
                    hint="Make it a real file or directory, or give the workspace as :cow or :ro.",
                    code="CW-WORKSPACE-SYMLINK",
                )
            required.setdefault(item.path, ("ro", item.path))
    if mode is not WorkspaceMode.READ_WRITE:
        return tuple(required[path] for path in sorted(required))
    covers: dict[str, Cover] = {path: ("pin", path) for path in extra.pinned}
    targets = (item.path for item in protected if item.target)
    for path in (*required, *extra.pinned, *targets):
        for above in filter(None, parents_of(path)):
            covers.setdefault(above, ("pin", above))
    covers |= required
    # From the top down: a mount over a directory would hide the mounts below it.
    return tuple(covers[path] for path in sorted(covers))


def is_empty_path(tree: FileTree, item: ProtectedPath) -> bool:
    """Whether a protected name is an empty directory, such as a placeholder."""
    try:
        with tree.parent(item.path) as (parent, name):
            return item.is_dir and is_empty_dir(parent, name)
    except OSError:
        return False


def cover_identities(tree: FileTree, covers: Iterable[Cover]) -> dict[str, str]:
    """The inode of each name that a mount keeps code from writing."""
    paths = (path for kind, path in covers if kind != "pin")
    return {path: _cover_identity(tree, path) for path in paths}


def lost_covers(tree: FileTree, covered: Mapping[str, str]) -> list[str]:
    """The names whose mount is gone: the kernel detaches a mount when the name under it is removed
    or replaced on the host, as editors and git do when they save a file."""
    return sorted(path for path, was in covered.items() if _cover_identity(tree, path) != was)


def intact_covers(tree: FileTree, covered: Mapping[str, str]) -> frozenset[str]:
    """The names whose mount certainly existed the whole time. An inode number alone does not prove
    that: the file system reuses it after a removal."""
    certain = {path: was for path, was in covered.items() if not was.startswith(_NUMBER)}
    return frozenset(certain).difference(lost_covers(tree, certain))


def _cover_identity(tree: FileTree, path: str) -> str:
    if "/" not in path and (handle := file_handle(tree.fd, path)):
        return handle  # one system call instead of three; a name in the root follows no symlink
    try:
        with tree.node(path) as node:
            return file_handle(node) or f"{_NUMBER}{os.fstat(node).st_ino}"
    except OSError:
        return ""
