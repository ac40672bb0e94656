"""The file API on the merged view of a copy-on-write workspace (FS-2, FS-7).

Paths are resolved on the view, through overlayfs, like on any other root. Three things differ:
limits count the upper layer alone, for the lower one is the host's; the first change of a file
copies it up, which takes room; and overlayfs does not rename a directory of the lower layer (EXDEV,
see the kernel's overlayfs.rst), so such a directory is copied and then removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection

from cellwall.core.limits import Limits
from cellwall.sandbox.files.descriptors import (
    ENTRIES_MAX,
    copy_data,
    held,
    make_one_dir,
    new_owner,
    open_regular,
    temporary_name,
)
from cellwall.sandbox.files.errors import refused, telling
from cellwall.sandbox.files.file_tree import Beneath, is_blocked
from cellwall.sandbox.files.root import Judge, Root, Visit, inner_path, join
from cellwall.sandbox.workspace.changes import status_of

_ROUNDS_MAX = 16  # of a removal while code inside puts new names into the same directory


class MergedBeneath(Beneath):
    """The view, borrowed for one operation, and the upper layer, which is only looked at."""

    __slots__ = ("_limits", "_upper")

    def __init__(self, fd: int, *, upper: Root, judge: Judge, limits: Limits) -> None:
        super().__init__(fd, judge=judge)
        self._upper = upper
        self._limits = limits

    def usage(
        self, *, max_entries: int, on_locked: Callable[[str], None] = lambda _path: None
    ) -> tuple[int, int]:
        return self._upper.usage(max_entries=max_entries, on_locked=on_locked)

    def counted(self, place: str, found: os.stat_result | None) -> os.stat_result | None:  # noqa: ARG002  # of both layers
        return status_of(self._upper, place)

    def kept_owner(self, old: os.stat_result | None) -> tuple[int, int] | None:  # noqa: ARG002  # as below
        # A file of a third user has an owner that does not exist in the view.
        return None

    def move(self, source: str, target: str, *, blocked_extensions: Collection[str] = ()) -> None:
        with (
            telling(source),
            self._existing(inner_path(source)) as (source_fd, source_name),
            telling(target),
            self._existing(inner_path(target)) as (target_fd, target_name),
        ):
            if is_blocked(target_name, blocked_extensions):
                raise refused(target, "CW-EXTENSION-BLOCKED", "has a blocked extension")
            old = os.stat(source_name, dir_fd=source_fd, follow_symlinks=False)
            place = join(self.place_of(source_fd), source_name)
            new_place = join(self.place_of(target_fd), target_name)
            self._ask_tree(place, new_place, mode=old.st_mode)
            self._admit_copy(target, place, old)
            try:
                os.rename(source_name, target_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
                return
            except OSError as error:
                if error.errno != errno.EXDEV or not stat.S_ISDIR(old.st_mode):
                    raise
            if f"{new_place}/".startswith(f"{place}/"):
                raise refused(target, "CW-PATH-INVALID", "lies in the directory that is moved")
            aside = temporary_name()
            try:
                self._copy_tree(place, join(self.place_of(target_fd), aside), old)
                os.rename(aside, target_name, src_dir_fd=target_fd, dst_dir_fd=target_fd)
            except BaseException:
                self._clear(join(self.place_of(target_fd), aside))
                raise
        with telling(source):
            self._remove_tree(place)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        with telling(path), self._existing(inner_path(path)) as (parent, name):
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode) or not recursive:
                super().remove(path)
                return
            place = join(self.place_of(parent), name)
            self._ask_tree(place, place, mode=mode)
            self._remove_tree(place)

    def _admit_copy(self, path: str, place: str, status: os.stat_result) -> None:
        """Room for what a move copies up: all of the tree that is not in the upper layer yet."""
        new_bytes = new_entries = 0
        found = [(place, status)]
        if stat.S_ISDIR(status.st_mode):
            steps = self.visit(place, max_entries=self._limits.file_count)
            found += [(step.path, step.status) for step in steps]
        for each, now in found:
            if status_of(self._upper, each) is None:
                new_entries += 1
                new_bytes += now.st_blocks * 512 if stat.S_ISREG(now.st_mode) else 0
        self._admit(
            path,
            new_entries=new_entries,
            max_files=self._limits.file_count,
            new_bytes=new_bytes,
            max_total_bytes=self._limits.disk_bytes,
        )

    def _copy_tree(self, place: str, target: str, top: os.stat_result) -> None:
        """Files, directories and links of a tree under another name; exact paths, no link is gone
        through, so a name that is swapped meanwhile is refused or copied as what it has become."""
        with self.parent(target) as (fd, name):
            make_one_dir(fd, name)
        room = self._limits.disk_bytes
        folders = [(target, top)]
        for step in self.visit(place, max_entries=self._limits.file_count):
            below = target + step.path.removeprefix(place)
            with telling(step.path), self.parent(below) as (fd, name):
                if stat.S_ISDIR(step.status.st_mode):
                    make_one_dir(fd, name)
                    folders.append((below, step.status))
                elif stat.S_ISLNK(step.status.st_mode):
                    os.symlink(os.readlink(step.name, dir_fd=step.dir_fd), name, dir_fd=fd)
                    owner = new_owner(fd)
                    if owner is not None:
                        os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
                elif stat.S_ISREG(step.status.st_mode):
                    room -= self._copy_file(step, fd, name, room)
                else:
                    raise refused(step.path, "CW-NOT-A-FILE", "is no file, directory or link")
        # Last and the deepest first: a directory without rights can be filled no more.
        for below, status in reversed(folders):
            with self.node(below) as fd:
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(f"/proc/self/fd/{fd}", ns=(status.st_atime_ns, status.st_mtime_ns))

    def _copy_file(self, step: Visit, dir_fd: int, name: str, room: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            self.node(step.path) as node,
            held(open_regular(node)) as source,
            held(os.open(name, flags, 0o600, dir_fd=dir_fd)) as target,
        ):
            status = os.fstat(source)
            if status.st_blocks * 512 > room or status.st_size > self._limits.file_size_bytes:
                raise refused(step.path, "CW-WORKSPACE-FULL", "is larger than there is room for")
            copy_data(source, target)
            owner = new_owner(dir_fd)
            if owner is not None:
                os.fchown(target, *owner)
            os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            return os.fstat(target).st_blocks * 512  # code may have filled holes meanwhile

    def _remove_tree(self, place: str) -> None:
        """Name by name, since directories of the lower layer cannot be moved out of the way."""
        for _ in range(_ROUNDS_MAX):
            folders = [place]
            for step in self.visit(place, max_entries=ENTRIES_MAX):
                if stat.S_ISDIR(step.status.st_mode):
                    folders.append(step.path)
                    continue
                try:
                    os.unlink(step.name, dir_fd=step.dir_fd)
                except FileNotFoundError:
                    continue
            left = [folder for folder in reversed(folders) if not self._is_removed(folder)]
            if not left:
                return
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    def _is_removed(self, place: str) -> bool:
        try:
            with self.parent(place) as (fd, name):
                os.rmdir(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
            return False
        return True

    def _clear(self, place: str) -> None:
        """What a failed move has put aside; the failure itself is what is told."""
        try:
            self._remove_tree(place)
        except Exception:  # noqa: BLE001, S110  # as above
            pass
