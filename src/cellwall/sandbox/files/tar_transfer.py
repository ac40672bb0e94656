"""Uploads a tar archive to a workspace, completely or not at all; downloads a tree as one (FS-7).

An upload (FS-1, FS-3):
   (1) find the target directory, and count the files of the workspace
   (2) check each member: its name, path, size, and the file that it would replace
   (3) write its content to a staging directory on the same file system
   (4) after the proper end of the archive, create the directories and rename the files
   (5) remove the staging directory in any case

Before (4) no file of the workspace is changed. If (4) fails, because another process changes the
same paths or the disk fails, the new files are removed; a file that was replaced stays replaced.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from contextlib import suppress

from cellwall.core.files import ByteSink, ByteSource, Transfer
from cellwall.sandbox.files.descriptors import (
    OPEN_DIRECTORY,
    OPEN_NEW,
    archive_error,
    closing_fd,
    make_one_dir,
    new_owner,
    open_regular,
    path_error,
    temporary_name,
    translate_os_errors,
    write_all,
)
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits, is_blocked
from cellwall.sandbox.files.paths import join
from cellwall.sandbox.files.root import on_disk
from cellwall.sandbox.files.tar_reader import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    TarArchive,
    TarBytes,
    TarMember,
)
from cellwall.sandbox.files.walking import WalkStep, lstat

_MAX_NAMES_BYTES = 64 * 1024 * 1024  # every name is kept in memory until the end


def unpack(tree: FileTree, path: str, source: ByteSource, *, limits: WriteLimits) -> Transfer:
    """Extract a tar archive, plain or gzip, below the directory `path`, created if missing.

    Existing files of the same name are replaced. Of a member's metadata only the time and the
    executable bit are kept; an untrusted archive chooses no owner, other mode bits or attributes.
    """
    data = TarBytes(source)
    # (1)
    inner = tree.inner(path)
    with translate_os_errors(path):
        place, missing = tree.deepest(inner)
        upload = _Upload(tree, limits)
        base = "/".join([place, *missing] if place else missing)
        tree.check_access(base, writing=True)
        upload.require_dirs(base)
    try:
        with translate_os_errors(path):
            upload.open_staging()
        archive = TarArchive(data)
        for member in archive.members(most=limits.max_files):
            if not member.path:
                continue
            with translate_os_errors(member.path):
                number = upload.admit(member, join(base, member.path))  # (2)
                if number is not None:
                    upload.stage(number, member, archive)  # (3)
        upload.commit()  # (4)
    finally:
        upload.discard_staging()  # (5)
    return Transfer(
        files=len(upload.files),
        directories=len(upload.made_dirs),
        content_bytes=upload.content_bytes,
        archive_bytes=data.source_bytes,
        archive_sha256=data.sha256,
    )


class _Upload:
    """The files and directories of one archive, by exact paths below the root."""

    def __init__(self, tree: FileTree, limits: WriteLimits) -> None:
        self._tree = tree
        self._limits = limits
        self._used_bytes, self._count = tree.usage(max_entries=limits.max_files)
        self._dirs: dict[str, bool] = {}  # whether it exists; parents come first
        self._listed: set[str] = set()
        self._names_bytes = 0
        self._staging = -1
        self._staging_name = temporary_name()
        self._owner: tuple[int, int] | None = None
        self.files: dict[str, int] = {}
        self.made_dirs: list[str] = []
        self.content_bytes = 0

    def admit(self, member: TarMember, place: str) -> int | None:
        """Check one member; returns the number of a file, None for a directory."""
        if place in self._listed or place in self.files:
            raise path_error(member.path, "CW-ARCHIVE-CONFLICT", "is in the archive twice")
        self._tree.check_access(place, writing=True)
        if member.is_dir:
            self._listed.add(place)
            self.require_dirs(place)
            return None
        if is_blocked(place.rpartition("/")[2], self._limits.blocked_extensions):
            raise path_error(member.path, "CW-EXTENSION-BLOCKED", "has a blocked extension")
        if place in self._dirs:
            raise path_error(member.path, "CW-ARCHIVE-CONFLICT", "is a file and a directory")
        most = self._limits.max_file_bytes
        if member.size_bytes > most:
            raise path_error(member.path, "CW-FILE-TOO-LARGE", f"is larger than {most} bytes")
        self.require_dirs(place.rpartition("/")[0])
        old = self._exact_status(place)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise path_error(member.path, "CW-NOT-A-FILE", "exists and is not a regular file")
        replaced = self._tree.counted_status(place, old)
        size = on_disk(member.size_bytes) - (replaced.st_blocks * 512 if replaced else 0)
        self._add_usage(place, new=replaced is None, size=size)
        self.content_bytes += member.size_bytes
        self.files[place] = len(self.files)
        return self.files[place]

    def require_dirs(self, place: str) -> None:
        """Note that a directory and its parents are needed."""
        parts = place.split("/") if place else []
        for depth in range(1, len(parts) + 1):
            way = "/".join(parts[:depth])
            if way in self._dirs:
                continue
            if way in self.files:
                raise path_error(way, "CW-ARCHIVE-CONFLICT", "is a file and a directory")
            old = self._exact_status(way)
            if old is not None and not stat.S_ISDIR(old.st_mode):
                raise path_error(way, "CW-NOT-A-DIRECTORY", "exists and is not a directory")
            self._add_usage(way, new=self._tree.counted_status(way, old) is None, size=0)
            self._dirs[way] = old is not None

    def _exact_status(self, place: str) -> os.stat_result | None:
        # Exact: no symlink on the path or at its end is followed.
        try:
            with self._tree.node(place) as node:
                return os.fstat(node)
        except FileNotFoundError:
            return None

    def _add_usage(self, place: str, *, new: bool, size: int) -> None:
        self._count += new
        self._used_bytes += size
        self._names_bytes += len(place)
        limits = self._limits
        if self._count > limits.max_files:
            raise archive_error(
                "CW-WORKSPACE-FULL", f"would make more than {limits.max_files} files"
            )
        if self._used_bytes > limits.max_total_bytes:
            raise archive_error(
                "CW-WORKSPACE-FULL", f"would make more than {limits.max_total_bytes} bytes"
            )
        if self._names_bytes > _MAX_NAMES_BYTES:
            raise archive_error("CW-ARCHIVE-TOO-LARGE", "has names that are too long in total")

    def open_staging(self) -> None:
        # Not chowned to the directory's owner: where we are root, a run in the same workspace
        # cannot read it.
        root = self._tree.fd
        os.mkdir(self._staging_name, 0o700, dir_fd=root)
        self._staging = os.open(self._staging_name, OPEN_DIRECTORY, dir_fd=root)
        self._owner = new_owner(root)

    def stage(self, number: int, member: TarMember, archive: TarArchive) -> None:
        with closing_fd(os.open(str(number), OPEN_NEW, 0o600, dir_fd=self._staging)) as fd:
            for piece in archive.content():
                write_all(fd, piece)
            if self._owner is not None:
                os.fchown(fd, *self._owner)
            os.fchmod(fd, 0o755 if member.executable else 0o644)
            os.utime(fd, (member.modified_s, member.modified_s))

    def commit(self) -> None:
        made_files: list[str] = []
        try:
            for place, is_there in self._dirs.items():
                if not is_there:
                    self._make_dir(place)
            for place, number in self.files.items():
                with translate_os_errors(place), self._tree.parent(place) as (fd, name):
                    old = lstat(fd, name)
                    if old is not None and not stat.S_ISREG(old.st_mode):
                        raise path_error(place, "CW-NOT-A-FILE", "exists and is not a regular file")
                    os.rename(str(number), name, src_dir_fd=self._staging, dst_dir_fd=fd)
                    if old is None:
                        made_files.append(place)
        except BaseException:
            for place in reversed(made_files):
                with suppress(OSError), self._tree.parent(place) as (fd, name):
                    os.unlink(name, dir_fd=fd)
            for place in reversed(self.made_dirs):
                with suppress(OSError), self._tree.parent(place) as (fd, name):
                    os.rmdir(name, dir_fd=fd)  # fails if another process added a file
            raise

    def _make_dir(self, place: str) -> None:
        with translate_os_errors(place), self._tree.parent(place) as (fd, name):
            try:
                make_one_dir(fd, name)
            except FileExistsError:
                return  # if it is not a directory, the next open fails
            self.made_dirs.append(place)

    def discard_staging(self) -> None:
        if self._staging >= 0:
            with closing_fd(self._staging):
                for number in range(len(self.files)):
                    with suppress(OSError):
                        os.unlink(str(number), dir_fd=self._staging)
        with suppress(OSError):
            os.rmdir(self._staging_name, dir_fd=self._tree.fd)


_RECORD_BYTES = 20 * BLOCK_BYTES  # `tar` fills its last record to this size


def pack(
    tree: FileTree, path: str, sink: ByteSink, *, limits: WriteLimits, skip_links: bool = False
) -> Transfer:
    """Write the content of the directory `path` to `sink` as a tar archive, names relative to it.

    Paths that the access check hides are left out. A link, a socket or a device is refused, or left
    out with `skip_links`: code chose its target, and extracting it on the host would follow it.
    """
    with (
        translate_os_errors(path),
        closing_fd(tree.open_below(tree.inner(path), os.O_PATH | os.O_DIRECTORY)) as fd,
    ):
        place = tree.place_of(fd)
        tree.check_access(place, writing=False)
    writer = _TarWriter(tree, sink, limits)
    prefix = f"{place}/" if place else ""
    steps = tree.walk(
        place, max_entries=limits.max_files, descend=lambda step: tree.is_visible(step.path)
    )
    for step in steps:
        if not tree.is_visible(step.path):
            continue
        name = step.path.removeprefix(prefix)
        if stat.S_ISDIR(step.status.st_mode):
            writer.add_dir(name, step)
        elif stat.S_ISREG(step.status.st_mode):
            with translate_os_errors(step.path):
                writer.add_file(name, step)
        elif not skip_links:
            raise path_error(name, "CW-LINK-IN-TREE", "is neither a file nor a directory")
    return writer.finish()


class _TarWriter:
    def __init__(self, tree: FileTree, sink: ByteSink, limits: WriteLimits) -> None:
        self._tree = tree
        self._sink = sink
        self._limits = limits
        self._digest = hashlib.sha256()
        self._written = self._files = self._directories = self._content_bytes = 0

    def add_dir(self, name: str, step: WalkStep) -> None:
        self._header(name, step.status, tarfile.DIRTYPE, 0)
        self._directories += 1

    def add_file(self, name: str, step: WalkStep) -> None:
        with self._tree.node(step.path) as node, closing_fd(open_regular(node)) as fd:
            status = os.fstat(fd)
            size = status.st_size
            if size > self._limits.max_file_bytes:
                most = self._limits.max_file_bytes
                raise path_error(name, "CW-FILE-TOO-LARGE", f"is larger than {most} bytes")
            self._content_bytes += size
            if self._content_bytes > self._limits.max_total_bytes:
                most = self._limits.max_total_bytes
                raise archive_error("CW-ARCHIVE-TOO-LARGE", f"would hold more than {most} bytes")
            self._header(name, status, tarfile.REGTYPE, size)
            left_bytes = size
            while left_bytes and (piece := os.read(fd, min(left_bytes, CHUNK_BYTES))):
                self._write(piece)
                left_bytes -= len(piece)
            if left_bytes:
                raise path_error(name, "CW-IN-USE", "became shorter while it was read")
            self._write(bytes(-size % BLOCK_BYTES))
        self._files += 1

    def finish(self) -> Transfer:
        self._write(bytes(2 * BLOCK_BYTES))
        self._write(bytes(-self._written % _RECORD_BYTES))
        return Transfer(
            files=self._files,
            directories=self._directories,
            content_bytes=self._content_bytes,
            archive_bytes=self._written,
            archive_sha256=self._digest.hexdigest(),
        )

    def _header(self, name: str, status: os.stat_result, kind: bytes, size: int) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, size
        # No owner: uids mean nothing elsewhere. No set-id bit: code chose it.
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = max(int(status.st_mtime), 0)
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._digest.update(data)
        self._written += len(data)
