"""A tree of a workspace becomes a tar stream (FS-7). What the judge hides is not in it."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile

from cellwall.core.files import ByteSink, Transfer
from cellwall.sandbox.files.descriptors import held, open_regular
from cellwall.sandbox.files.errors import refused, refused_archive, telling
from cellwall.sandbox.files.file_tree import Beneath
from cellwall.sandbox.files.inflate import CHUNK_BYTES
from cellwall.sandbox.files.root import Visit, inner_path
from cellwall.sandbox.files.tar_reader import BLOCK_BYTES
from cellwall.sandbox.files.tar_transfer import Room

_RECORD_BYTES = 20 * BLOCK_BYTES  # what `tar` fills up its last record to


def pack(
    beneath: Beneath, path: str, sink: ByteSink, *, room: Room, skip_links: bool = False
) -> Transfer:
    """Write what is in the directory `path` to `sink`, names relative to it, in order.

    A link, a socket or a device is refused, or left out with `skip_links`: the code chose where it
    leads, and whoever extracts the archive would follow it on the host.
    """
    with (
        telling(path),
        held(beneath.open_below(inner_path(path), os.O_PATH | os.O_DIRECTORY)) as fd,
    ):
        place = beneath.place_of(fd)
        beneath.ask(place, writing=False)
    packing = _Packing(beneath, sink, room)
    prefix = f"{place}/" if place else ""
    steps = beneath.visit(
        place, max_entries=room.max_files, descend=lambda step: beneath.shows(step.path)
    )
    for step in steps:
        if not beneath.shows(step.path):
            continue
        name = step.path.removeprefix(prefix)
        if stat.S_ISDIR(step.status.st_mode):
            packing.add_dir(name, step)
        elif stat.S_ISREG(step.status.st_mode):
            with telling(step.path):
                packing.add_file(name, step)
        elif not skip_links:
            raise refused(name, "CW-LINK-IN-TREE", "is neither a file nor a directory")
    return packing.finished()


class _Packing:
    def __init__(self, beneath: Beneath, sink: ByteSink, room: Room) -> None:
        self._beneath = beneath
        self._sink = sink
        self._room = room
        self._digest = hashlib.sha256()
        self._written = self._files = self._directories = self._content_bytes = 0

    def add_dir(self, name: str, step: Visit) -> None:
        self._header(name, step.status, tarfile.DIRTYPE, 0)
        self._directories += 1

    def add_file(self, name: str, step: Visit) -> None:
        with self._beneath.node(step.path) as node, held(open_regular(node)) as fd:
            status = os.fstat(fd)
            size = status.st_size
            if size > self._room.max_file_bytes:
                most = self._room.max_file_bytes
                raise refused(name, "CW-FILE-TOO-LARGE", f"is larger than {most} bytes")
            self._content_bytes += size
            if self._content_bytes > self._room.max_total_bytes:
                most = self._room.max_total_bytes
                raise refused_archive("CW-ARCHIVE-TOO-LARGE", f"would hold more than {most} bytes")
            self._header(name, status, tarfile.REGTYPE, size)
            left = size
            while left and (piece := os.read(fd, min(left, CHUNK_BYTES))):
                self._write(piece)
                left -= len(piece)
            if left:
                raise refused(name, "CW-IN-USE", "became shorter while it was read")
            self._write(bytes(-size % BLOCK_BYTES))
        self._files += 1

    def finished(self) -> Transfer:
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
        # No owner: the numbers mean nothing elsewhere. No set-id bit: code chose it.
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = max(int(status.st_mtime), 0)
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._digest.update(data)
        self._written += len(data)
