"""inotify: its events as plain data, and the watched directories of a workspace (FS-1, FS-7)."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.files.descriptors import TEMPORARY_NAME, closing_fd, from_os_error, path_error
from cellwall.sandbox.files.paths import join
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.linux._syscalls import inotify_forget, inotify_open, inotify_watch

IN_MODIFY = 0x002
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

MASK = (
    IN_MODIFY
    | IN_MOVED_FROM
    | IN_MOVED_TO
    | IN_CREATE
    | IN_DELETE
    | IN_DELETE_SELF
    | IN_MOVE_SELF
    | IN_ONLYDIR
)

_HEAD = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class InotifyEvent:
    """One event: `watch` names the directory, `cookie` joins the two events of a move."""

    watch: int
    mask: int
    cookie: int
    name: str

    @property
    def is_dir(self) -> bool:
        return bool(self.mask & IN_ISDIR)


def parse_events(data: bytes) -> Iterator[InotifyEvent]:
    """Parse the bytes of one read of the inotify descriptor."""
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = data[at : at + length].rstrip(b"\0")
        at += length
        yield InotifyEvent(watch, mask, cookie, os.fsdecode(name))


# Removed or replaced since: queued events report the change.
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


@dataclass(slots=True)
class WatchedDirectory:
    """A watched directory and the names in it that were reported."""

    watch: int
    path: str
    names: set[str] = field(default_factory=set)


class WatchedTree:
    """The watched directories, by watch descriptor and by path.

    Each is opened beneath the root by its exact path, without symlinks, and watched by that
    descriptor. Names that the access check hides, unfinished files of Cellwall, and everything
    below them are left out.
    """

    def __init__(
        self, root: Root, *, recursive: bool, max_directories: int, max_names: int
    ) -> None:
        self.root = root
        self.recursive = recursive
        self._max_directories = max_directories
        self._max_names = max_names
        self.by_watch: dict[int, WatchedDirectory] = {}
        self.by_path: dict[str, WatchedDirectory] = {}
        self._names_left = max_names
        self.lost: WorkspaceError | None = None
        """Why some directory is not watched; the reader that reports it clears it."""
        try:
            self.fd = inotify_open()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise path_error(
                ".", "CW-WATCH-LIMIT", "cannot be watched: too many watches are open"
            ) from error

    def close(self) -> None:
        os.close(self.fd)

    def is_visible(self, path: str) -> bool:
        return TEMPORARY_NAME.fullmatch(path.rpartition("/")[2]) is None and self.root.is_visible(
            path
        )

    def watch_below(self, top: str) -> list[str]:
        """Watch a directory and those below it; returns the content of newly watched directories.

        A directory that was removed is skipped; one that cannot be watched sets `lost`. For one
        that was watched before, queued events report names that were not reported yet.
        """
        new: list[str] = []
        pending = [top]
        while pending:
            here = pending.pop()
            try:
                directory, listing, is_new = self._watch(here)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    self.lost = from_os_error(here, error)
                continue
            except WorkspaceError as error:
                self.lost = error
                continue
            if is_new:
                for name in sorted(listing):
                    if self.is_visible(join(here, name)):
                        self.add_name(directory, name)
                        new.append(join(here, name))
            if self.recursive:
                below = (name for name, is_dir in listing.items() if is_dir)
                pending.extend(join(here, name) for name in below if name in directory.names)
        return new

    def _watch(self, path: str) -> tuple[WatchedDirectory, dict[str, bool], bool]:
        flags = os.O_RDONLY | os.O_DIRECTORY
        with closing_fd(self.root.open_below(path or ".", flags, links=False)) as fd:
            if path not in self.by_path and len(self.by_path) >= self._max_directories:
                raise path_error(path or ".", "CW-WATCH-TOO-LARGE", "holds too many directories")
            try:
                watch = inotify_watch(self.fd, fd, mask=MASK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                why = "is one directory more than this user may watch"
                raise path_error(path or ".", "CW-WATCH-TOO-LARGE", why) from error
            listing: dict[str, bool] = {}
            with os.scandir(fd) as entries:
                for entry in entries:
                    listing[entry.name] = entry.is_dir(follow_symlinks=False)
                    if len(listing) > self._max_names:
                        raise path_error(path or ".", "CW-WATCH-TOO-LARGE", "holds too many names")
            if self.root.place_of(fd) != path:
                # Moved since it was opened, perhaps to a hidden path: its names are not reported.
                if watch not in self.by_watch:
                    self._forget(watch)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        known = self.by_watch.get(watch)
        if known is not None and known.path == path:
            return known, listing, False
        # One watch descriptor per directory: the entries of its old path, and of the directory
        # that had this path before, are stale.
        for stale in (known, self.by_path.get(path)):
            if stale is not None:
                self._unregister(stale)
        directory = WatchedDirectory(watch, path)
        self.by_watch[watch] = self.by_path[path] = directory
        return directory, listing, True

    def add_name(self, directory: WatchedDirectory, name: str) -> bool:
        """Record a reported name; False if it was recorded already."""
        if name in directory.names:
            return False
        if self._names_left <= 0:
            self.lost = path_error(
                directory.path or ".", "CW-WATCH-TOO-LARGE", "holds too many names"
            )
            return True
        directory.names.add(name)
        self._names_left -= 1
        return True

    def remove_name(self, directory: WatchedDirectory, name: str) -> bool:
        """Forget a removed name; False if it was never reported."""
        if name not in directory.names:
            return False
        directory.names.remove(name)
        self._names_left += 1
        return True

    def move(self, old: str, new: str) -> None:
        """Update the paths of a renamed directory and of every watched directory below it."""
        for directory in self._at_or_below(old):
            path = new + directory.path.removeprefix(old)
            del self.by_path[directory.path]
            directory.path = path
            self.by_path[path] = directory
        for directory in self._at_or_below(new):
            parts = directory.path.split("/")
            if not all(self.is_visible("/".join(parts[:end])) for end in range(1, len(parts) + 1)):
                self._drop(directory)
                continue
            for name in list(directory.names):
                if not self.is_visible(join(directory.path, name)):
                    self.remove_name(directory, name)

    def drop(self, path: str) -> None:
        """Stop watching a directory that was removed or became hidden, and all below it."""
        for directory in self._at_or_below(path):
            self._drop(directory)

    def clear(self) -> None:
        """Stop watching everything; queued events are ignored from then on."""
        for directory in list(self.by_path.values()):
            self._drop(directory)

    def _at_or_below(self, path: str) -> list[WatchedDirectory]:
        top = self.by_path.get(path)
        if top is None:
            return []
        prefix = path + "/"
        return [top, *(d for d in self.by_path.values() if d.path.startswith(prefix))]

    def _drop(self, directory: WatchedDirectory) -> None:
        self._unregister(directory)
        self._forget(directory.watch)

    def _unregister(self, directory: WatchedDirectory) -> None:
        self.by_watch.pop(directory.watch, None)
        self._names_left += len(directory.names)
        directory.names.clear()
        if self.by_path.get(directory.path) is directory:
            del self.by_path[directory.path]

    def _forget(self, watch: int) -> None:
        with suppress(OSError):  # the kernel ended the watch when the directory was removed
            inotify_forget(self.fd, watch)
