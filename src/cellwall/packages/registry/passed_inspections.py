"""Artifacts that have passed the inspection, remembered from one process to the next (PKG-1).

An entry says: these bytes, under this name in the index, raised no objection in this edition of the
inspection. All of that is in the digest that names the entry, so an entry cannot hold for anything
else. The hash of the bytes is checked by each process before the entry is asked for. Refusals are
not remembered: they are rare, and their reasons are made by the inspection.

An entry counts only as a file of this user in a folder that no other user can write, with its own
name as its content: what is damaged, cut or foreign is inspected again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

MAX_ENTRIES = 20_000
_TRIM_EVERY = 256
_DRAFT = ".draft-"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PassedInspections:
    """One folder of entries. Safe for threads and processes; a failed write only costs time."""

    def __init__(
        self, folder: str, edition: Callable[[], str | None], *, max_entries: int = MAX_ENTRIES
    ) -> None:
        """`edition` of the inspection; None: nothing is remembered."""
        self._folder = folder
        self._edition = edition
        self._max_entries = max_entries
        self._untrimmed = _TRIM_EVERY

    def has(self, *subject: str | None) -> bool:
        """Whether an artifact has passed; `subject` is all that its inspection depends on."""
        name = self._name(subject)
        if name is None:
            return False
        try:
            with self._opened() as folder:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with open(os.open(name, flags, dir_fd=folder), "rb") as entry:
                    is_own = _is_private(os.fstat(entry.fileno()), stat.S_IFREG)
                    is_whole = is_own and entry.read(len(name) + 2) == f"{name}\n".encode()
                    if is_whole:
                        os.utime(entry.fileno())  # the time of use, for `_trim`
                    return is_whole
        except OSError:
            return False

    def add(self, *subject: str | None) -> None:
        """Remember that an artifact has passed."""
        name = self._name(subject)
        if name is None:
            return
        with suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with self._opened() as folder:
                self._write(folder, name)
                self._untrimmed += 1
                if self._untrimmed >= _TRIM_EVERY:
                    self._untrimmed = 0
                    self._trim(folder)

    def _name(self, subject: tuple[str | None, ...]) -> str | None:
        edition = self._edition()
        if edition is None:
            return None
        return hashlib.sha256(json.dumps([edition, *subject]).encode()).hexdigest()

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder; `PermissionError` if others can write there."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._folder, flags)
        try:
            if not _is_private(os.fstat(folder), stat.S_IFDIR):
                raise PermissionError
            yield folder
        finally:
            os.close(folder)

    @staticmethod
    def _write(folder: int, name: str) -> None:
        draft = f"{_DRAFT}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as entry:
            entry.write(f"{name}\n".encode())
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _trim(self, folder: int) -> None:
        """Remove what was not used for the longest time; drafts of killed writers go as well."""
        used = []
        with os.scandir(folder) as entries:
            for each in entries:
                with suppress(FileNotFoundError):  # another process trims as well
                    used.append((each.stat(follow_symlinks=False).st_mtime, each.name))
        for _, name in sorted(used)[: max(0, len(used) - self._max_entries)]:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _is_private(info: os.stat_result, kind: int) -> bool:
    is_own = info.st_uid == os.geteuid() and not info.st_mode & _WRITABLE_BY_OTHERS
    return is_own and stat.S_IFMT(info.st_mode) == kind
