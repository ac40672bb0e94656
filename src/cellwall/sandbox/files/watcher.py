"""Watches a workspace: inotify events become file changes (FS-7).

Bounded: events stay in the kernel's queue and are read in pieces, when a caller asks. Events that
do not fit, there or in memory, are reported as one `overflow`, and the tree is scanned anew.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from cellwall.core.files import FileChange
from cellwall.sandbox.files.descriptors import closing_fd, translate_os_errors
from cellwall.sandbox.files.inotify import (
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_IGNORED,
    IN_MODIFY,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    IN_UNMOUNT,
    InotifyEvent,
    WatchedDirectory,
    WatchedTree,
    parse_events,
)
from cellwall.sandbox.files.paths import as_text, join
from cellwall.sandbox.files.root import Root

MAX_DIRECTORIES = 8192  # the lowest default of fs.inotify.max_user_watches
MAX_NAMES = 262_144
_READ_BYTES = 64 * 1024
_MAX_QUEUED = 16_384
_MAX_READS = 1024
_MOVE_PAIR_WITHIN_S = 0.05
"""The two events of a move follow each other; a lone first one is a move out of the tree."""


class Watcher:
    """An open watch on a directory beneath a root; owns `root`."""

    def __init__(
        self,
        root: Root,
        path: str,
        *,
        recursive: bool,
        max_directories: int = MAX_DIRECTORIES,
        max_names: int = MAX_NAMES,
    ) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._wait_until: float | None = None
        self._queue: deque[InotifyEvent] = deque()
        self._changes: list[FileChange] = []
        self._held_back: list[FileChange] = []
        """Changes read at the switch to another root, reported with the next ones."""
        self._just_modified: set[str] = set()
        self._closed = self._ended = False
        inner = root.inner(path)
        with translate_os_errors(path):
            with closing_fd(root.open_below(inner, os.O_PATH | os.O_DIRECTORY)) as fd:
                self._top = root.place_of(fd)
            root.check_access(self._top, writing=False)
            tree = WatchedTree(
                root, recursive=recursive, max_directories=max_directories, max_names=max_names
            )
            try:
                tree.watch_below(self._top)
                if tree.lost is not None:
                    raise tree.lost
            except BaseException:
                tree.close()
                raise
        self._tree = tree

    def __del__(self) -> None:
        # A caller that leaves the loop over the changes early rarely closes the watcher.
        if hasattr(self, "_tree"):
            self.close()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def patience_s(self) -> float | None:
        until = self._wait_until
        return None if until is None else max(until - time.monotonic(), 0.0)

    def fileno(self) -> int:
        return self._tree.fd

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if not self._closed:
                self._tree.clear()  # IN_IGNORED wakes a waiting reader

    def close(self) -> None:
        with self._lock:
            self._ended = True
            if not self._closed:
                self._closed = True
                self._tree.close()
                self._root.close()

    def release(self) -> None:
        """The root is about to be closed: read the queued events, then stop watching."""
        with self._lock:
            if self._closed or self._root.fd < 0:
                return
            self._changes, self._just_modified = self._held_back, set()
            with suppress(BlockingIOError):
                for _ in range(_MAX_READS):
                    self._read_events()
                    self._process_events()
            self._wait_until = 0.0  # no second event of a move can follow
            self._process_events()
            self._wait_until = None
            self._queue.clear()
            if len(self._changes) > _MAX_QUEUED:
                self._changes = [FileChange("overflow", self._shown(self._top or "."))]
            self._held_back = self._changes
            self._tree.clear()
            self._root.close()

    def switch_to(self, root: Root) -> None:
        """Continue beneath another root with the same files."""
        with self._lock:
            if self._closed or self._ended:
                root.close()
                return
            self._root = self._tree.root = root
            self._tree.watch_below(self._top)
            self._ended = self._top not in self._tree.by_path

    def take(self) -> Sequence[FileChange]:
        with self._lock:
            if self._ended:
                return ()
            self._changes, self._just_modified = self._held_back, set()
            self._held_back = []
            if len(self._queue) < _MAX_QUEUED:
                with suppress(BlockingIOError):
                    self._read_events()
            self._process_events()
            if self._tree.lost is not None:
                # Too many directories, or one that cannot be opened: changes there are missed,
                # and the caller must know that the report is incomplete.
                self._tree.lost = None
                self._changes.append(FileChange("overflow", self._shown(self._top or ".")))
            if self._root.fd >= 0 and os.fstat(self._root.fd).st_nlink == 0:
                self._ended = True
            return tuple(self._changes)

    def _read_events(self) -> None:
        self._queue.extend(parse_events(os.read(self._tree.fd, _READ_BYTES)))

    def _process_events(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Process one event, or the two of a move; False without a complete one."""
        if self._ended or not self._queue:
            return False
        event = self._queue[0]
        if event.mask & IN_MOVED_FROM:
            other = next(
                (n for n in self._queue if n.mask & IN_MOVED_TO and n.cookie == event.cookie),
                None,
            )
            if other is None and len(self._queue) < _MAX_QUEUED and self._may_wait():
                return False
            self._wait_until = None
            self._queue.popleft()
            if other is None:
                self._handle_removal(event)
            else:
                self._queue.remove(other)
                self._handle_move(event, other)
            return True
        self._queue.popleft()
        if event.mask & IN_Q_OVERFLOW:
            self._rescan()
        elif event.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED):
            self._handle_lost_watch(event)
        elif event.mask & IN_DELETE:
            self._handle_removal(event)
        elif event.mask & (IN_CREATE | IN_MOVED_TO):
            self._handle_creation(event)
        elif event.mask & IN_MODIFY:
            self._handle_modification(event)
        return True

    def _may_wait(self) -> bool:
        now = time.monotonic()
        if self._wait_until is None:
            self._wait_until = now + _MOVE_PAIR_WITHIN_S
        return now < self._wait_until

    def _locate(self, event: InotifyEvent) -> tuple[WatchedDirectory, str] | None:
        """The directory and the path of an event; None if the path is hidden or unknown."""
        directory = self._tree.by_watch.get(event.watch)
        if directory is None:
            return None
        path = join(directory.path, event.name)
        return (directory, path) if self._tree.is_visible(path) else None

    def _handle_creation(self, event: InotifyEvent) -> None:
        located = self._locate(event)
        if located is None:
            return
        directory, path = located
        if self._tree.add_name(directory, event.name):
            self._change("created", path)
        elif event.mask & IN_MOVED_TO:  # replaces an older file, as editors save
            self._change("modified", path)
        if event.is_dir:
            self._watch_below(path)

    def _watch_below(self, path: str) -> None:
        # Names created before the watch was in place caused no event.
        if self._tree.recursive:
            for new in self._tree.watch_below(path):
                self._change("created", new)

    def _handle_modification(self, event: InotifyEvent) -> None:
        located = self._locate(event)
        if located is not None and located[1] not in self._just_modified:
            self._change("modified", located[1])
            self._just_modified.add(located[1])

    def _handle_removal(self, event: InotifyEvent) -> None:
        located = self._locate(event)
        if located is None:
            return
        directory, path = located
        if self._tree.remove_name(directory, event.name):
            self._change("removed", path)
        if event.is_dir:
            self._tree.drop(path)

    def _handle_move(self, event: InotifyEvent, other: InotifyEvent) -> None:
        source, target = self._locate(event), self._locate(other)
        if source is None or event.name not in source[0].names:
            self._handle_creation(other)
        elif target is None:
            self._handle_removal(event)
        else:
            self._tree.remove_name(source[0], event.name)
            self._tree.add_name(target[0], other.name)
            self._change("moved", source[1], target[1])
            if event.is_dir:
                self._tree.drop(target[1])  # an empty directory that was replaced
                self._tree.move(source[1], target[1])
                # Names that were hidden at the old path can be visible at the new one.
                self._watch_below(target[1])

    def _handle_lost_watch(self, event: InotifyEvent) -> None:
        directory = self._tree.by_watch.get(event.watch)
        if directory is None:
            return
        if directory.path == self._top:
            if self._top:
                self._change("removed", self._top)
            self._ended = True
        elif event.mask & (IN_IGNORED | IN_UNMOUNT):
            self._tree.drop(directory.path)

    def _rescan(self) -> None:
        # The kernel dropped events, perhaps of new directories as well.
        self._changes.append(FileChange("overflow", self._shown(self._top or ".")))
        self._wait_until = None
        self._queue.clear()
        self._tree.clear()
        self._tree.watch_below(self._top)
        self._tree.lost = None  # reported by the overflow
        self._ended = self._top not in self._tree.by_path

    def _change(
        self, kind: Literal["created", "modified", "removed", "moved"], path: str, target: str = ""
    ) -> None:
        self._just_modified.discard(path)
        moved_to = self._shown(target) if target else ""
        self._changes.append(FileChange(kind, self._shown(path), moved_to))

    def _shown(self, path: str) -> str:
        return as_text(self._root.shown(path))
