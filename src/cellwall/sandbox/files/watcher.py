"""Tells what changes in a workspace as it changes (FS-7): notices of the kernel become changes.

Bounded: the kernel's queue is the queue, read one piece at a time when somebody asks. What does not
fit, there or in our memory, is told as one `overflow`, and the tree is looked at anew.
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
from cellwall.sandbox.files.descriptors import held
from cellwall.sandbox.files.errors import telling
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
    Directory,
    Notice,
    WatchedTree,
    notices,
)
from cellwall.sandbox.files.root import Root, as_text, inner_path, join

DIRECTORIES_MAX = 8192  # the least that kernels allow a user
NAMES_MAX = 262_144
_READ_BYTES = 64 * 1024
_WAITING_MAX = 16_384
_READS_MAX = 1024
_OTHER_HALF_WITHIN_S = 0.05
"""The halves of a move come one after the other; a first half alone has left what is watched."""


class Watcher:
    """An open watch on a directory beneath a root; owns `root`."""

    def __init__(
        self,
        root: Root,
        path: str,
        *,
        recursive: bool,
        max_directories: int = DIRECTORIES_MAX,
        max_names: int = NAMES_MAX,
    ) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._held_until: float | None = None
        self._waiting: deque[Notice] = deque()
        self._changes: list[FileChange] = []
        self._kept_back: list[FileChange] = []
        """Seen when it went over to another root, and told with what comes next."""
        self._just_modified: set[str] = set()
        self._closed = self._ended = False
        inner = inner_path(path)
        with telling(path):
            with held(root.open_below(inner, os.O_PATH | os.O_DIRECTORY)) as fd:
                self._top = root.place_of(fd)
            root.ask(self._top, writing=False)
            tree = WatchedTree(
                root, recursive=recursive, max_directories=max_directories, max_names=max_names
            )
            try:
                tree.grow(self._top)
                if tree.lost is not None:
                    raise tree.lost
            except BaseException:
                tree.close()
                raise
        self._tree = tree

    def __del__(self) -> None:
        # Whoever leaves a loop over the changes early rarely closes it.
        if hasattr(self, "_tree"):
            self.close()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def patience_s(self) -> float | None:
        until = self._held_until
        return None if until is None else max(until - time.monotonic(), 0.0)

    def fileno(self) -> int:
        return self._tree.fd

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if not self._closed:
                self._tree.clear()  # which the kernel notices, and whoever waits wakes up

    def close(self) -> None:
        with self._lock:
            self._ended = True
            if not self._closed:
                self._closed = True
                self._tree.close()
                self._root.close()

    def let_go(self) -> None:
        """The root is about to be closed: take in what happened in it, and watch nothing."""
        with self._lock:
            if self._closed or self._root.fd < 0:
                return
            self._changes, self._just_modified = self._kept_back, set()
            with suppress(BlockingIOError):
                for _ in range(_READS_MAX):
                    self._hear()
                    self._work_off()
            self._held_until = 0.0  # no other half of a move comes from here any more
            self._work_off()
            self._held_until = None
            self._waiting.clear()
            if len(self._changes) > _WAITING_MAX:
                self._changes = [FileChange("overflow", as_text(self._top or "."))]
            self._kept_back = self._changes
            self._tree.clear()
            self._root.close()

    def follow(self, root: Root) -> None:
        """Go on beneath another root with the same files in it."""
        with self._lock:
            if self._closed or self._ended:
                root.close()
                return
            self._root = self._tree.root = root
            self._tree.grow(self._top)
            self._ended = self._tree.at(self._top) is None

    def take(self) -> Sequence[FileChange]:
        with self._lock:
            if self._ended:
                return ()
            self._changes, self._just_modified = self._kept_back, set()
            self._kept_back = []
            if len(self._waiting) < _WAITING_MAX:
                with suppress(BlockingIOError):
                    self._hear()
            self._work_off()
            if self._tree.lost is not None:
                # More than we are willing to watch, or a directory that cannot be opened: what
                # happens there is not seen, and nobody may believe to have seen all.
                self._tree.lost = None
                self._changes.append(FileChange("overflow", as_text(self._top or ".")))
            if self._root.fd >= 0 and os.fstat(self._root.fd).st_nlink == 0:
                self._ended = True
            return tuple(self._changes)

    def _hear(self) -> None:
        self._waiting.extend(notices(os.read(self._tree.fd, _READ_BYTES)))

    def _work_off(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """One notice, or the two of a move; False if there is none, or only half a move."""
        if self._ended or not self._waiting:
            return False
        notice = self._waiting[0]
        if notice.mask & IN_MOVED_FROM:
            other = next(
                (n for n in self._waiting if n.mask & IN_MOVED_TO and n.cookie == notice.cookie),
                None,
            )
            if other is None and len(self._waiting) < _WAITING_MAX and self._may_wait():
                return False
            self._held_until = None
            self._waiting.popleft()
            if other is None:
                self._gone(notice)
            else:
                self._waiting.remove(other)
                self._moved(notice, other)
            return True
        self._waiting.popleft()
        if notice.mask & IN_Q_OVERFLOW:
            self._start_over()
        elif notice.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED):
            self._itself_gone(notice)
        elif notice.mask & IN_DELETE:
            self._gone(notice)
        elif notice.mask & (IN_CREATE | IN_MOVED_TO):
            self._appeared(notice)
        elif notice.mask & IN_MODIFY:
            self._modified(notice)
        return True

    def _may_wait(self) -> bool:
        now = time.monotonic()
        if self._held_until is None:
            self._held_until = now + _OTHER_HALF_WITHIN_S
        return now < self._held_until

    def _seen(self, notice: Notice) -> tuple[Directory, str] | None:
        """The directory and the path a notice is about, if it is one to be told."""
        directory = self._tree.of(notice.watch)
        if directory is None:
            return None
        path = join(directory.path, notice.name)
        return (directory, path) if self._tree.shows(path) else None

    def _appeared(self, notice: Notice) -> None:
        seen = self._seen(notice)
        if seen is None:
            return
        directory, path = seen
        if self._tree.tell(directory, notice.name):
            self._change("created", path)
        elif notice.mask & IN_MOVED_TO:  # put in the place of an older one, as editors save
            self._change("modified", path)
        if notice.is_dir:
            self._look_into(path)

    def _look_into(self, path: str) -> None:
        # What was made there before the watch was in place had no notice.
        if self._tree.recursive:
            for new in self._tree.grow(path):
                self._change("created", new)

    def _modified(self, notice: Notice) -> None:
        seen = self._seen(notice)
        if seen is not None and seen[1] not in self._just_modified:
            self._change("modified", seen[1])
            self._just_modified.add(seen[1])

    def _gone(self, notice: Notice) -> None:
        seen = self._seen(notice)
        if seen is None:
            return
        directory, path = seen
        if self._tree.untell(directory, notice.name):
            self._change("removed", path)
        if notice.is_dir:
            self._tree.drop(path)

    def _moved(self, notice: Notice, other: Notice) -> None:
        source, target = self._seen(notice), self._seen(other)
        if source is None or notice.name not in source[0].names:
            self._appeared(other)
        elif target is None:
            self._gone(notice)
        else:
            self._tree.untell(source[0], notice.name)
            self._tree.tell(target[0], other.name)
            self._change("moved", source[1], target[1])
            if notice.is_dir:
                self._tree.drop(target[1])  # an empty directory that was in the way
                self._tree.move(source[1], target[1])
                # Names that were hidden where they were can be seen where they are.
                self._look_into(target[1])

    def _itself_gone(self, notice: Notice) -> None:
        directory = self._tree.of(notice.watch)
        if directory is None:
            return
        if directory.path == self._top:
            if self._top:
                self._change("removed", self._top)
            self._ended = True
        elif notice.mask & (IN_IGNORED | IN_UNMOUNT):
            self._tree.drop(directory.path)

    def _start_over(self) -> None:
        # The kernel dropped notices, those of new directories perhaps as well.
        self._changes.append(FileChange("overflow", as_text(self._top or ".")))
        self._held_until = None
        self._waiting.clear()
        self._tree.clear()
        self._tree.grow(self._top)
        self._tree.lost = None  # was just told
        self._ended = self._tree.at(self._top) is None

    def _change(
        self, kind: Literal["created", "modified", "removed", "moved"], path: str, target: str = ""
    ) -> None:
        self._just_modified.discard(path)
        self._changes.append(FileChange(kind, as_text(path), as_text(target)))
