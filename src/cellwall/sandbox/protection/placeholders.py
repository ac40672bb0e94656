"""Placeholders: missing protected names, created so that a mount can cover them (FS-4).

A mount needs an existing name. For the duration of a read-write run the missing names are created
in the user's directory, as empty directories whatever they stand for: git ignores empty
directories, so they are not committed, and no file can be written in their place. Only a file of a
git directory is created as an empty file: git refuses to work with a directory in its place.

The reaper (linux/cell/reaper.c), a process that outlives this one, removes them once no run works
in the directory: each run holds a shared lock on the directory itself, whatever its state folder.
Removing a placeholder during another run would remove that run's cover. A journal in the state
folder lists the placeholders; the next start after a crash of both processes sweeps it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from cellwall.core.errors import CellwallError, WorkspaceError
from cellwall.core.forks import OwnerProcess
from cellwall.core.git_names import fold, is_in_version_control
from cellwall.core.protected_names import Placeholder
from cellwall.sandbox.files.descriptors import closing_fd, is_empty_dir, proc_path
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.linux.outside_processes import placeholder_reaper
from cellwall.sandbox.protection.host_directory import ExtraCovers

_LOCK_TRIES = 500
_MAX_JOURNAL_BYTES = 256 * 1024  # as in cell/reaper.c
_SUFFIX = ".journal"

PlaceholderKind = Literal["dir", "file"]
PlaceholderStep = Literal["make", "hold", "pin"]


@contextmanager
def shared_lock(dir_fd: int) -> Iterator[int]:
    """Take a lock on the directory itself, shared by every run that works in it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with closing_fd(os.open(proc_path(dir_fd), flags)) as descriptor:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)  # another process is removing placeholders
        else:
            raise WorkspaceError(
                "the workspace is locked by another program",
                hint="End the program that holds a lock on the directory.",
                code="CW-WORKSPACE-LOCKED",
            )
        yield descriptor


@dataclass(frozen=True, slots=True)
class LeftoverPlaceholders:
    """A directory in which placeholders of a journal exist."""

    directory: str
    names: tuple[str, ...]
    is_in_use: bool
    """Whether live runs work there; else the placeholders are leftovers."""


@dataclass(slots=True)
class _Journal:
    """The placeholders of one directory: inode (0: not known yet) and kind of each path."""

    path: str
    place: str
    rows: dict[str, tuple[int, PlaceholderKind]]

    def save(self) -> None:
        words = [self.place]
        for name in sorted(self.rows):  # a directory comes before its content
            inode, form = self.rows[name]
            words += [str(inode), form, name]
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(text) > _MAX_JOURNAL_BYTES:
            raise WorkspaceError(
                "the git settings in the directory name too many missing hooks",
                hint="Give the directory as :cow, or a smaller part of it.",
                code="CW-WORKSPACE-TOO-LARGE",
            )
        with open(f"{self.path}.new", "wb") as file:
            file.write(text)
        os.replace(f"{self.path}.new", self.path)


class Placeholders:
    """The journals of placeholders, one for each directory, in the state folder."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.abspath(directory)
        os.makedirs(directory, mode=0o700, exist_ok=True)

    @contextmanager
    def remove_at_end(self, tree: FileTree, lock: int) -> Iterator[None]:
        """At the end of the block, remove the placeholders that `create` made in it.

        The reaper does so if this process dies. `lock` is the descriptor of `shared_lock`; the lock
        lasts until the removal.
        """
        reaper, owner = placeholder_reaper(), OwnerProcess()
        second_lock = os.dup(lock)  # if the reaper is killed, the lock is still held
        try:
            lease = reaper.take(lock, self._path(tree))
            try:
                yield
            finally:
                os.close(second_lock)
                second_lock = -1
                if owner.is_current:  # in a forked child the lease belongs to the parent
                    reaper.give_back(lease)
        finally:
            if second_lock >= 0:
                os.close(second_lock)

    def create(self, tree: FileTree, wanted: Iterable[Placeholder]) -> ExtraCovers:
        """Create missing names. The journal is written first: a crash leaves no unknown file."""
        empty: set[str] = set()
        pinned: set[str] = set()
        with self._lock_journals():
            journal = self._read(tree)
            missing: dict[str, PlaceholderKind] = {}
            top_names = _names_in_root(tree)
            for item in wanted:
                path, step = _plan_placeholder(tree, item, top_names)
                if step == "make":
                    missing[path] = _kind_for(path, item)
                elif step == "hold":
                    empty.add(path)
                elif step == "pin":
                    pinned.add(path)
            # Placeholders of other runs that still exist.
            existing = {path for path, row in journal.rows.items() if _is_intact(tree, path, row)}
            if missing:
                journal.rows = {path: journal.rows[path] for path in existing}
                journal.rows |= {path: (0, form) for path, form in missing.items()}
                journal.save()
                for path, form in sorted(missing.items()):
                    inode = _make(tree, path, form)
                    if inode is None:  # created meanwhile, perhaps by a run of another state folder
                        del journal.rows[path]
                    else:
                        journal.rows[path] = (inode, form)
                journal.save()
        return ExtraCovers(tuple(sorted(empty | existing | set(missing))), tuple(sorted(pinned)))

    def leftovers(self) -> tuple[LeftoverPlaceholders, ...]:
        """The placeholders of all journals; changes nothing."""
        leftovers: list[LeftoverPlaceholders] = []
        for path in self._journals():
            with (
                suppress(OSError, ValueError, CellwallError),
                self._open_journal(path) as (tree, journal),
            ):
                names = (p for p, row in journal.rows.items() if _is_intact(tree, p, row))
                is_in_use = True
                with suppress(BlockingIOError), exclusive_lock(tree.fd):
                    is_in_use = False
                if existing := tuple(sorted(names)):
                    leftovers.append(LeftoverPlaceholders(journal.place, existing, is_in_use))
        return tuple(leftovers)

    def sweep(self) -> None:
        """At start: clean up after runs that were killed together with their reaper."""
        for path in self._journals():
            with (
                suppress(OSError, ValueError, CellwallError),
                self._open_journal(path) as (tree, _journal),
                exclusive_lock(tree.fd) as lock,
                self.remove_at_end(tree, lock),
            ):
                pass

    def _journals(self) -> list[str]:
        paths = []
        for name in sorted(os.listdir(self._directory)):
            path = os.path.join(self._directory, name)
            if name.endswith(".new"):
                with (
                    self._lock_journals(),
                    suppress(FileNotFoundError),
                ):  # no process is writing it now
                    os.unlink(path)
            elif name.endswith(_SUFFIX):
                paths.append(path)
        return paths

    @contextmanager
    def _open_journal(self, path: str) -> Iterator[tuple[FileTree, _Journal]]:
        place = _read_fields(path)[0]
        with FileTree.open(place) as tree:
            if self._path(tree) != path:
                raise ValueError(place)  # another directory has that path now
            yield tree, self._read(tree)

    def _path(self, tree: FileTree) -> str:
        info = os.fstat(tree.fd)
        return os.path.join(self._directory, f"{info.st_dev}-{info.st_ino}{_SUFFIX}")

    @contextmanager
    def _lock_journals(self) -> Iterator[None]:
        lock_path = os.path.join(self._directory, ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with closing_fd(os.open(lock_path, flags, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a few system calls only
            yield

    def _read(self, tree: FileTree) -> _Journal:
        place, path = os.readlink(f"/proc/self/fd/{tree.fd}"), self._path(tree)
        rows: dict[str, tuple[int, PlaceholderKind]] = {}
        with suppress(FileNotFoundError, ValueError):
            words = _read_fields(path)[1:]
            for inode, form, name in zip(words[::3], words[1::3], words[2::3], strict=False):
                rows[name] = (int(inode), "file" if form == "file" else "dir")
        return _Journal(path, place, rows)


@contextmanager
def exclusive_lock(dir_fd: int) -> Iterator[int]:
    """An exclusive lock; `BlockingIOError` while a run works in the directory."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with closing_fd(os.open(proc_path(dir_fd), flags)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor


def _read_fields(path: str) -> list[str]:
    with open(path, "rb") as file:
        text = file.read(_MAX_JOURNAL_BYTES + 1)
    if not text.endswith(b"\0") or len(text) > _MAX_JOURNAL_BYTES:
        raise ValueError(path)
    return [os.fsdecode(word) for word in text[:-1].split(b"\0")]


def _kind_for(path: str, item: Placeholder) -> PlaceholderKind:
    """A file only within a git directory: git fails on a directory in the place of its own file."""
    names = tuple(map(fold, path.split("/")))
    is_file = path == item.path and item.kind == "file" and is_in_version_control(names)
    return "file" if is_file else "dir"


def _names_in_root(tree: FileTree) -> frozenset[str]:
    """One listing instead of an attempt to open each of some fifty names, most of them missing."""
    with closing_fd(tree.open_below(".", os.O_RDONLY | os.O_DIRECTORY, links=False)) as fd:
        return frozenset(os.listdir(fd))


def _plan_placeholder(
    tree: FileTree, item: Placeholder, top_names: frozenset[str]
) -> tuple[str, PlaceholderStep | None]:
    """The first name on the path to create, cover or pin; a missing or empty `.git` is covered as
    a whole. An empty directory may be the placeholder of a run of another state folder."""
    parts = item.path.split("/")
    if parts[0] not in top_names:
        return parts[0], "make"  # on a file system that ignores case, mkdir(2) finds the other name
    for depth in range(1, len(parts) + 1):
        path, is_last = "/".join(parts[:depth]), depth == len(parts)
        try:
            with tree.node(path) as node:
                mode = os.fstat(node).st_mode
        except FileNotFoundError:
            return path, "make"
        if stat.S_ISLNK(mode):
            return path, None  # refused by the scan, or compared after the run
        if not stat.S_ISDIR(mode):
            # A file in the place of a directory: code could replace it by the directory.
            return path, None if is_last and item.kind == "file" else "pin"
        with tree.parent(path) as (parent, name):
            if is_empty_dir(parent, name):
                return path, "hold"
        if is_last and item.kind == "file":
            return path, "pin"
    return item.path, None  # found by the scan


def _make(tree: FileTree, path: str, form: PlaceholderKind) -> int | None:
    """Create a placeholder; returns its inode, None if the name exists now."""
    try:
        with _parent_of(tree, path) as (parent, name):
            if form == "dir":
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(name, flags, 0o644, dir_fd=parent))
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        raise WorkspaceError(
            f"the directory cannot be written to: {os.strerror(error.errno)}",
            hint="Check its owner and permissions, or give it as :cow or :ro.",
            code="CW-WORKSPACE-READ-ONLY",
        ) from error


@contextmanager
def _parent_of(tree: FileTree, path: str) -> Iterator[tuple[int, str]]:
    if "/" not in path:
        yield tree.fd, path  # most are: the root is open already
    else:
        with tree.parent(path) as found:
            yield found


def _is_intact(tree: FileTree, path: str, row: tuple[int, PlaceholderKind]) -> bool:
    inode, form = row
    try:
        with tree.node(path) as node:
            status = os.fstat(node)
    except OSError:
        return False
    is_kind = stat.S_ISDIR if form == "dir" else stat.S_ISREG
    return inode in {0, status.st_ino} and is_kind(status.st_mode)
