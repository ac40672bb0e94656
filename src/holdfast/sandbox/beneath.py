"""A workspace's files from the host's side, by descriptors only (FS-1, FS-3, FS-7).

The kernel resolves every path beneath the root's descriptor, and what it resolved is what is
worked on: no path is looked at first and used later, so a link swapped in between leads nowhere.

Two kinds of paths: what a user typed goes through `inner_path` and may hold links that stay
inside; what a walk found (`visit`) is exact, may hold any bytes, and is opened without links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from holdfast.core.errors import WorkspaceError
from holdfast.core.types import FileEntry as Entry
from holdfast.sandbox.descriptors import (
    ENTRIES_MAX,
    held,
    kind_of,
    make_one_dir,
    new_owner,
    open_regular,
    pinned,
    remove_tree,
    replacing,
    write_all,
)
from holdfast.sandbox.native._syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from holdfast.sandbox.refusals import refusal, refused, telling

# A mount inside the root was put there by somebody else and is no part of the workspace.
_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_RACES_MAX = 128  # tries while somebody renames directories under a path with `..`
_LINKS_MAX = 40  # the kernel's own bound
_PATH_BYTES_MAX = 4096
_NAME_BYTES_MAX = 255
_BLOCK_BYTES = 4096
_INSIDE = "workspace"  # where the sandbox sees the root: `/workspace/a.txt` is `a.txt`


@dataclass(frozen=True, slots=True)
class Visit:
    """One step of a walk: `name` in the directory `dir_fd`, which is open until the next step."""

    path: str
    name: str
    dir_fd: int
    directory_id: tuple[int, int]
    status: os.stat_result


class Judge(Protocol):
    """Raises `WorkspaceError` for a place (links already followed) that may not be touched."""

    def __call__(self, path: str, *, writing: bool) -> None: ...


def inner_path(text: str) -> str:
    """The path below the root that a user's text means; `.` is the root itself.

    `..` stays in it: where that leads is for the kernel to say, which knows the links.
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise refused(text, "HF-PATH-INVALID", "is not valid Unicode") from error
    if not raw or b"\0" in raw:
        raise refused(text, "HF-PATH-INVALID", "is empty or holds a NUL character")
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if text.startswith("/"):
        if parts[:1] != [_INSIDE]:
            raise refused(text, "HF-PATH-OUTSIDE", "is not below /workspace")
        del parts[0]
    if len(raw) > _PATH_BYTES_MAX or any(len(p.encode()) > _NAME_BYTES_MAX for p in parts):
        raise refused(text, "HF-PATH-INVALID", "is too long")
    return "/".join(parts) or "."


def is_blocked(name: str, extensions: Collection[str]) -> bool:
    """Whether a file name ends in a blocked extension, in any case (FS-3).

    Trailing dots and blanks do not count: other systems drop them and run `evil.exe.` all the same.
    """
    bare = name.casefold().rstrip(". ")
    return any(bare.endswith("." + extension.casefold().lstrip(".")) for extension in extensions)


class Beneath:
    """A workspace's root and all that can be done below it.

    `judge`, where given, is asked about the real place of everything the file API touches.
    """

    __slots__ = ("_judge", "fd")

    def __init__(self, fd: int, *, judge: Judge | None = None) -> None:
        """Own `fd`, an O_PATH descriptor of a directory."""
        self.fd = fd
        self._judge = judge

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, judge: Judge | None = None) -> Self:
        try:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise WorkspaceError(
                "the workspace directory cannot be opened",
                mend="Name a directory that exists and that you may enter.",
                code="HF-WORKSPACE-MISSING",
                detail=type(error).__name__,
            ) from error
        return cls(fd, judge=judge)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a walk found: exact paths, no links, OSError.

    @contextmanager
    def node(self, path: str) -> Iterator[int]:
        """An O_PATH descriptor of exactly that name, be it a link."""
        with held(self._open(path or ".", os.O_PATH | os.O_NOFOLLOW, links=False)) as fd:
            yield fd

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory a name is in, and the name: what unlink, rename and mkdir work on."""
        way, _, name = path.rpartition("/")
        with held(self._open(way or ".", os.O_PATH | os.O_DIRECTORY, links=False)) as fd:
            yield fd, name

    def visit(
        self,
        path: str = "",
        *,
        max_entries: int,
        descend: Callable[[Visit], bool] | None = None,
        on_locked: Callable[[str], None] | None = None,
    ) -> Iterator[Visit]:
        """Everything below `path`, each directory's names in order, never through a link.

        Every directory is opened anew from the root, so depth costs no descriptors. A directory
        that may not be read is told to `on_locked`, or is an error: nothing is left out silently.
        """
        left = max_entries
        pending = [path]
        while pending:
            here = pending.pop()
            try:
                fd = self._open(here or ".", os.O_RDONLY | os.O_DIRECTORY, links=False)
            except PermissionError as error:
                if on_locked is None:
                    raise refusal(here, error) from error
                on_locked(here)
                continue
            except OSError as error:
                # Gone, or no directory any more since its name was read.
                if here != path and error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    continue
                raise refusal(here, error) from error
            with held(fd):
                names = _bounded_names(fd, here, left)
                left -= len(names)
                below = []
                status = os.fstat(fd)
                for step in _steps(fd, here, names, (status.st_dev, status.st_ino)):
                    yield step
                    if stat.S_ISDIR(step.status.st_mode) and (descend is None or descend(step)):
                        below.append(step.path)
            pending.extend(reversed(below))

    # The file API: what users type, WorkspaceError.

    def read(self, path: str, *, max_bytes: int) -> bytes:
        with telling(path), held(self._open(inner_path(path), os.O_PATH)) as node:
            self._ask(self._place(node), writing=False)
            status = os.fstat(node)
            if not stat.S_ISREG(status.st_mode):
                raise refused(path, "HF-NOT-A-FILE", "is not a regular file")
            with held(open_regular(node)) as fd:
                parts: list[bytes] = []
                left = max_bytes + 1  # the size is a claim; the file can grow while it is read
                while left > 0 and (part := os.read(fd, min(left, 1 << 20))):
                    parts.append(part)
                    left -= len(part)
            if left <= 0:
                raise refused(path, "HF-FILE-TOO-LARGE", f"is larger than {max_bytes} bytes")
            return b"".join(parts)

    def write(
        self,
        path: str,
        data: bytes,
        *,
        max_file_bytes: int,
        max_total_bytes: int,
        max_files: int,
        blocked_extensions: Collection[str] = (),
    ) -> None:
        if len(data) > max_file_bytes:
            raise refused(path, "HF-FILE-TOO-LARGE", f"is larger than {max_file_bytes} bytes")
        with telling(path):
            inner = self._landing(inner_path(path))
            with self._entrance(inner) as (base, missing, name):
                if is_blocked(name, blocked_extensions):
                    raise refused(path, "HF-EXTENSION-BLOCKED", "has a blocked extension")
                self._ask("/".join([*_some(self._place(base)), *missing, name]), writing=True)
                old = None if missing else _lstat(base, name)
                if old is not None and not stat.S_ISREG(old.st_mode):
                    raise refused(path, "HF-NOT-A-FILE", "is not a regular file")
                self._admit(
                    path,
                    new_bytes=len(data) - (old.st_blocks * 512 if old else 0),
                    new_entries=len(missing) + (old is None),
                    max_total_bytes=max_total_bytes,
                    max_files=max_files,
                )
                with _made(base, missing) as parent:
                    owner = (old.st_uid, old.st_gid) if old and os.geteuid() == 0 else None
                    with replacing(
                        parent,
                        name,
                        mode=old.st_mode if old else 0o644,
                        owner=owner or new_owner(parent),
                    ) as fd:
                        write_all(fd, data)

    def list(self, path: str = ".", *, max_entries: int = 10_000) -> tuple[Entry, ...]:
        inner = inner_path(path)
        with telling(path), held(self._open(inner, os.O_PATH | os.O_DIRECTORY)) as node:
            place = self._place(node)
            self._ask(place, writing=False)
            with held(os.open(pinned(node), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                steps = _steps(fd, place, _bounded_names(fd, path, max_entries), (0, 0))
                return tuple(
                    _entry(step.name, _join(inner, step.name), step.status)
                    for step in steps
                    if self._shows(step.path)
                )

    def stat(self, path: str) -> Entry | None:
        """What a name is, a link being a link; None if there is nothing."""
        inner = inner_path(path)
        try:
            with telling(path), held(self._open(inner, os.O_PATH | os.O_NOFOLLOW)) as node:
                self._ask(self._place(node), writing=False)
                return _entry(inner.rpartition("/")[2], inner, os.fstat(node))
        except WorkspaceError as error:
            if error.code in {"HF-NOT-FOUND", "HF-NOT-A-DIRECTORY"}:
                return None
            raise

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def make_dir(self, path: str, *, max_files: int) -> None:
        """A directory and those on the way to it; one that exists already is fine."""
        with telling(path), self._entrance(inner_path(path)) as (base, missing, name):
            self._ask("/".join([*_some(self._place(base)), *missing, name]), writing=True)
            old = None if missing else _lstat(base, name)
            if old is not None:
                if not stat.S_ISDIR(old.st_mode):
                    raise refused(path, "HF-ALREADY-EXISTS", "exists and is no directory")
                return
            self._admit(path, new_entries=len(missing) + 1, max_files=max_files)
            with _made(base, [*missing, name]):
                return

    def move(self, source: str, target: str, *, blocked_extensions: Collection[str] = ()) -> None:
        """Give `source` another name; a file in the way is replaced, links move as links."""
        with (
            telling(source),
            self._existing(inner_path(source)) as (source_fd, source_name),
            telling(target),
            self._existing(inner_path(target)) as (target_fd, target_name),
        ):
            if is_blocked(target_name, blocked_extensions):
                raise refused(target, "HF-EXTENSION-BLOCKED", "has a blocked extension")
            old = os.stat(source_name, dir_fd=source_fd, follow_symlinks=False)
            from_place = _join(self._place(source_fd), source_name)
            self._ask_tree(
                from_place,
                _join(self._place(target_fd), target_name),
                is_dir=stat.S_ISDIR(old.st_mode),
            )
            os.rename(source_name, target_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link itself, or a directory (with what is in it if `recursive`)."""
        with telling(path), self._existing(inner_path(path)) as (parent, name):
            is_dir = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            place = _join(self._place(parent), name)
            self._ask_tree(place, place, is_dir=is_dir and recursive)
            if not is_dir:
                os.unlink(name, dir_fd=parent)
            elif recursive:
                remove_tree(parent, name)
            else:
                os.rmdir(name, dir_fd=parent)

    def walk(self, *, max_entries: int = ENTRIES_MAX) -> Iterator[tuple[str, Entry]]:
        """Everything the judge lets be seen, with its path."""
        shown = self._shows
        for step in self.visit(max_entries=max_entries, descend=lambda step: shown(step.path)):
            if shown(step.path):
                yield step.path, _entry(step.name, step.path, step.status)

    def usage(self, *, max_entries: int) -> tuple[int, int]:
        """Bytes on the disk (holes cost nothing) and the number of names."""
        used_bytes = count = 0
        # A directory that may not be read counts as one name: it is looked into after the run.
        for step in self.visit(max_entries=max_entries, on_locked=lambda _path: None):
            used_bytes += step.status.st_blocks * 512
            count += 1
        return used_bytes, count

    # How paths become descriptors.

    def _open(self, path: str, flags: int, *, links: bool = True) -> int:
        resolve = _RESOLVE if links else _RESOLVE | RESOLVE_NO_SYMLINKS
        for _ in range(_RACES_MAX):
            try:
                return openat2(self.fd, path, flags=flags, resolve=resolve)
            except BlockingIOError:
                # The kernel cannot tell whether `..` stays inside while directories move.
                continue
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    @contextmanager
    def _existing(self, inner: str) -> Iterator[tuple[int, str]]:
        way, _, name = inner.rpartition("/")
        if name in {".", ".."}:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with held(self._open(way or ".", os.O_PATH | os.O_DIRECTORY)) as fd:
            yield fd, name

    @contextmanager
    def _entrance(self, inner: str) -> Iterator[tuple[int, Sequence[str], str]]:
        """The deepest directory on the way that exists, the names still missing, the last name."""
        *way, name = inner.split("/")
        if name in {".", ".."}:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        depth = len(way)
        fd = -1
        while fd < 0:
            try:
                fd = self._open("/".join(way[:depth]) or ".", os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                if depth == 0 or way[depth - 1] == "..":
                    raise
                depth -= 1
        with held(fd):
            yield fd, way[depth:], name

    def _landing(self, inner: str) -> str:
        """Where a write to a link goes; each hop is resolved by the same rules as any path."""
        for _ in range(_LINKS_MAX):
            way, _, name = inner.rpartition("/")
            try:
                with held(self._open(way or ".", os.O_PATH | os.O_DIRECTORY)) as fd:
                    target = os.readlink(name, dir_fd=fd)
            except OSError as error:
                if error.errno in {errno.EINVAL, errno.ENOENT}:
                    return inner
                raise
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            inner = _join(way, "/".join(p for p in target.split("/") if p not in {"", "."}))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    # What may be touched.

    def _place(self, fd: int) -> str:
        """Where a descriptor really lies below the root, all links followed."""
        if self._judge is None:
            return ""
        root, here = os.readlink(pinned(self.fd)), os.readlink(pinned(fd))
        if os.fstat(fd).st_nlink == 0:  # the kernel adds " (deleted)" to such a name
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if here == root:
            return ""
        prefix = root.rstrip("/") + "/"
        if not here.startswith(prefix):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return here.removeprefix(prefix)

    def _ask(self, place: str, *, writing: bool) -> None:
        if self._judge is not None and place:
            self._judge(place, writing=writing)

    def _ask_tree(self, place: str, new_place: str, *, is_dir: bool) -> None:
        # An ancestor must not carry a protected name away, nor bring one about: `.git` may
        # not be moved while `.git/hooks` is read-only, nor `x` to `.git` with hooks in it.
        if self._judge is None:
            return
        self._ask(place, writing=True)
        self._ask(new_place, writing=True)
        if is_dir:
            for step in self.visit(place, max_entries=ENTRIES_MAX):
                self._ask(step.path, writing=True)
                self._ask(new_place + step.path.removeprefix(place), writing=True)

    def _shows(self, place: str) -> bool:
        try:
            self._ask(place, writing=False)
        except WorkspaceError:
            return False
        return True

    def _admit(
        self,
        path: str,
        *,
        new_entries: int,
        max_files: int,
        new_bytes: int = 0,
        max_total_bytes: int | None = None,
    ) -> None:
        used_bytes, count = self.usage(max_entries=max_files)
        if count + new_entries > max_files:
            raise refused(path, "HF-WORKSPACE-FULL", f"would be more than {max_files} files")
        rounded = -(-new_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        if max_total_bytes is not None and used_bytes + rounded > max_total_bytes:
            raise refused(path, "HF-WORKSPACE-FULL", f"would be more than {max_total_bytes} bytes")


def _join(way: str, name: str) -> str:
    return name if way in {"", "."} else f"{way}/{name}"


def _some(place: str) -> list[str]:
    return [place] if place else []


def _lstat(dir_fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _entry(name: str, path: str, status: os.stat_result) -> Entry:
    return Entry(
        _text(name),
        _text(path),
        kind_of(status.st_mode),
        status.st_size,
        stat.S_IMODE(status.st_mode),
        status.st_mtime,
    )


def _text(name: str) -> str:
    # Names are bytes to the kernel; what is no text must not blow up whoever prints it.
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _bounded_names(fd: int, path: str, most: int) -> list[str]:
    names: list[str] = []
    with os.scandir(fd) as found:
        for entry in found:
            if len(names) >= most:
                raise refused(path or ".", "HF-WORKSPACE-TOO-LARGE", "holds too many files")
            names.append(entry.name)
    names.sort()
    return names


def _steps(fd: int, path: str, names: list[str], directory_id: tuple[int, int]) -> Iterator[Visit]:
    for name in names:
        status = _lstat(fd, name)
        if status is not None:
            yield Visit(_join(path, name), name, fd, directory_id, status)


@contextmanager
def _made(base: int, names: Sequence[str]) -> Iterator[int]:
    """A directory below `base`, made name by name; a link put in its way is not followed."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.dup(base)
    try:
        for name in names:
            try:
                make_one_dir(fd, name)
            except FileExistsError:
                pass
            deeper = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)
