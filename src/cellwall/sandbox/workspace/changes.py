"""The changes of a copy-on-write run, and which to see first (FS-2).

`lower` is the host's directory, unchanged by the run; `upper` is the layer that overlayfs wrote in
a user namespace (`userxattr`, no redirects, no metadata-only copies). Both are read by descriptor.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import build_files, load
from cellwall.sandbox.files.descriptors import (
    MAX_WALK_ENTRIES,
    FileKind,
    closing_fd,
    kind_of,
    open_regular,
    proc_path,
    read_at_most,
)
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.root import status_of
from cellwall.sandbox.files.walking import WalkStep

_CHUNK = 1 << 20
_HEAD_BYTES = 8000  # where git looks for a NUL
_MAX_PATH_BYTES = 4095  # MAX_PATH without its NUL: a deeper node cannot be opened by its path

ChangeKind = Literal["added", "modified", "removed", "mode", "type"]


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path. Sizes are None for directories and for a missing side."""

    kind: ChangeKind
    path: str
    entry_kind: FileKind
    size_before: int | None
    size_after: int | None
    binary: bool = False
    mark: str = ""
    """Why a person should see it first; see `mark_of`."""


def changes(
    lower: FileTree, upper: FileTree, *, max_entries: int = MAX_WALK_ENTRIES
) -> tuple[Change, ...]:
    """Every path that a run added, changed or removed, in order of path."""
    by_path: dict[str, Change] = {}
    present: set[str] = set()
    uncovered: list[str] = []  # lower directories that the upper layer hides
    for step in upper.walk(max_entries=max_entries, descend=_can_be_opened):
        if not _can_be_opened(step):
            # Listed, so that `apply` refuses this path alone and applies all others.
            kind, size = kind_of(step.status.st_mode), _size(step.status)
            by_path[step.path] = Change("added", step.path, kind, None, size)
            continue
        old = status_of(lower, step.path)
        if _is_whiteout(upper, step):
            if old is not None:
                by_path[step.path] = _removal(lower, step.path, old)
        else:
            present.add(step.path)
            change = _compare(lower, upper, step, old)
            if change is not None:
                by_path[step.path] = change
        if _hides_lower(upper, step) and old is not None and stat.S_ISDIR(old.st_mode):
            uncovered.append(step.path)
    for path in uncovered:
        for below in lower.walk(path, max_entries=max_entries):
            if below.path not in present:
                by_path[below.path] = _removal(lower, below.path, below.status)
    return tuple(by_path[path] for path in sorted(by_path))


def _can_be_opened(step: WalkStep) -> bool:
    return len(os.fsencode(step.path)) <= _MAX_PATH_BYTES


def _overlay_attribute(place: int | str, name: str) -> bytes:
    for space in ("user", "trusted"):
        try:
            return os.getxattr(place, f"{space}.overlay.{name}")
        except OSError as error:
            if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES}:
                raise
    return b""


def _is_whiteout(upper: FileTree, step: WalkStep) -> bool:
    status = step.status
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_size
        or _overlay_attribute(step.dir_fd, "opaque") != b"x"
    ):
        return False
    with upper.node(step.path) as node:
        # The attribute marks a whiteout by its presence; its value is empty.
        return any(n.endswith(".overlay.whiteout") for n in os.listxattr(proc_path(node)))


def _hides_lower(upper: FileTree, step: WalkStep) -> bool:
    """Whether the upper entry hides the content of the lower directory."""
    if not stat.S_ISDIR(step.status.st_mode):
        return True
    with upper.node(step.path) as node:
        if _overlay_attribute(proc_path(node), "redirect"):
            raise WorkspaceError(
                "the changes were written by an overlay with redirects, which cannot be read",
                hint="Run it again; Cellwall mounts without redirects.",
                code="CW-OVERLAY-FOREIGN",
            )
        return _overlay_attribute(proc_path(node), "opaque") == b"y"


def _size(status: os.stat_result | None) -> int | None:
    return None if status is None or stat.S_ISDIR(status.st_mode) else status.st_size


def _removal(lower: FileTree, path: str, old: os.stat_result) -> Change:
    binary = _is_binary(lower, path)
    return Change("removed", path, kind_of(old.st_mode), _size(old), None, binary)


def _compare(
    lower: FileTree, upper: FileTree, step: WalkStep, old: os.stat_result | None
) -> Change | None:
    new, path, kind = step.status, step.path, _change_kind(lower, upper, step, old)
    if kind is None:
        return None
    binary = _is_binary(upper, path) or (
        old is not None and kind != "mode" and _is_binary(lower, path)
    )
    return Change(kind, path, kind_of(new.st_mode), _size(old), _size(new), binary)


def _change_kind(
    lower: FileTree, upper: FileTree, step: WalkStep, old: os.stat_result | None
) -> ChangeKind | None:
    if old is None:
        return "added"
    new = step.status
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        return "type"
    if stat.S_ISLNK(new.st_mode):
        targets = {content_of(tree, step.path, _MAX_PATH_BYTES) for tree in (lower, upper)}
        return None if len(targets) == 1 else "modified"
    if stat.S_ISREG(new.st_mode) and (
        old.st_size != new.st_size or not _same_bytes(lower, upper, step.path)
    ):
        return "modified"
    return None if stat.S_IMODE(old.st_mode) == stat.S_IMODE(new.st_mode) else "mode"


def _same_bytes(lower: FileTree, upper: FileTree, path: str) -> bool:
    try:
        with (
            lower.node(path) as old_node,
            upper.node(path) as new_node,
            closing_fd(open_regular(old_node)) as old,
            closing_fd(open_regular(new_node)) as new,
        ):
            while part := os.read(old, _CHUNK):
                if part != os.read(new, len(part)):
                    return False
            return not os.read(new, 1)
    except PermissionError:
        return False  # a file that cannot be compared is reported as changed


def content_of(tree: FileTree, path: str, most: int) -> bytes:
    """A file's first bytes, at most `most`, or a symlink's target."""
    with tree.node(path) as node:
        if stat.S_ISLNK(os.fstat(node).st_mode):
            return os.fsencode(os.readlink("", dir_fd=node))
        with closing_fd(open_regular(node)) as fd:
            return read_at_most(fd, most)


def _is_binary(tree: FileTree, path: str) -> bool:
    try:
        head = content_of(tree, path, _HEAD_BYTES)
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except OSError:
        return False  # a directory, a device, or unreadable
    except UnicodeDecodeError:
        return True
    return b"\0" in head


INSTRUCTIONS = "instructions for agents"
_PROTECTED = "protected name"
_BUILD = "runs code when built or tested"


def rank(unranked: Iterable[Change], instruction_paths: Collection[str] = ()) -> tuple[Change, ...]:
    """The same changes with their marks: marked ones first, else in the same order.

    `instruction_paths` are targets of symlinks with names of instructions.
    """
    marked = [
        replace(
            change, mark=INSTRUCTIONS if change.path in instruction_paths else mark_of(change.path)
        )
        for change in unranked
    ]
    order = [INSTRUCTIONS, _PROTECTED, _BUILD, ""]
    return tuple(sorted(marked, key=lambda change: order.index(change.mark)))


def mark_of(path: str) -> str:
    """Why a change of that path should be looked at; empty for an ordinary file."""
    groups = load().groups_of(path)
    if is_instruction(path):
        return INSTRUCTIONS
    if groups:
        return _PROTECTED
    return _BUILD if build_files().groups_of(path) else ""


def is_instruction(path: str) -> bool:
    """Text that agents obey, and nothing else that is protected."""
    return load().groups_of(path) == {"instruction"}
