"""The mounts that cover protected names in a user's directory, in order (FS-4, FS-8)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.core.types import Cover, WorkspaceMode
from cellwall.sandbox.files.descriptors import is_empty_dir
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.linux._syscalls import file_handle
from cellwall.sandbox.protection.protected_paths import ProtectedPath, Treatment

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
    found: Sequence[ProtectedPath], mode: WorkspaceMode, *, extra: ExtraCovers | None = None
) -> tuple[Cover, ...]:
    """The mounts that init makes, in order.

    Hidden names are covered in every mode. Read-only names are covered where writes reach the host
    at once; there the directories above a protected name are pinned, or code could rename one away
    and create the name anew, or move a hidden name past another run that is just starting.
    """
    extra = extra or ExtraCovers()
    wanted: dict[str, Cover] = {path: ("ro", path) for path in extra.read_only}
    for item in found:
        if item.treatment is Treatment.HIDE:
            wanted[item.path] = ("hide", item.path)
        elif mode is WorkspaceMode.READ_WRITE and not item.target:
            # A symlink to instructions is compared after the run, and restored.
            if item.is_symlink:
                raise WorkspaceError(
                    f"{item.path[:200]} is a symlink with a protected name, and no mount can keep "
                    "code from replacing it",
                    hint="Make it a real file or directory, or give the workspace as :cow or :ro.",
                    code="CW-WORKSPACE-SYMLINK",
                )
            wanted.setdefault(item.path, ("ro", item.path))
    if mode is not WorkspaceMode.READ_WRITE:
        return tuple(wanted[path] for path in sorted(wanted))
    covers: dict[str, Cover] = {path: ("pin", path) for path in extra.pinned}
    targets = (item.path for item in found if item.target)
    for path in (*wanted, *extra.pinned, *targets):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            way = "/".join(parts[:depth])
            covers.setdefault(way, ("pin", way))
    covers |= wanted
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
    return {path: _identity(tree, path) for path in paths}


def lost_covers(tree: FileTree, covered: Mapping[str, str]) -> list[str]:
    """The names whose mount is gone: the kernel detaches a mount when the name under it is removed
    or replaced on the host, as editors and git do when they save a file."""
    return sorted(path for path, was in covered.items() if _identity(tree, path) != was)


def intact_covers(tree: FileTree, covered: Mapping[str, str]) -> frozenset[str]:
    """The names whose mount certainly existed the whole time. An inode number alone does not prove
    that: the file system reuses it after a removal."""
    certain = {path: was for path, was in covered.items() if not was.startswith(_NUMBER)}
    return frozenset(certain).difference(lost_covers(tree, certain))


def is_covered(path: str, covered: Collection[str]) -> bool:
    """Whether a path is a covered name or lies below one."""
    while path:
        if path in covered:
            return True
        path = path.rpartition("/")[0]
    return False


def _identity(tree: FileTree, path: str) -> str:
    try:
        with tree.node(path) as node:
            return file_handle(node) or f"{_NUMBER}{os.fstat(node).st_ino}"
    except OSError:
        return ""
