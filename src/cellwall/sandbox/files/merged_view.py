"""The merged view of copy-on-write sessions, and the file API on it (FS-2, FS-7).

A view is a detached mount of the session's overlay: the file API works through overlayfs, as the
code inside does, and each sees the other's changes at once. Writing to the upper layer of a mounted
overlay is undefined, and so are two overlays on one upper layer. So a session has one overlay:

  (1) while its cell lives, the view is a second mount of the cell's own overlay;
  (2) without a cell, the first operation mounts an overlay, which later operations reuse;
  (3) before a new cell is created, running operations end and the old view is closed.

Paths are resolved on the view like on any other root. Three things differ: limits count the upper
layer alone, since the lower one is the host's; the first change of a file copies it up, which takes
space; and overlayfs does not rename a directory of the lower layer (EXDEV, see the kernel's
overlayfs.rst), so such a directory is copied and then removed.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.limits import Limits
from cellwall.core.types import Action, WorkspaceMount
from cellwall.sandbox.files.descriptors import (
    KEPT_MODE,
    MAX_WALK_ENTRIES,
    OPEN_NEW,
    closing_fd,
    copy_data,
    make_one_dir,
    make_symlink,
    new_owner,
    open_regular,
    path_error,
    temporary_name,
    translate_os_errors,
)
from cellwall.sandbox.files.file_tree import FileTree, is_blocked
from cellwall.sandbox.files.paths import join
from cellwall.sandbox.files.root import AccessCheck, Root, status_of
from cellwall.sandbox.files.survey import DiskUsage
from cellwall.sandbox.files.walking import WalkStep

_WAIT_S = 30.0
"""The wait for running transfers before a cell is created, and for a cell that is starting."""


class ViewFollower(Protocol):
    """A user of a view that outlives one operation and can switch to the next view."""

    def release(self) -> None: ...

    def switch_to(self, root: Root) -> None: ...

    def stop(self) -> None: ...


RootOf = Callable[[int], Root]
"""Makes a root on a view; the root owns the descriptor."""
OpenView = Callable[[Action, WorkspaceMount], int]


@dataclass(slots=True)
class _SessionView:
    """The view of one session."""

    descriptor: int = -1
    users: int = 0
    is_changing: bool = False
    is_ended: bool = False
    followers: weakref.WeakKeyDictionary[ViewFollower, RootOf] = field(
        default_factory=weakref.WeakKeyDictionary
    )


class MergedViews:
    """The views of all sessions. Thread-safe."""

    def __init__(self, open_view: OpenView) -> None:
        self._open_view = open_view
        self._views: dict[str, _SessionView] = {}
        self._changed = threading.Condition()

    @contextmanager
    def use(self, session_id: str, action: Action, mount: WorkspaceMount) -> Iterator[int]:
        """Lend a descriptor of the view for one operation."""
        view = self._acquire(session_id, action, mount)
        try:
            with closing_fd(os.dup(view.descriptor)) as descriptor:
                yield descriptor
        finally:
            with self._changed:
                view.users -= 1
                if view.is_ended and view.users == 0:
                    _close(view)
                self._changed.notify_all()

    def _acquire(self, session_id: str, action: Action, mount: WorkspaceMount) -> _SessionView:
        with self._changed:
            view = self._views.setdefault(session_id, _SessionView())
            self._wait(lambda: not view.is_changing, "its sandbox is being started")
            if view.is_ended:
                raise sandbox_ended()
            if view.descriptor >= 0:
                view.users += 1
                return view
            view.is_changing = True
        descriptor = -1
        try:
            descriptor = self._open_view(action, mount)  # (2)
        finally:
            self._install(view, descriptor, users=1 if descriptor >= 0 else 0)
        return view

    @contextmanager
    def replacing(self, session_id: str) -> Iterator[Callable[[int], None]]:
        """(3) The block creates a cell; the yielded function takes the view of that cell."""
        with self._changed:
            view = self._views.setdefault(session_id, _SessionView())
            self._wait(lambda: not view.is_changing, "its files are being opened")
            view.is_changing = True
            try:
                self._wait(lambda: view.users == 0, "files are being transferred")
            except BaseException:
                view.is_changing = False
                self._changed.notify_all()
                raise
        descriptors: list[int] = []
        try:
            # `is_changing` keeps new users out, so this needs no lock.
            for follower in list(view.followers):
                follower.release()
            _close(view)
            yield descriptors.append
        finally:
            self._install(view, descriptors[0] if descriptors else -1)

    def _install(self, view: _SessionView, descriptor: int, *, users: int = 0) -> None:
        view.descriptor = descriptor
        try:
            if descriptor >= 0:
                for follower, root_of in list(view.followers.items()):
                    try:
                        follower.switch_to(root_of(os.dup(descriptor)))
                    except (
                        OSError
                    ):  # no descriptor left: the follower ends, rather than miss changes
                        follower.stop()
        finally:
            with self._changed:
                view.is_changing = False
                view.users += users
                if view.is_ended and view.users == 0:
                    _close(view)
                self._changed.notify_all()

    def attach(self, session_id: str, follower: ViewFollower, root_of: RootOf) -> None:
        """Switch `follower` to every later view; the caller uses the present one."""
        with self._changed:
            view = self._views.get(session_id)
            if view is not None:
                view.followers[follower] = root_of
        if view is None:  # the session has ended meanwhile
            follower.stop()

    def end(self, session_id: str) -> None:
        """Close the view of an ended session; running operations end by themselves."""
        with self._changed:
            view = self._views.pop(session_id, None)
            if view is None:
                return
            view.is_ended = True
            if view.users == 0 and not view.is_changing:
                _close(view)
            followers = list(view.followers)
        for follower in followers:
            follower.release()

    def _wait(self, is_so: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + _WAIT_S
        while not is_so():
            if not self._changed.wait(max(until - time.monotonic(), 0.0)) and not is_so():
                raise WorkspaceError(
                    f"the workspace is busy: {why}",
                    hint="Try again later.",
                    code="CW-WORKSPACE-BUSY",
                )


def _close(view: _SessionView) -> None:
    descriptor, view.descriptor = view.descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)


def sandbox_ended() -> BadInput:
    """The error for an operation on an ended session."""
    return BadInput("the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED")


_UNFINISHED = 0o700
"""The mode of a directory until all of its entries are copied: the other user of the sandbox must
not enter a copy of what is closed to that user."""
_MAX_ROUNDS = 16  # rounds of a removal while code inside adds names to the same directory


class MergedFileTree(FileTree):
    """The view, borrowed for one operation, and the upper layer, which is only read."""

    __slots__ = ("_limits", "_upper")

    def __init__(
        self, fd: int, *, upper: Root, access_check: AccessCheck | None, limits: Limits
    ) -> None:
        super().__init__(fd, access_check=access_check)
        self._upper = upper
        self._limits = limits

    def usage(
        self,
        path: str = "",
        *,
        max_entries: int,
        on_locked: Callable[[str], None] = lambda _path: None,
    ) -> DiskUsage:
        return self._upper.usage(path, max_entries=max_entries, on_locked=on_locked)

    def counted_status(self, place: str, found: os.stat_result | None) -> os.stat_result | None:  # noqa: ARG002  # of both layers
        return status_of(self._upper, place)

    def kept_owner(self, old: os.stat_result | None) -> tuple[int, int] | None:
        """Also of an entry that is copied: a sandbox may have two users, whom file modes keep
        apart. A file of a third user has an owner that does not exist in the view."""
        kept = super().kept_owner(old)
        return None if kept is None or _unmapped_id() in kept else kept

    def move(self, source: str, target: str, *, blocked_extensions: Collection[str] = ()) -> None:
        with (
            translate_os_errors(source),
            self._open_parent(self.inner(source)) as (source_fd, source_name),
            translate_os_errors(target),
            self._open_parent(self.inner(target)) as (target_fd, target_name),
        ):
            if is_blocked(target_name, blocked_extensions):
                raise path_error(target, "CW-EXTENSION-BLOCKED", "has a blocked extension")
            old = os.stat(source_name, dir_fd=source_fd, follow_symlinks=False)
            place = join(self.place_of(source_fd), source_name)
            new_place = join(self.place_of(target_fd), target_name)
            self._check_tree_access(place, new_place, mode=old.st_mode)
            self._admit_copy(target, place, old)
            try:
                os.rename(source_name, target_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
                return
            except OSError as error:
                if error.errno != errno.EXDEV or not stat.S_ISDIR(old.st_mode):
                    raise
            if f"{new_place}/".startswith(f"{place}/"):
                raise path_error(target, "CW-PATH-INVALID", "lies in the moved directory")
            aside = temporary_name()
            try:
                self._copy_tree(place, join(self.place_of(target_fd), aside), old)
                os.rename(aside, target_name, src_dir_fd=target_fd, dst_dir_fd=target_fd)
            except BaseException:
                self._clear(join(self.place_of(target_fd), aside))
                raise
        with translate_os_errors(source):
            self._remove_tree(place)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        with translate_os_errors(path), self._open_parent(self.inner(path)) as (parent, name):
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode) or not recursive:
                super().remove(path)
                return
            place = join(self.place_of(parent), name)
            self._check_tree_access(place, place, mode=mode)
            self._remove_tree(place)

    def _admit_copy(self, path: str, place: str, status: os.stat_result) -> None:
        """Refuse a move whose copy-up (entries not in the upper layer) exceeds the limits."""
        new_bytes = new_entries = 0
        entries = [(place, status)]
        if stat.S_ISDIR(status.st_mode):
            steps = self.walk(place, max_entries=self._limits.file_count)
            entries += [(step.path, step.status) for step in steps]
        for each, now in entries:
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
        """Copy the files, directories and symlinks of a tree. Paths are exact and no symlink is
        followed, so a name that is swapped meanwhile is refused or copied as it is then."""
        with self.parent(target) as (fd, name):
            make_one_dir(fd, name, mode=_UNFINISHED, owner=self.kept_owner(top))
        room = self._limits.disk_bytes
        folders = [(target, top)]
        for step in self.walk(place, max_entries=self._limits.file_count):
            below = target + step.path.removeprefix(place)
            with translate_os_errors(step.path), self.parent(below) as (fd, name):
                owner = self.kept_owner(step.status)
                if stat.S_ISDIR(step.status.st_mode):
                    make_one_dir(fd, name, mode=_UNFINISHED, owner=owner)
                    folders.append((below, step.status))
                elif stat.S_ISLNK(step.status.st_mode):
                    target_of_link = os.readlink(step.name, dir_fd=step.dir_fd)
                    make_symlink(target_of_link, fd, name, owner=owner)
                elif stat.S_ISREG(step.status.st_mode):
                    room -= self._copy_file(step, fd, name, room)
                else:
                    raise path_error(
                        step.path, "CW-NOT-A-FILE", "is not a file, directory or symlink"
                    )
        # Last, and the deepest first: a directory without permissions cannot be filled.
        for below, status in reversed(folders):
            with self.node(below) as fd:
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) & KEPT_MODE)
                os.utime(f"/proc/self/fd/{fd}", ns=(status.st_atime_ns, status.st_mtime_ns))

    def _copy_file(self, step: WalkStep, dir_fd: int, name: str, room: int) -> int:
        with (
            self.node(step.path) as node,
            closing_fd(open_regular(node)) as source,
            closing_fd(os.open(name, OPEN_NEW, 0o600, dir_fd=dir_fd)) as target,
        ):
            status = os.fstat(source)
            if status.st_blocks * 512 > room or status.st_size > self._limits.file_size_bytes:
                raise path_error(step.path, "CW-WORKSPACE-FULL", "is larger than the free space")
            copy_data(source, target)
            owner = self.kept_owner(status) or new_owner(dir_fd)
            if owner is not None:
                os.fchown(target, *owner)
            os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            return os.fstat(target).st_blocks * 512  # code may have filled holes during the copy

    def _remove_tree(self, place: str) -> None:
        """Remove name by name: overlayfs cannot rename directories of the lower layer."""
        for _ in range(_MAX_ROUNDS):
            folders = [place]
            for step in self.walk(place, max_entries=MAX_WALK_ENTRIES):
                if stat.S_ISDIR(step.status.st_mode):
                    folders.append(step.path)
                    continue
                try:
                    os.unlink(step.name, dir_fd=step.dir_fd)
                except FileNotFoundError:
                    continue
            remaining = [folder for folder in reversed(folders) if not self._is_removed(folder)]
            if not remaining:
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
        """Remove the partial copy of a failed move; the failure of the move itself is reported."""
        try:
            self._remove_tree(place)
        except Exception:  # noqa: BLE001, S110  # the move's failure is reported
            pass


@functools.cache
def _unmapped_id() -> int:
    """What the kernel shows as the uid or gid of a user who does not exist here; see
    user_namespaces(7)."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        return int(file.read())
