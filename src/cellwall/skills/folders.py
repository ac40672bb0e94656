"""The directories of skills, read and written by descriptor, and their lock.

$CELLWALL_HOME/skills/approved/NAME/      signed skills; only these can be loaded
$CELLWALL_HOME/skills/quarantine/ID/      proposals that no person has signed yet
$CELLWALL_HOME/skills/lock                shared by readers, exclusive for a writer

Each file is opened once and read once, into memory. No name is resolved twice, so there is no
window between check and use (TOCTOU) in which a file could be exchanged.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

from cellwall.core.errors import CellwallError, SkillRefused
from cellwall.skills.manifest import MANIFEST_NAME, MAX_FILES, check_path, too_many

_MAX_ENTRIES = 2 * MAX_FILES  # files and their directories
_CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

OpenedFile = tuple[str, int, os.stat_result]
"""A regular file: its path, an O_PATH descriptor, and its status when it was opened."""


@contextmanager
def closing_fd(descriptor: int) -> Iterator[int]:
    """Closes the descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(name: str, *, at: int | None = None) -> int:
    """Open a directory itself, never the target of a link."""
    return os.open(name, _DIRECTORY, dir_fd=at)


def walk_files(
    folder: int, prefix: str = "", left: int = _MAX_ENTRIES
) -> Generator[OpenedFile, None, int]:
    """Every file below, in order, except the manifest; other file types are refused.

    `left` entries may follow; the generator returns the rest.
    """
    names = _names(folder, left)
    if prefix and not names:
        raise file_refused(prefix[:-1], "is an empty folder, which no manifest can hold")
    left -= len(names)
    for name in names:
        path = prefix + name
        if path == MANIFEST_NAME:
            continue
        check_path(path)
        with (
            _map_read_errors(path),
            closing_fd(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)) as node,
        ):
            status = os.fstat(node)
            if stat.S_ISDIR(status.st_mode):
                with closing_fd(os.open(_pinned(node), os.O_RDONLY | os.O_DIRECTORY)) as below:
                    left = yield from walk_files(below, f"{path}/", left)
            elif stat.S_ISREG(status.st_mode):
                yield path, node, status
            elif stat.S_ISLNK(status.st_mode):
                raise file_refused(path, "is a symbolic link")
            else:
                raise file_refused(path, "is neither a file nor a folder")
    return left


def _names(folder: int, most: int) -> list[str]:
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) >= most:
                raise too_many()
            names.append(entry.name)
    return sorted(names)


def read_once(path: str, node: int, status: os.stat_result, *, max_bytes: int) -> bytes:
    """The whole content of a regular file, refused if it changed meanwhile."""
    if status.st_nlink != 1:
        # Through the other link it may be a secret that we would hand out, or writable by a user
        # who cannot write here.
        raise file_refused(path, "has a second name (a hard link)", hint="Put a copy in its place.")
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        raise file_refused(path, "has a set-id or sticky bit")
    if status.st_size > max_bytes:
        raise file_refused(path, "is too large", code="CW-SKILL-TOO-LARGE")
    with (
        _map_read_errors(path),
        closing_fd(os.open(_pinned(node), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)) as file,
    ):
        parts: list[bytes] = []
        left = status.st_size + 1  # one more byte, to detect growth
        while left > 0 and (part := os.read(file, min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
        if left != 1 or _version(os.fstat(file)) != _version(status):
            raise file_refused(path, "was changed while it was read", code="CW-SKILL-CHANGED")
    return b"".join(parts)


def read_named(folder: int, name: str, *, max_bytes: int) -> bytes | None:
    """One file of a directory, or None if there is none."""
    try:
        node = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    with closing_fd(node):
        status = os.fstat(node)
        if not stat.S_ISREG(status.st_mode):
            raise file_refused(name, "is not a plain file")
        return read_once(name, node, status, max_bytes=max_bytes)


def is_executable(status: os.stat_result) -> bool:
    """By its owner; the other bits depend on the umask."""
    return bool(status.st_mode & stat.S_IXUSR)


def write_folder(
    at: int, name: str, files: Mapping[str, bytes], executables: frozenset[str]
) -> None:
    """Create a directory with these files, durable when this returns; private to the user."""
    os.mkdir(name, 0o700, dir_fd=at)
    with closing_fd(open_directory(name, at=at)) as folder:
        directories = {""}
        for path in sorted(files):
            for end, character in enumerate(path):
                if character == "/" and path[:end] not in directories:
                    os.mkdir(path[:end], 0o700, dir_fd=folder)
                    directories.add(path[:end])
            _write_new(folder, path, files[path], mode=0o500 if path in executables else 0o400)
        for place in directories:
            with closing_fd(open_directory(place or ".", at=folder)) as directory:
                os.fsync(directory)


def replace_file(folder: int, name: str, content: bytes, *, mode: int) -> None:
    """Replace a file atomically."""
    draft = f"{name}.{secrets.token_hex(8)}"
    try:
        _write_new(folder, draft, content, mode=mode)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _write_new(folder: int, path: str, content: bytes, *, mode: int) -> None:
    with closing_fd(os.open(path, _NEW_FILE, 0o600, dir_fd=folder)) as file:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        os.fchmod(file, mode)
        os.fsync(file)


def file_refused(
    path: str, why: str, *, code: str = "CW-SKILL-FILE", hint: str = "Remove or replace it."
) -> SkillRefused:
    """The file, relative to the skill, and the reason."""
    return SkillRefused(f"{path[:200]!r} {why}", hint=hint, code=code)


@contextmanager
def _map_read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise file_refused(path, "was removed while it was read", code="CW-SKILL-CHANGED") from None
    except OSError as error:
        raise SkillRefused(
            f"{path[:200]!r} cannot be read",
            hint="Check its permissions.",
            code="CW-SKILL-UNREADABLE",
            detail=str(error),
        ) from None


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def _pinned(node: int) -> str:
    """The path of the file behind an O_PATH descriptor, whatever happens to its name."""
    return f"/proc/self/fd/{node}"


UNFINISHED = ".new-"
RETIRED = ".old-"
_LOCK_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.01
_ENTRY_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")

SkillSection = Literal["approved", "quarantine"]


class SkillFolders:
    """The skill directories of one user; each use opens them anew and checks the open directory."""

    def __init__(self, home: str) -> None:
        self._home = home

    @contextmanager
    def open_shared(self, part: SkillSection) -> Iterator[int]:
        """The open directory; Cellwall does not change it meanwhile."""
        with self._locked(part, fcntl.LOCK_SH) as folder:
            yield folder

    @contextmanager
    def open_exclusive(self, part: SkillSection) -> Iterator[int]:
        """The open directory under an exclusive lock. Cleans up after an interrupted change."""
        with self._locked(part, fcntl.LOCK_EX) as folder:
            _clean_up(folder)
            try:
                yield folder
            finally:
                _clean_up(folder)
                os.fsync(folder)

    @contextmanager
    def _locked(self, part: SkillSection, kind: int) -> Iterator[int]:
        with (
            _map_state_errors(),
            closing_fd(_own_directory(os.path.join(self._home, "skills"))) as root,
        ):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing_fd(os.open("lock", flags, 0o600, dir_fd=root)) as lock:
                _wait_for_lock(lock, kind)
                with closing_fd(_own_directory(part, at=root)) as folder:
                    yield folder


def names_in(folder: int) -> list[str]:
    """The entries of a directory, without unfinished ones."""
    return sorted(name for name in os.listdir(folder) if _ENTRY_NAME.fullmatch(name))


def remove_folder(folder: int, name: str) -> None:
    """Rename before deleting: a half-deleted skill must never be taken for a whole one."""
    os.rename(name, UNFINISHED + name, src_dir_fd=folder, dst_dir_fd=folder)
    _discard(folder, UNFINISHED + name)


def _clean_up(folder: int) -> None:
    for name in os.listdir(folder):
        if name.startswith(RETIRED):
            current = name.removeprefix(RETIRED)
            if not _exists(folder, current):  # the replacement was never completed
                os.rename(name, current, src_dir_fd=folder, dst_dir_fd=folder)
                continue
        elif not name.startswith(UNFINISHED):
            continue
        _discard(folder, name)


def _discard(folder: int, name: str) -> None:
    """Delete a directory with its content; a link in its place is removed, never followed."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _exists(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _own_directory(name: str, *, at: int | None = None) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        pass
    descriptor = open_directory(name, at=at)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(descriptor)
        raise CellwallError(
            "the skills folder is open to other users",
            hint="chmod 700 it and what is in it, and look at every skill before you use it.",
            code="CW-SKILL-STORE-UNSAFE",
        )
    return descriptor


def _wait_for_lock(lock: int, kind: int) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CellwallError(
                    "another process is changing the skills",
                    hint="Try again in a moment.",
                    code="CW-SKILL-BUSY",
                ) from None
            time.sleep(_POLL_INTERVAL_S)
        else:
            return


@contextmanager
def _map_state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        raise CellwallError(
            "the skills folder is not a folder of ours"
            if is_link
            else "the skills folder cannot be read or written",
            hint="Check space and permissions of the Cellwall state folder.",
            code="CW-SKILL-STORE-UNSAFE" if is_link else "CW-STATE",
            detail=str(error),
        ) from error
