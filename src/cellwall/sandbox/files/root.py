"""A directory and the paths below it, resolved by descriptors only (FS-1).

The kernel resolves every path beneath the root's descriptor (openat2), and each operation works on
the descriptor that it returned. No path is checked first and used later, so a symlink that is
swapped in between has no effect.

Two kinds of paths: a path that a user typed goes through `inner_path` and may contain symlinks that
stay inside; a path that `walk` returned is exact, may hold any bytes, and is opened without them.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.files.descriptors import (
    MAX_WALK_ENTRIES,
    closing_fd,
    from_os_error,
    identity_of,
    proc_path,
)
from cellwall.sandbox.files.paths import WORKSPACE_INSIDE, inner_path, join
from cellwall.sandbox.files.survey import DiskUsage, Survey
from cellwall.sandbox.files.walking import WalkStep, names_in, walk_steps
from cellwall.sandbox.linux._syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

# A mount inside the root belongs to another program and is not part of the workspace.
_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_MAX_RACES = 128  # attempts while directories on a path with `..` are renamed
_MAX_LINKS = 40  # the kernel's own limit
_BLOCK_BYTES = 4096


class AccessCheck(Protocol):
    """Raises `WorkspaceError` for a real path (symlinks resolved) that may not be accessed."""

    def __call__(self, path: str, *, writing: bool, is_link: bool = False) -> None: ...


class Root:
    """A directory that is held open, and the paths below it.

    `access_check` is called with the real path of every file that the file API accesses. `inside`
    is where the sandbox sees the directory.
    """

    __slots__ = ("_access_check", "fd", "inside")

    def __init__(
        self,
        fd: int,
        *,
        access_check: AccessCheck | None = None,
        inside: str = WORKSPACE_INSIDE,
    ) -> None:
        """Own `fd`, an O_PATH descriptor of a directory."""
        self.fd = fd
        self.inside = inside
        self._access_check = access_check

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, access_check: AccessCheck | None = None) -> Self:
        try:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise WorkspaceError(
                "the workspace directory cannot be opened",
                hint="Name a directory that exists and that you may enter.",
                code="CW-WORKSPACE-MISSING",
                detail=type(error).__name__,
            ) from error
        return cls(fd, access_check=access_check)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Exact paths, as `walk` returns them: no symlinks are followed, failures are OSError.

    @contextmanager
    def node(self, path: str) -> Iterator[int]:
        """An O_PATH descriptor of exactly that name; of a symlink itself, not of its target."""
        with closing_fd(self.open_below(path or ".", os.O_PATH | os.O_NOFOLLOW, links=False)) as fd:
            yield fd

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the parent directory, and the last name: for unlink, rename and mkdir."""
        way, _, name = path.rpartition("/")
        with closing_fd(self.open_below(way or ".", os.O_PATH | os.O_DIRECTORY, links=False)) as fd:
            yield fd, name

    def walk(
        self,
        path: str = "",
        *,
        max_entries: int,
        descend: Callable[[WalkStep], bool] | None = None,
        on_locked: Callable[[str], None] | None = None,
        on_overflow: Callable[[str], None] | None = None,
        order: Callable[[os.stat_result], tuple[int, ...]] | None = None,
        survey: Survey | None = None,
    ) -> Iterator[WalkStep]:
        """Every entry below `path`, each directory's names in order; symlinks are not followed.

        Each directory is opened anew from the root, so depth costs no descriptors. A directory
        that cannot be read is passed to `on_locked`, one with more names than are left of
        `max_entries` to `on_overflow`; without a callback both are errors, so that nothing is
        left out silently. With `order`, the directories found so far are entered by that key.
        With `survey`, dull files are counted and left out; directories never are.
        """
        entries_left = max_entries
        pending: list[tuple[tuple[int, ...], str]] = [((), path)]
        while pending:
            here = (pending.pop() if order is None else heapq.heappop(pending))[1]
            try:
                fd = self.open_below(here or ".", os.O_RDONLY | os.O_DIRECTORY, links=False)
            except PermissionError as error:
                if on_locked is None:
                    raise from_os_error(here, error) from error
                on_locked(here)
                continue
            except OSError as error:
                # Removed or replaced since its name was read.
                if here != path and error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    continue
                raise from_os_error(here, error) from error
            with closing_fd(fd):
                try:
                    names, count = names_in(fd, here, entries_left, survey)
                except WorkspaceError:
                    if on_overflow is None:
                        raise
                    on_overflow(here)
                    continue
                entries_left -= count
                below = []
                for step in walk_steps(fd, here, names, identity_of(fd)):
                    yield step
                    if stat.S_ISDIR(step.status.st_mode) and (descend is None or descend(step)):
                        below.append((order(step.status) if order else (), step.path))
            if order is None:
                pending.extend(reversed(below))
            else:
                for item in below:
                    heapq.heappush(pending, item)

    def usage(
        self,
        path: str = "",
        *,
        max_entries: int,
        on_locked: Callable[[str], None] = lambda _path: None,
    ) -> DiskUsage:
        """The disk usage of everything below `path`."""
        survey = Survey()
        # An unreadable directory counts as one name; the check after the run opens it.
        for _directory in self.walk(
            path, max_entries=max_entries, on_locked=on_locked, survey=survey
        ):
            pass
        return survey.usage

    # Paths as users type and read them.

    def inner(self, text: str) -> str:
        """The path below this root for a path that a user typed."""
        return inner_path(text, inside=self.inside)

    def shown(self, inner: str) -> str:
        """A path below this root as users read it: relative in the workspace, else absolute."""
        if self.inside == WORKSPACE_INSIDE:
            return inner
        return self.inside if inner in {"", "."} else f"{self.inside}/{inner}"

    # Paths to descriptors.

    def open_below(self, path: str, flags: int, *, links: bool = True) -> int:
        resolve = _RESOLVE if links else _RESOLVE | RESOLVE_NO_SYMLINKS
        for _ in range(_MAX_RACES):
            try:
                return openat2(self.fd, path, flags=flags, resolve=resolve)
            except BlockingIOError:
                # EAGAIN: the kernel cannot decide whether `..` stays inside while directories move.
                continue
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    @contextmanager
    def _open_parent(self, inner: str) -> Iterator[tuple[int, str]]:
        way, _, name = inner.rpartition("/")
        if name in {".", ".."}:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with closing_fd(self.open_below(way or ".", os.O_PATH | os.O_DIRECTORY)) as fd:
            yield fd, name

    @contextmanager
    def _open_parent_of_new(self, inner: str) -> Iterator[tuple[int, Sequence[str], str]]:
        """The deepest existing directory on the path, the missing names, and the last name."""
        *way, name = inner.split("/")
        if name in {".", ".."}:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        depth = len(way)
        fd = -1
        while fd < 0:
            try:
                fd = self.open_below("/".join(way[:depth]) or ".", os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                if depth == 0 or way[depth - 1] == "..":
                    raise
                depth -= 1
        with closing_fd(fd):
            yield fd, way[depth:], name

    def deepest(self, inner: str) -> tuple[str, list[str]]:
        """The real path of the deepest existing directory on a path, and the missing names."""
        try:
            with closing_fd(self.open_below(inner, os.O_PATH | os.O_DIRECTORY)) as fd:
                return self.place_of(fd), []
        except FileNotFoundError:
            with self._open_parent_of_new(inner) as (fd, missing, name):
                return self.place_of(fd), [*missing, name]

    def _follow_links(self, inner: str) -> str:
        """The target of a write to a symlink; each hop is resolved like any other path."""
        for _ in range(_MAX_LINKS):
            way, _, name = inner.rpartition("/")
            try:
                with closing_fd(self.open_below(way or ".", os.O_PATH | os.O_DIRECTORY)) as fd:
                    target = os.readlink(name, dir_fd=fd)
            except OSError as error:
                if error.errno in {errno.EINVAL, errno.ENOENT}:
                    return inner
                raise
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            inner = join(way, "/".join(p for p in target.split("/") if p not in {"", "."}))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    # Access checks.

    def place_of(self, fd: int) -> str:
        """The real path of a descriptor below the root, symlinks resolved; "" is the root."""
        root, here = os.readlink(proc_path(self.fd)), os.readlink(proc_path(fd))
        if os.fstat(fd).st_nlink == 0:  # the kernel appends " (deleted)" to its name
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if here == root:
            return ""
        prefix = root.rstrip("/") + "/"
        if not here.startswith(prefix):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return here.removeprefix(prefix)

    def _place(self, fd: int) -> str:
        return "" if self._access_check is None else self.place_of(fd)

    def check_access(self, place: str, *, writing: bool, is_link: bool = False) -> None:
        if self._access_check is not None and place:
            self._access_check(place, writing=writing, is_link=is_link)

    def _check_tree_access(
        self, place: str, new_place: str, *, mode: int, recursive: bool = True
    ) -> None:
        # Moving an ancestor must neither remove nor create a protected name: `.git` may not be
        # moved while `.git/hooks` is read-only, nor `x` to `.git` with hooks in it.
        if self._access_check is None:
            return
        self.check_access(place, writing=True)
        is_moved = place != new_place
        self.check_access(new_place, writing=True, is_link=is_moved and stat.S_ISLNK(mode))
        if recursive and stat.S_ISDIR(mode):
            for step in self.walk(place, max_entries=MAX_WALK_ENTRIES):
                self.check_access(step.path, writing=True)
                self.check_access(
                    new_place + step.path.removeprefix(place),
                    writing=True,
                    is_link=is_moved and stat.S_ISLNK(step.status.st_mode),
                )

    def is_visible(self, place: str) -> bool:
        try:
            self.check_access(place, writing=False)
        except WorkspaceError:
            return False
        return True


def on_disk(size_bytes: int) -> int:
    """The disk space of a file of that size."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def status_of(root: Root, path: str) -> os.stat_result | None:
    """The status of an exact path; None if it does not exist."""
    try:
        with root.node(path) as node:
            return os.fstat(node)
    except OSError as error:
        # A symlink or a file on the path: nothing exists below it.
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}:
            return None
        raise from_os_error(path, error) from error
