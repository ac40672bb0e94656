"""Makes the read-only trees of snapshots: copies one layer, or merges several (FS-9).

A layer is a directory tree as overlayfs understands it: a character device 0/0 or the attribute
`whiteout` removes a name of the layers below, the attribute `opaque` a whole directory. Code chose
every name and byte, so entries are made by descriptor below the new root, and no link is followed.
Sockets, FIFOs and devices have no content to keep, and are left out. Set-id bits are dropped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from cellwall.sandbox.files.descriptors import (
    KEPT_MODE,
    OPEN_NEW,
    OPEN_NODE,
    OPEN_TO_LIST,
    closing_fd,
    copy_data,
    identity_of,
    open_regular,
    proc_path,
)
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.walking import WalkStep, bounded_names, walk_steps

_CLONE = 0x40049409  # FICLONE
_NO_CLONE = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS})
_OVERLAY = "user.overlay."
_KEPT = (f"{_OVERLAY}opaque", f"{_OVERLAY}whiteout", f"{_OVERLAY}whiteouts")
MAX_LAYER_ENTRIES = 10_000_000
_OWN = stat.S_IRWXU
_LARGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What a tree takes on the disk."""

    size_bytes: int
    files: int


NOTHING = TreeSize(0, 0)


def measure(path: str) -> TreeSize:
    """The size of a tree."""
    with Root.open(path) as root, _Unlocked(root) as unlocked:
        steps = root.walk(max_entries=MAX_LAYER_ENTRIES, descend=unlocked.enter)
        sizes = [step.status.st_blocks * 512 for step in steps]
    return TreeSize(sum(sizes), len(sizes))


def copy_layer(source: str, target: str, *, is_upper: bool, max_bytes: int) -> TreeSize:
    """Copy a tree into a new, empty directory; by reflinks where the file system has them.

    `is_upper`: it is the upper layer of an overlay, whose marks are kept. In a plain tree the same
    marks are files and attributes of the code, and are left out: there they removed nothing.
    Raises `OSError` (EDQUOT) beyond `max_bytes`.
    """
    copied = _TreeWriter(target, max_bytes=max_bytes)
    with copied, Root.open(source) as root, _Unlocked(root) as unlocked:
        copied.set_root(root.fd)
        for step in root.walk(max_entries=MAX_LAYER_ENTRIES, descend=unlocked.enter):
            _put(copied, step, is_upper=is_upper)
    return copied.size


def merge_layers(sources: Sequence[str], target: str, *, link: bool, max_bytes: int) -> TreeSize:
    """One tree with what an overlay of these layers, the topmost first, shows.

    `link`: by hard links, which is safe among read-only layers and copies no data.
    """
    written = _TreeWriter(target, max_bytes=max_bytes)
    with ExitStack() as stack:
        stack.enter_context(written)
        roots = [stack.enter_context(Root.open(each)) for each in sources]
        layers = [stack.enter_context(_Unlocked(root)) for root in roots]
        written.set_root(roots[0].fd)
        pending = [("", layers)]
        while pending:
            here, found = pending.pop()
            pending += _merge_directory(written, found, here, link=link).items()
    return written.size


def _merge_directory(
    out: _TreeWriter, layers: Sequence[_Unlocked], here: str, *, link: bool
) -> dict[str, list[_Unlocked]]:
    """Make the entries of one directory; returns the directories below it, each with the layers
    that take part in it."""
    done: set[str] = set()
    below: dict[str, list[_Unlocked]] = {}
    closed: dict[str, list[_Unlocked]] = {}
    for layer in layers:
        flags = OPEN_TO_LIST
        with closing_fd(layer.root.open_below(here or ".", flags, links=False)) as folder:
            names = bounded_names(folder, here, MAX_LAYER_ENTRIES)
            for step in walk_steps(folder, here, names, identity_of(folder)):
                is_directory, merged = stat.S_ISDIR(step.status.st_mode), below.get(step.path)
                if step.path in done and (merged is None or not is_directory):
                    below_is_hidden = merged is not None
                elif is_directory:
                    layer.enter(step)
                    if merged is None:
                        _put(out, step)
                    below.setdefault(step.path, []).append(layer)
                    below_is_hidden = _is_opaque(step)
                else:
                    if not _is_whiteout(step):
                        _put(out, step, link=link)
                    below_is_hidden = False
                done.add(step.path)
                if below_is_hidden:
                    closed[step.path] = below.pop(step.path)
    return below | closed


def _is_whiteout(step: WalkStep) -> bool:
    status = step.status
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    with closing_fd(os.open(step.name, OPEN_NODE, dir_fd=step.dir_fd)) as node:
        return f"{_OVERLAY}whiteout" in os.listxattr(proc_path(node))


def _is_opaque(step: WalkStep) -> bool:
    with (
        suppress(OSError),
        closing_fd(os.open(step.name, OPEN_NODE, dir_fd=step.dir_fd)) as node,
    ):
        return os.getxattr(proc_path(node), f"{_OVERLAY}opaque") == b"y"
    return False


class _Unlocked:
    """A tree whose directories are readable for as long as the block lasts, also those that code
    has locked. Root reads them anyway."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._modes: list[tuple[str, int]] = []

    def __enter__(self) -> _Unlocked:
        self._unlock("", stat.S_IMODE(os.fstat(self.root.fd).st_mode))
        return self

    def enter(self, step: WalkStep) -> bool:
        """Before a directory is entered."""
        self._unlock(step.path, stat.S_IMODE(step.status.st_mode))
        return True

    def _unlock(self, path: str, mode: int) -> None:
        if mode & _OWN != _OWN and os.geteuid() != 0:
            with self.root.node(path) as node:
                os.chmod(proc_path(node), mode | _OWN)
            self._modes.append((path, mode))

    def __exit__(self, *_: object) -> None:
        for path, mode in reversed(self._modes):
            with suppress(OSError), self.root.node(path) as node:  # removed meanwhile
                os.chmod(proc_path(node), mode)


class _TreeWriter:
    """Makes entries below a new directory, and counts them."""

    def __init__(self, target: str, *, max_bytes: int) -> None:
        self.root = Root.open(target)
        self._links: dict[tuple[int, int], str] = {}
        self._directories: list[tuple[str, os.stat_result]] = []
        self._left_bytes = max_bytes
        self._bytes = self._files = 0
        self._can_clone = True

    @property
    def size(self) -> TreeSize:
        return TreeSize(self._bytes, self._files)

    def __enter__(self) -> _TreeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                # Last, the deepest first: a directory may be read-only.
                for path, status in reversed(self._directories):
                    with self.root.node(path) as node:
                        _set_times(node, status)
        finally:
            self.root.close()

    def set_root(self, source: int) -> None:
        """The root of the new tree gets the mode and the times of this directory."""
        self._directories.append(("", os.fstat(source)))

    def count(self, status: os.stat_result) -> None:
        self._bytes += status.st_blocks * 512
        self._files += 1
        if self._bytes > self._left_bytes:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def make_directory(self, path: str, status: os.stat_result) -> None:
        with self.root.parent(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)
        self._directories.append((path, status))

    def first_name(self, status: os.stat_result, path: str) -> str | None:
        """The path of the same file if it was made before."""
        if status.st_nlink < 2:
            return None
        return self._links.setdefault((status.st_dev, status.st_ino), path)

    def link(self, first: str, parent: int, name: str) -> None:
        with self.root.parent(first) as (folder, old):
            os.link(old, name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)

    def copy_file(self, node: int, status: os.stat_result, parent: int, name: str) -> None:
        with (
            closing_fd(_open_unlocked(node, status.st_mode)) as data,
            closing_fd(os.open(name, OPEN_NEW, 0o600, dir_fd=parent)) as file,
        ):
            if not self._clone(data, file):
                _copy_ranges(data, file, status.st_size)
            _set_owner(proc_path(file), status)
            os.fchmod(file, stat.S_IMODE(status.st_mode) & KEPT_MODE)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _clone(self, source: int, target: int) -> bool:
        if not self._can_clone:
            return False
        try:
            fcntl.ioctl(target, _CLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise
            self._can_clone = False
        return self._can_clone


def _copy_ranges(source: int, target: int, size_bytes: int) -> None:
    """Copy within the kernel; a small file, or one with holes, by the usual way."""
    at = 0
    if size_bytes >= _LARGE_BYTES and os.lseek(source, 0, os.SEEK_HOLE) == size_bytes:
        with suppress(OSError):  # an old kernel; other errors come again below
            while done := os.copy_file_range(source, target, size_bytes - at, at, at):
                at += done
    if at < size_bytes:
        copy_data(source, target)


def _put(out: _TreeWriter, step: WalkStep, *, is_upper: bool = False, link: bool = False) -> None:
    """`link`: the file itself under a second name, not a copy of it."""
    status, path, kind = step.status, step.path, stat.S_IFMT(step.status.st_mode)
    is_mark = is_upper and kind == stat.S_IFCHR and status.st_rdev == 0
    if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK) and not is_mark:
        return
    out.count(status)
    if kind == stat.S_IFDIR:
        out.make_directory(path, status)
        if is_upper:
            _carry_marks(out, step, path)
        return
    with out.root.parent(path) as (parent, name):
        if is_mark:
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=parent)
            return
        if link and _try_link(step, parent, name):
            return
        first = None if kind == stat.S_IFLNK else out.first_name(status, path)
        if first is not None and first != path:
            out.link(first, parent, name)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(step.name, dir_fd=step.dir_fd), name, dir_fd=parent)
            _set_owner(name, status, dir_fd=parent)
        else:
            with closing_fd(os.open(step.name, OPEN_NODE, dir_fd=step.dir_fd)) as node:
                out.copy_file(node, status, parent, name)
    if is_upper and kind == stat.S_IFREG and not status.st_size:
        _carry_marks(out, step, path)


def _try_link(step: WalkStep, parent: int, name: str) -> bool:
    """False where the file system has no more links for this file."""
    try:
        os.link(step.name, name, src_dir_fd=step.dir_fd, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.EMLINK, errno.EXDEV, errno.EPERM}:
            raise
        return False
    return True


def _carry_marks(out: _TreeWriter, step: WalkStep, path: str) -> None:
    with (
        closing_fd(os.open(step.name, OPEN_NODE, dir_fd=step.dir_fd)) as node,
        out.root.node(path) as made,
    ):
        _copy_marks(node, made)


def _copy_marks(source: int, target: int) -> None:
    there = os.listxattr(proc_path(source))
    for name in _KEPT:
        if name in there:
            os.setxattr(proc_path(target), name, os.getxattr(proc_path(source), name)[:16])


def _set_owner(path: str, status: os.stat_result, dir_fd: int | None = None) -> None:
    """A sandbox may have two users, whom file modes keep apart. Without root there is one."""
    if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0):
        follows = dir_fd is None  # a descriptor's name in /proc
        os.chown(path, status.st_uid, status.st_gid, dir_fd=dir_fd, follow_symlinks=follows)


def _set_times(node: int, status: os.stat_result) -> None:
    _set_owner(proc_path(node), status)
    os.chmod(proc_path(node), stat.S_IMODE(status.st_mode) & KEPT_MODE)
    os.utime(proc_path(node), ns=(status.st_atime_ns, status.st_mtime_ns))


def _open_unlocked(node: int, mode: int) -> int:
    try:
        return open_regular(node)
    except PermissionError:  # code took its own permissions away
        os.chmod(proc_path(node), stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR)
        return open_regular(node)
