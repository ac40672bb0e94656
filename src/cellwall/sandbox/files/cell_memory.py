"""The file API on the memory directories of a live cell: /tmp and /dev/shm (FS-7).

Init opens the directory and sends an O_PATH descriptor of it, on a socket that no code inside can
reach. Everything else is as in the workspace: the kernel resolves each path beneath that descriptor
(openat2: no magic link, no mount crossed, no link that leads out), a file is opened only after its
type is known, and nothing inside takes part, so that code can neither forge an answer nor block
one. A path that `..` or a link leads out of the directory is refused, never redirected.

Rejected: /proc/PID/root, whose PID may be reused; a program inside that reads and writes, whose
answers the code can forge.

Started as root, Cellwall acts here with the file system uid of the cell. The tmpfs belongs to the
cell's user namespace, where host uid 0 does not exist; and no privilege of root then applies to
names that code has chosen.
"""

# ruff: noqa: PLC0415  # late import: few programs watch files

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSink, ByteSource, FileOperation, Watching, memory_root
from cellwall.core.limits import Limits
from cellwall.sandbox.files.descriptors import acting_as_owner
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.operations import FileRules, perform_operation
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.linux._syscalls import set_file_system_ids

_PAGE_BYTES = 4096


def operate_on_memory(
    fd: int,
    operation: FileOperation,
    *,
    inside: str,
    owner: int | None,
    limits: Limits,
    rules: FileRules,
) -> object:
    """Carry out one operation beneath `fd`, the directory `inside`, which is owned from now on."""
    if operation.name == "watch":
        return _watch(fd, operation, inside)
    with FileTree(fd, inside=inside) as tree, _acting_as(owner):
        if operation.target and memory_root(operation.target, second_user=True) != inside:
            raise BadInput(
                f"a file cannot be moved out of {inside} by a rename",
                hint="Read the file and write it to the new path.",
                code="CW-PATH-OUTSIDE",
            )
        if owner is not None:
            operation = _with_own_ids(operation, owner)
        return perform_operation(tree, operation, limits=_room(fd, limits), rules=rules)


def _watch(fd: int, operation: FileOperation, inside: str) -> Watching:
    from cellwall.sandbox.files.watcher import Watcher

    root = Root(fd, inside=inside)
    try:
        return Watcher(root, operation.path, recursive=operation.recursive)
    except BaseException:
        root.close()
        raise


def _room(fd: int, limits: Limits) -> Limits:
    """The kernel bounds the directory; one page stays free, since a full one ends running code."""
    room = os.fstatvfs(fd)
    total_bytes = room.f_frsize * room.f_blocks - _PAGE_BYTES
    return replace(
        limits,
        disk_bytes=max(min(limits.disk_bytes, total_bytes), 0),
        file_count=min(limits.file_count, room.f_files),
    )


@contextmanager
def _acting_as(uid: int | None) -> Iterator[None]:
    """Of this thread alone. The gid of a cell has the number of its uid."""
    if uid is None:
        yield
        return
    set_file_system_ids(uid)
    try:
        with acting_as_owner():
            yield
    finally:
        set_file_system_ids(os.geteuid())


@dataclass(frozen=True, slots=True)
class _OwnIds:
    """The caller's source or sink, which may open files of the caller: with the caller's ids."""

    stream: ByteSource | ByteSink
    uid_inside: int

    def read(self, size: int, /) -> bytes:
        with self._own():
            return self.stream.read(size)  # type: ignore[union-attr]  # only a source is read

    def write(self, data: bytes, /) -> object:
        with self._own():
            return self.stream.write(data)  # type: ignore[union-attr]  # only a sink is written

    @contextmanager
    def _own(self) -> Iterator[None]:
        set_file_system_ids(os.geteuid())
        try:
            yield
        finally:
            set_file_system_ids(self.uid_inside)


def _with_own_ids(operation: FileOperation, uid: int) -> FileOperation:
    source, sink = operation.source, operation.sink
    return replace(
        operation,
        source=None if source is None else _OwnIds(source, uid),
        sink=None if sink is None else _OwnIds(sink, uid),
    )
