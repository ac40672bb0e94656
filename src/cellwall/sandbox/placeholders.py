"""Placeholders: protected names that do not exist yet, made so that they can be covered (FS-4).

A name can be mounted over only if it exists. For the time of a read-write run the missing ones are
made in the user's directory, as empty directories whatever they stand for: git does not see those,
so nobody commits them, and nothing can be written where a directory is. They are taken away by the
last run that works there: removing one under another run's feet would take that run's cover away
too. A note on disk lets a later start clean up after a crash.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.beneath import Beneath
from cellwall.sandbox.protected import Placeholder

_LOCK_TRIES = 500
_MOST_NOTE_BYTES = 256 * 1024


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
                mend="End the program that holds a lock on the directory.",
                code="CW-WORKSPACE-LOCKED",
            )
        yield descriptor
    finally:
        os.close(descriptor)


class Placeholders:
    """The notes of what was put where, one file for each directory, in Cellwall's own state."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def put(self, beneath: Beneath, wanted: Iterable[Placeholder]) -> tuple[str, ...]:
        """Make what is missing; returns all that stand here, those of other runs too.

        The note comes first: a crash leaves nothing unknown.
        """
        with self._note(beneath) as (place, noted):
            missing = {
                found for item in wanted if (found := _missing(beneath, item, noted)) is not None
            }
            standing = [*noted, *sorted(missing.difference(noted))]
            if missing:
                self._save(beneath, place, standing)
            for path in sorted(missing):
                # Somebody may have taken a noted one away, or put a file there.
                with suppress(FileExistsError), beneath.parent(path) as (parent, name):
                    os.mkdir(name, 0o755, dir_fd=parent)
            return tuple(standing)

    def remove(self, beneath: Beneath, lock: int) -> None:
        """Take away what is noted, unless another run still works in the directory."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        with self._note(beneath) as (place, noted):
            left = [path for path in reversed(noted) if not _is_removed(beneath, path)]
            if left:
                self._save(beneath, place, sorted(left))
                return
            with suppress(FileNotFoundError):
                os.unlink(self._path(beneath))

    def sweep(self) -> None:
        """At start: tidy up after runs that were killed."""
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.endswith(".new"):
                self._drop_half_made(path)
            with suppress(OSError, ValueError, KeyError, TypeError, WorkspaceError):
                with open(path, "rb") as file:
                    place = json.loads(file.read(_MOST_NOTE_BYTES))["place"]
                with Beneath.open(place) as beneath, shared_lock(beneath.fd) as lock:
                    if self._path(beneath) == path:  # else another directory has that name now
                        self.remove(beneath, lock)

    def _drop_half_made(self, path: str) -> None:
        with self._locked(), suppress(FileNotFoundError):  # nobody is writing it now
            os.unlink(path)

    def _path(self, beneath: Beneath) -> str:
        info = os.fstat(beneath.fd)
        return os.path.join(self._directory, f"{info.st_dev}-{info.st_ino}.json")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock_path = os.path.join(self._directory, ".lock")
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a few system calls only
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _note(self, beneath: Beneath) -> Iterator[tuple[str, list[str]]]:
        with self._locked():
            noted: list[str] = []
            with suppress(FileNotFoundError, ValueError), open(self._path(beneath), "rb") as file:
                noted = json.loads(file.read(_MOST_NOTE_BYTES))["names"]
            yield os.readlink(f"/proc/self/fd/{beneath.fd}"), noted

    def _save(self, beneath: Beneath, place: str, noted: list[str]) -> None:
        path = self._path(beneath)
        with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"place": place, "names": noted}, file)
        os.replace(f"{path}.new", path)


def _missing(beneath: Beneath, item: Placeholder, noted: Collection[str]) -> str | None:
    """The first name on the way that is not there: a missing `.git` is held as a whole, also by
    a run that finds the placeholder of another one there."""
    parts = item.path.split("/")
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        if path in noted:
            return path
        try:
            with beneath.node(path) as node:
                is_dir = stat.S_ISDIR(os.fstat(node).st_mode)
        except FileNotFoundError:
            return path
        if not is_dir:
            return None  # a file or a link in the way: nothing can be planted below it
    return None


def _is_removed(beneath: Beneath, path: str) -> bool:
    """Gone, or not ours any more because something lies in it."""
    try:
        with beneath.parent(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)
    except OSError as error:
        return error.errno in {errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR}
    return True
