"""Placeholders: protected names that do not exist yet, made so that they can be covered (FS-4).

A name can be mounted over only if it exists. For the time of a read-write run the missing ones are
made in the user's directory, as empty directories whatever they stand for: git does not see those,
so nobody commits them, and nothing can be written where a directory is. Only a file of a git
directory is made as an empty file: git refuses to work with a directory in its place.

They are removed by the holder (linux/holder.py), a process that outlives this one, once no run
works in the directory: each run holds a shared lock on the directory itself, whatever state folder
the run belongs to. Removing a placeholder under another run's feet would take that run's cover
away. A journal in the state folder names what was made; a start after a crash of everything
sweeps it.
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
from cellwall.core.protected_names import fold, is_in_version_control
from cellwall.sandbox.files.descriptors import is_empty_dir
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.linux.holder import holder
from cellwall.sandbox.protection.covers import ExtraCovers
from cellwall.sandbox.protection.protected_paths import Placeholder

_LOCK_TRIES = 500
_MAX_JOURNAL_BYTES = 256 * 1024  # as in cell/hold.c
_SUFFIX = ".journal"

PlaceholderKind = Literal["dir", "file"]
PlaceholderStep = Literal["make", "hold", "pin"]


@contextmanager
def shared_lock(dir_fd: int) -> Iterator[int]:
    """A lock on the directory itself, shared by every run that works in it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(f"/proc/self/fd/{dir_fd}", flags)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)  # somebody is just tidying up
        else:
            raise WorkspaceError(
                "the workspace is locked by another program",
                hint="End the program that holds a lock on the directory.",
                code="CW-WORKSPACE-LOCKED",
            )
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class LeftoverPlaceholders:
    """A directory in which placeholders of a journal stand."""

    directory: str
    names: tuple[str, ...]
    is_in_use: bool
    """Runs work there; else the runs are dead and the placeholders are to be removed."""


@dataclass(slots=True)
class _Journal:
    """What was put into one directory: the inode of each path (0: not known yet) and its form."""

    path: str
    place: str
    rows: dict[str, tuple[int, PlaceholderKind]]

    def save(self) -> None:
        words = [self.place]
        for name in sorted(self.rows):  # a directory comes before what is in it
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
    """The journals of what was put where, one for each directory, in Cellwall's own state."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.abspath(directory)
        os.makedirs(directory, mode=0o700, exist_ok=True)

    @contextmanager
    def remove_at_end(self, tree: FileTree, lock: int) -> Iterator[None]:
        """Whatever `put` makes in the directory meanwhile goes at the end, or by whoever outlives
        us. `lock` is the descriptor of `shared_lock`; the lock lasts until then."""
        process, made_by = holder(), os.getpid()
        kept = os.dup(lock)  # if the holder is killed, the lock still stands
        try:
            lease = process.take(lock, self._path(tree))
            try:
                yield
            finally:
                os.close(kept)
                kept = -1
                if os.getpid() == made_by:  # in a forked child it is the parent's
                    process.give_back(lease)
        finally:
            if kept >= 0:
                os.close(kept)

    def create(self, tree: FileTree, wanted: Iterable[Placeholder]) -> ExtraCovers:
        """Make what is missing. The journal comes first: a crash leaves nothing unknown."""
        held: set[str] = set()
        pinned: set[str] = set()
        with self._locked():
            journal = self._read(tree)
            missing: dict[str, PlaceholderKind] = {}
            for item in wanted:
                path, step = _plan_placeholder(tree, item)
                if step == "make":
                    missing[path] = _kind_for(path, item)
                elif step == "hold":
                    held.add(path)
                elif step == "pin":
                    pinned.add(path)
            # Those that other runs put there for reasons of their own, and that still stand.
            standing = {path for path, row in journal.rows.items() if _is_intact(tree, path, row)}
            if missing:
                journal.rows = {path: journal.rows[path] for path in standing}
                journal.rows |= {path: (0, form) for path, form in missing.items()}
                journal.save()
                for path, form in sorted(missing.items()):
                    inode = _make(tree, path, form)
                    if inode is None:  # somebody was faster: a run of another state folder perhaps
                        del journal.rows[path]
                    else:
                        journal.rows[path] = (inode, form)
                journal.save()
        return ExtraCovers(tuple(sorted(held | standing | set(missing))), tuple(sorted(pinned)))

    def leftovers(self) -> tuple[LeftoverPlaceholders, ...]:
        """What the journals say, without changing anything."""
        found: list[LeftoverPlaceholders] = []
        for path in self._journals():
            with (
                suppress(OSError, ValueError, CellwallError),
                self._opened(path) as (tree, journal),
            ):
                names = (p for p, row in journal.rows.items() if _is_intact(tree, p, row))
                is_in_use = True
                with suppress(BlockingIOError), exclusive_lock(tree.fd):
                    is_in_use = False
                if told := tuple(sorted(names)):
                    found.append(LeftoverPlaceholders(journal.place, told, is_in_use))
        return tuple(found)

    def sweep(self) -> None:
        """At start: tidy up after runs that were killed together with their holder."""
        for path in self._journals():
            with (
                suppress(OSError, ValueError, CellwallError),
                self._opened(path) as (tree, _journal),
                exclusive_lock(tree.fd) as lock,
                self.remove_at_end(tree, lock),
            ):
                pass

    def _journals(self) -> list[str]:
        paths = []
        for name in sorted(os.listdir(self._directory)):
            path = os.path.join(self._directory, name)
            if name.endswith(".new"):
                with self._locked(), suppress(FileNotFoundError):  # nobody is writing it now
                    os.unlink(path)
            elif name.endswith(_SUFFIX):
                paths.append(path)
        return paths

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[FileTree, _Journal]]:
        place = _read_fields(path)[0]
        with FileTree.open(place) as tree:
            if self._path(tree) != path:
                raise ValueError(place)  # another directory has that name now
            yield tree, self._read(tree)

    def _path(self, tree: FileTree) -> str:
        info = os.fstat(tree.fd)
        return os.path.join(self._directory, f"{info.st_dev}-{info.st_ino}{_SUFFIX}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock_path = os.path.join(self._directory, ".lock")
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a few system calls only
            yield
        finally:
            os.close(lock)

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
    """Raises `BlockingIOError` where a run works in the directory."""
    descriptor = os.open(f"/proc/self/fd/{dir_fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_fields(path: str) -> list[str]:
    with open(path, "rb") as file:
        text = file.read(_MAX_JOURNAL_BYTES + 1)
    if not text.endswith(b"\0") or len(text) > _MAX_JOURNAL_BYTES:
        raise ValueError(path)
    return [os.fsdecode(word) for word in text[:-1].split(b"\0")]


def _kind_for(path: str, item: Placeholder) -> PlaceholderKind:
    """git stops at a directory in the place of a file of its own, and shows no file there."""
    names = tuple(map(fold, path.split("/")))
    is_file = path == item.path and item.kind == "file" and is_in_version_control(names)
    return "file" if is_file else "dir"


def _plan_placeholder(tree: FileTree, item: Placeholder) -> tuple[str, PlaceholderStep | None]:
    """The first name on the way that is to be made, held or pinned; a missing or an empty `.git`
    is held as a whole. An empty directory may be the placeholder of another state folder's run."""
    parts = item.path.split("/")
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
            # A file where a directory is meant: code would replace it by the directory.
            return path, None if is_last and item.kind == "file" else "pin"
        with tree.parent(path) as (parent, name):
            if is_empty_dir(parent, name):
                return path, "hold"
        if is_last and item.kind == "file":
            return path, "pin"
    return item.path, None  # found by the scan


def _make(tree: FileTree, path: str, form: PlaceholderKind) -> int | None:
    """The inode; None where something is there now."""
    try:
        with tree.parent(path) as (parent, name):
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


def _is_intact(tree: FileTree, path: str, row: tuple[int, PlaceholderKind]) -> bool:
    inode, form = row
    try:
        with tree.node(path) as node:
            status = os.fstat(node)
    except OSError:
        return False
    is_kind = stat.S_ISDIR if form == "dir" else stat.S_ISREG
    return inode in {0, status.st_ino} and is_kind(status.st_mode)
