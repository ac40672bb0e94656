"""The file API of a workspace, on the host, by descriptor (FS-1, FS-3, FS-7)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.core.files import ByteSink, ByteSource, FileEntry, StreamedFile
from cellwall.core.limits import Limits
from cellwall.sandbox.files.descriptors import (
    OPEN_DIRECTORY,
    closing_fd,
    kind_of,
    make_one_dir,
    new_owner,
    open_regular,
    path_error,
    proc_path,
    read_at_most,
    remove_tree,
    replace_atomically,
    translate_os_errors,
    write_all,
)
from cellwall.sandbox.files.paths import as_text, join
from cellwall.sandbox.files.root import Root, on_disk
from cellwall.sandbox.files.walking import bounded_names, lstat, walk_steps

_PIECE_BYTES = 1 << 20


def is_blocked(name: str, extensions: Collection[str]) -> bool:
    """Whether a file name ends in a blocked extension, in upper or lower case (FS-3).

    Trailing dots and blanks are ignored: other systems drop them and run `evil.exe.` as well.
    """
    bare = name.casefold().rstrip(". ")
    return any(bare.endswith("." + extension.casefold().lstrip(".")) for extension in extensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    """Limits on writes to a workspace, by the file API, an upload or code (FS-3)."""

    max_file_bytes: int
    max_total_bytes: int
    max_files: int
    blocked_extensions: Collection[str] = ()

    @classmethod
    def of(cls, limits: Limits, blocked_extensions: Collection[str]) -> WriteLimits:
        """The limits of an action."""
        return cls(
            max_file_bytes=limits.file_size_bytes,
            max_total_bytes=limits.disk_bytes,
            max_files=limits.file_count,
            blocked_extensions=blocked_extensions,
        )


class FileTree(Root):
    """A workspace's root, with file operations on paths as users type them."""

    __slots__ = ()

    def read(self, path: str, *, max_bytes: int) -> bytes:
        with self._open_file(path) as fd:
            data = read_at_most(fd, max_bytes + 1)  # not st_size: the file can grow meanwhile
        if len(data) > max_bytes:
            raise path_error(path, "CW-FILE-TOO-LARGE", f"is larger than {max_bytes} bytes")
        return data

    def read_into(self, path: str, sink: ByteSink, *, max_bytes: int) -> StreamedFile:
        """Copy a file piece by piece; what was written to the sink before an error is no file."""
        size, digest = 0, hashlib.sha256()
        with self._open_file(path) as fd:
            while part := os.read(fd, _PIECE_BYTES):
                size += len(part)
                if size > max_bytes:
                    raise path_error(path, "CW-FILE-TOO-LARGE", f"is larger than {max_bytes} bytes")
                digest.update(part)
                sink.write(part)
        return StreamedFile(size, digest.hexdigest())

    @contextmanager
    def _open_file(self, path: str) -> Iterator[int]:
        with (
            translate_os_errors(path),
            closing_fd(self.open_below(self.inner(path), os.O_PATH)) as node,
        ):
            self.check_access(self._place(node), writing=False)
            status = os.fstat(node)
            if not stat.S_ISREG(status.st_mode):
                raise path_error(path, "CW-NOT-A-FILE", "is not a regular file")
            with closing_fd(open_regular(node)) as fd:
                yield fd

    def write(self, path: str, data: bytes, limits: WriteLimits) -> None:
        with self._new_content(path, len(data), limits) as fd:
            write_all(fd, data)

    def write_from(
        self, path: str, source: ByteSource, expected: StreamedFile, limits: WriteLimits
    ) -> StreamedFile:
        """Write piece by piece. A source with other content leaves the old file as it is."""
        size, digest = 0, hashlib.sha256()
        with self._new_content(path, expected.content_bytes, limits) as fd:
            while part := source.read(_PIECE_BYTES):
                size += len(part)
                if size > expected.content_bytes:
                    break
                digest.update(part)
                write_all(fd, part)
            if StreamedFile(size, digest.hexdigest()) != expected:
                raise path_error(path, "CW-CONTENT-CHANGED", "would get other content than judged")
        return expected

    @contextmanager
    def _new_content(self, path: str, size: int, limits: WriteLimits) -> Iterator[int]:
        """A descriptor for so many bytes; at the end they replace the file, or nothing does."""
        if size > limits.max_file_bytes:
            most = limits.max_file_bytes
            raise path_error(path, "CW-FILE-TOO-LARGE", f"is larger than {most} bytes")
        with translate_os_errors(path):
            inner = self._follow_links(self.inner(path))
            with self._open_parent_of_new(inner) as (base, missing, name):
                if is_blocked(name, limits.blocked_extensions):
                    raise path_error(path, "CW-EXTENSION-BLOCKED", "has a blocked extension")
                place = self._place_of_new(base, missing, name)
                self.check_access(place, writing=True)
                old = None if missing else lstat(base, name)
                if old is not None and not stat.S_ISREG(old.st_mode):
                    raise path_error(path, "CW-NOT-A-FILE", "is not a regular file")
                replaced = self.counted_status(place, old)
                self._admit(
                    path,
                    new_bytes=size - (replaced.st_blocks * 512 if replaced else 0),
                    new_entries=len(missing) + (replaced is None),
                    max_total_bytes=limits.max_total_bytes,
                    max_files=limits.max_files,
                )
                with (
                    _make_dirs(base, missing) as parent,
                    replace_atomically(
                        parent,
                        name,
                        mode=old.st_mode if old else 0o644,
                        owner=self.kept_owner(old) or new_owner(parent),
                    ) as fd,
                ):
                    yield fd

    def list(self, path: str = ".", *, max_entries: int = 10_000) -> tuple[FileEntry, ...]:
        inner = self.inner(path)
        with (
            translate_os_errors(path),
            closing_fd(self.open_below(inner, os.O_PATH | os.O_DIRECTORY)) as node,
        ):
            place = self._place(node)
            self.check_access(place, writing=False)
            with closing_fd(
                os.open(proc_path(node), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            ) as fd:
                steps = walk_steps(fd, place, bounded_names(fd, path, max_entries), (0, 0))
                return tuple(
                    _entry(step.name, self.shown(join(inner, step.name)), step.status)
                    for step in steps
                    if self.is_visible(step.path)
                )

    def stat(self, path: str) -> FileEntry | None:
        """The entry of a path, of a symlink itself; None if it does not exist."""
        inner = self.inner(path)
        try:
            with (
                translate_os_errors(path),
                closing_fd(self.open_below(inner, os.O_PATH | os.O_NOFOLLOW)) as node,
            ):
                self.check_access(self._place(node), writing=False)
                return _entry(inner.rpartition("/")[2], self.shown(inner), os.fstat(node))
        except WorkspaceError as error:
            if error.code in {"CW-NOT-FOUND", "CW-NOT-A-DIRECTORY"}:
                return None
            raise

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def make_dir(self, path: str, *, max_files: int) -> None:
        """Create a directory and its missing parents; an existing directory is no error."""
        with (
            translate_os_errors(path),
            self._open_parent_of_new(self.inner(path)) as (base, missing, name),
        ):
            self.check_access(self._place_of_new(base, missing, name), writing=True)
            old = None if missing else lstat(base, name)
            if old is not None:
                if not stat.S_ISDIR(old.st_mode):
                    raise path_error(path, "CW-ALREADY-EXISTS", "exists and is not a directory")
                return
            self._admit(path, new_entries=len(missing) + 1, max_files=max_files)
            with _make_dirs(base, [*missing, name]):
                return

    def move(self, source: str, target: str, *, blocked_extensions: Collection[str] = ()) -> None:
        """Rename `source`; an existing file is replaced, a symlink is moved itself."""
        with (
            translate_os_errors(source),
            self._open_parent(self.inner(source)) as (source_fd, source_name),
            translate_os_errors(target),
            self._open_parent(self.inner(target)) as (target_fd, target_name),
        ):
            if is_blocked(target_name, blocked_extensions):
                raise path_error(target, "CW-EXTENSION-BLOCKED", "has a blocked extension")
            old = os.stat(source_name, dir_fd=source_fd, follow_symlinks=False)
            from_place = join(self._place(source_fd), source_name)
            self._check_tree_access(
                from_place,
                join(self._place(target_fd), target_name),
                mode=old.st_mode,
            )
            os.rename(source_name, target_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a symlink itself, or a directory (with its content if `recursive`)."""
        with translate_os_errors(path), self._open_parent(self.inner(path)) as (parent, name):
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            is_dir = stat.S_ISDIR(mode)
            place = join(self._place(parent), name)
            self._check_tree_access(place, place, mode=mode, recursive=recursive)
            if not is_dir:
                os.unlink(name, dir_fd=parent)
            elif recursive:
                remove_tree(parent, name)
            else:
                os.rmdir(name, dir_fd=parent)

    def _place_of_new(self, base: int, missing: Sequence[str], name: str) -> str:
        return "/".join(filter(None, (self._place(base), *missing, name)))

    def kept_owner(self, old: os.stat_result | None) -> tuple[int, int] | None:
        """The owner of a file that replaces `old`; None stands for the directory's owner."""
        return (old.st_uid, old.st_gid) if old and os.geteuid() == 0 else None

    def counted_status(self, place: str, found: os.stat_result | None) -> os.stat_result | None:  # noqa: ARG002  # see MergedFileTree
        """The status that `usage` counts for a path; the merged view counts its upper layer."""
        return found

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
            raise path_error(path, "CW-WORKSPACE-FULL", f"would be more than {max_files} files")
        if max_total_bytes is not None and used_bytes + on_disk(new_bytes) > max_total_bytes:
            raise path_error(
                path, "CW-WORKSPACE-FULL", f"would be more than {max_total_bytes} bytes"
            )


def _entry(name: str, path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(
        as_text(name),
        as_text(path),
        kind_of(status.st_mode),
        status.st_size,
        stat.S_IMODE(status.st_mode),
        status.st_mtime,
    )


@contextmanager
def _make_dirs(base: int, names: Sequence[str]) -> Iterator[int]:
    """A directory below `base`, created name by name; a planted symlink is not followed."""
    fd = os.dup(base)
    try:
        for name in names:
            try:
                make_one_dir(fd, name)
            except FileExistsError:
                pass
            deeper = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)

        # A FIFO, a socket or a device has no content to keep.
