"""Edits a settings file of another program: read, back up, replace.

The folder is opened first, then the file in it, never through a link: a repository can contain a
link to any file of the user. The file is replaced atomically, if it has not changed since.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.core.errors import CellwallError

MAX_BYTES = 4 * 1024 * 1024
_MAX_BACKUPS = 100
_BACKUP = ".cellwall-backup"


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """The result of an edit."""

    file: str
    is_changed: bool
    backup: str | None = None
    text: bytes | None = None
    """The new content; None: the file does not exist."""


@dataclass(frozen=True, slots=True)
class SettingsContent:
    """The content and status of a file."""

    data: bytes
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class EditedFile:
    """A settings file; `code` and `hint` are for its errors."""

    path: str
    code: str
    hint: str
    own_folders: int = 1
    """How many parent folders belong to the other program: created where missing, and never entered
    through a link."""

    @contextmanager
    def open(self, *, makes: bool) -> Iterator[SettingsFolder | None]:
        """The open folder, created if `makes`; None: it does not exist."""
        try:
            descriptor = self._open_folder(makes=makes)
        except FileNotFoundError:
            if makes:
                raise self.error("is in a folder that does not exist") from None
            yield None
            return
        except OSError as error:
            problem = "is in a folder that is a link or cannot be opened"
            raise self.error(problem, detail=str(error)) from None
        try:
            yield SettingsFolder(self, descriptor)
        except OSError as error:
            raise self.error("could not be read or written", detail=str(error)) from error
        finally:
            os.close(descriptor)

    def _open_folder(self, *, makes: bool) -> int:
        *above, _file = self.path.split("/")
        names = above[len(above) - self.own_folders :]
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open("/".join(above[: -len(names)]) or "/", flags)
        for name in names:
            try:
                if makes:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o777, dir_fd=descriptor)
                below = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def error(self, problem: str, *, detail: str = "") -> CellwallError:
        return CellwallError(
            f"{self.path[-200:]!r} {problem}; nothing was changed",
            hint=self.hint,
            code=self.code,
            detail=detail,
        )


@dataclass(frozen=True, slots=True)
class SettingsFolder:
    """The open folder of a settings file; all names are relative to it."""

    file: EditedFile
    descriptor: int

    def read(self, path: str | None = None) -> SettingsContent | None:
        """The file, or another file in the folder; None: it does not exist."""
        name = os.path.basename(path or self.file.path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            # Attack: a link in a repository could make us write to any file of the user.
            problem = "is a link or cannot be opened"
            raise self.file.error(problem, detail=str(error)) from None
        with os.fdopen(opened, "rb") as stream:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise self.file.error("is not a regular file of reasonable size")
            return SettingsContent(stream.read(MAX_BYTES), status)

    def replace(self, data: bytes, old: SettingsContent | None, *, mode: int = 0o666) -> None:
        """Replace atomically, with the old mode; `mode` is for a new file."""
        name = os.path.basename(self.file.path)
        draft = f".{name}.{secrets.token_hex(8)}"
        before = None if old is None else stat.S_IMODE(old.status.st_mode)
        try:
            write_new(draft, data, self.descriptor, mode=mode, last_mode=before)
            self._check_same(old)
            os.rename(draft, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=self.descriptor)
            raise
        os.fsync(self.descriptor)

    def remove(self, old: SettingsContent) -> None:
        self._check_same(old)
        os.unlink(os.path.basename(self.file.path), dir_fd=self.descriptor)

    def remove_backup(self, path: str) -> None:
        os.unlink(os.path.basename(path), dir_fd=self.descriptor)

    def backups(self) -> list[str]:
        """The existing backups, the newest first."""
        there = set(os.listdir(self.descriptor))
        paths = [path for path in self._backup_paths() if os.path.basename(path) in there]
        return paths[::-1]

    def back_up(self, data: bytes) -> str:
        """Store a backup; an existing backup with other content is never overwritten."""
        for path in self._backup_paths():
            kept = self.read(path)
            if kept is None:
                write_new(os.path.basename(path), data, self.descriptor, mode=0o600)
                return path
            if kept.data == data:
                return path
        raise self.file.error(f"has {_MAX_BACKUPS} backups beside it; remove some")

    def _backup_paths(self) -> Iterator[str]:
        yield self.file.path + _BACKUP
        for number in range(1, _MAX_BACKUPS):
            yield f"{self.file.path}{_BACKUP}.{number}"

    def _check_same(self, old: SettingsContent | None) -> None:
        now = self.read()
        if (now is None) != (old is None) or (now and old and now.data != old.data):
            raise self.file.error("was changed by another program at the same time")


def write_new(
    name: str, data: bytes, folder: int, *, mode: int, last_mode: int | None = None
) -> None:
    """Create a file. With `last_mode` it is 0600 until written: it may contain secrets, and others
    may be able to read the folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    first = mode if last_mode is None else 0o600
    with os.fdopen(os.open(name, flags, first, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        if last_mode is not None:
            os.fchmod(file.fileno(), last_mode)
        os.fsync(file.fileno())
