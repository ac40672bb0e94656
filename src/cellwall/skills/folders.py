"""Reads and writes a skill's directory by descriptor: the opened file is the one that is checked
and used.

Each file is opened once and read once, into memory. No name is resolved twice, so there is no
window between check and use (TOCTOU) in which a file could be exchanged.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from cellwall.core.errors import SkillRefused
from cellwall.skills.manifest import MANIFEST_NAME, MAX_FILES, check_path, too_many

_MAX_ENTRIES = 2 * MAX_FILES  # files and their directories
_CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

FileVisitor = Callable[[str, int, os.stat_result], None]
"""Called with a regular file: its path, an O_PATH descriptor, and its status when it was opened."""


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


def visit_files(folder: int, visit: FileVisitor) -> None:
    """Visit every file below, in order, except the manifest; other file types are refused."""
    _visit(folder, "", visit, _MAX_ENTRIES)


def _visit(folder: int, prefix: str, visit: FileVisitor, left: int) -> int:
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
                    left = _visit(below, f"{path}/", visit, left)
            elif stat.S_ISREG(status.st_mode):
                visit(path, node, status)
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
        made = {""}
        for path in sorted(files):
            for end, character in enumerate(path):
                if character == "/" and path[:end] not in made:
                    os.mkdir(path[:end], 0o700, dir_fd=folder)
                    made.add(path[:end])
            _write_new(folder, path, files[path], mode=0o500 if path in executables else 0o400)
        for place in made:
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
