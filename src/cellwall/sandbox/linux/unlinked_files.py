"""Unlinked files: disk space that the processes of a cell use though no directory entry shows it.

An unlinked file uses the disk until its last reference is gone, so a limit that counts directory
entries alone is bypassed by `unlink` after `open`, or by O_TMPFILE (LIM-6). References are:
  (1) a descriptor, in the table of any thread: a thread can have a table of its own;
  (2) a mapping, also after the descriptor was closed; a running program is one;
  (3) a message in a socket's queue (SCM_RIGHTS), which cannot be read; only its presence is known.
The scan runs outside: a process can hide its tables from init (PR_SET_DUMPABLE), not from the
supervisor. Anything that could not be read makes the result partial, and then the file system's
count of free blocks decides, see leases.py.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cellwall.core.ports import UnlinkedFiles
from cellwall.sandbox.linux._syscalls import share_descriptors

# A scan must stay cheap, however many descriptors and mappings there are: more is partial.
_MAX_DESCRIPTORS = 20_000
_MAX_MAPS_BYTES = 4 * 1024 * 1024
_READ_BYTES = 256 * 1024
# File systems in memory, which the cgroup counts, or without content.
_WITHOUT_DISK = frozenset(
    {b"tmpfs", b"ramfs", b"devtmpfs", b"devpts", b"proc", b"sysfs", b"mqueue"}
)
_MAX_ROUNDS = 6
_DELETED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) \d+ +.* \(deleted\)$",
    re.MULTILINE,
)
_IN_FLIGHT = re.compile(r"^scm_fds:\s*(\d+)", re.MULTILINE)
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_GONE = frozenset({errno.ENOENT, errno.ESRCH})


@functools.cache
def _anonymous_device() -> int:
    """The kernel's device for memfds, System V shared memory and shared anonymous mappings."""
    descriptor = os.memfd_create("cellwall-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Scan:
    """One scan of one cell."""

    without_disk: set[int] = field(default_factory=lambda: {_anonymous_device()})
    mount_namespaces: set[int] = field(default_factory=set)
    host_mounts: set[int] = field(default_factory=set)
    """Ids of mounts that reach only files of the host, and none that code wrote."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    used_bytes: int = 0
    is_partial: bool = False
    descriptors_left: int = _MAX_DESCRIPTORS
    maps_bytes_left: int = _MAX_MAPS_BYTES

    def learn_mounts(self, pid: int) -> None:
        """Once per namespace: bubblewrap's process, in a cold cell's group, sees other mounts."""
        namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
        if namespace not in self.mount_namespaces:
            self.mount_namespaces.add(namespace)
            mounts = _mounts_of(pid)
            self.without_disk |= {m.device for m in mounts if m.kind in _WITHOUT_DISK}
            self.host_mounts |= _host_mounts(mounts)

    def is_new(self, status: os.stat_result) -> bool:
        """Whether the file is unlinked, on a disk and not counted yet."""
        if status.st_nlink or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return False
        place = (status.st_dev, status.st_ino)
        return place not in self.seen and status.st_dev not in self.without_disk

    def count(self, status: os.stat_result) -> None:
        self.seen.add((status.st_dev, status.st_ino))
        self.used_bytes += status.st_blocks * 512


def find_unlinked_files(pids: Callable[[], Sequence[int]]) -> UnlinkedFiles:
    """Unlinked files on a disk that these processes hold, each counted once. May block.

    A file can be passed from process to process, each ending before its scan; so processes that
    are new after a round are scanned as well, and a chain without end makes the result partial.
    """
    scan, known = _Scan(), set[int]()
    for _ in range(_MAX_ROUNDS):
        new = [pid for pid in pids() if pid not in known]
        if not new:
            break
        known.update(new)
        for pid in new:
            _scan_process(scan, pid)
    else:
        scan.is_partial = True
    return UnlinkedFiles(scan.used_bytes, len(scan.seen), scan.is_partial)


def _scan_process(scan: _Scan, pid: int) -> None:
    if pid <= 0:  # 0: a process outside our PID namespace
        scan.is_partial = True
        return
    try:
        scan.learn_mounts(pid)
        _scan_tables(scan, pid)
        _scan_mappings(scan, pid)
    except OSError as error:
        scan.is_partial = scan.is_partial or error.errno not in _GONE


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line of mountinfo, proc_pid_mountinfo(5)."""

    id: int
    device: int
    root: bytes
    """The directory of its file system that is mounted, with a trailing slash."""
    is_read_only: bool
    kind: bytes


def _mounts_of(pid: int) -> list[_Mount]:
    found = []
    for line in read_some(f"/proc/{pid}/mountinfo", _MAX_MAPS_BYTES).splitlines():
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ", 1)[0]
        if len(fields) > 5:
            major, _, minor = fields[2].partition(b":")
            device, root = os.makedev(int(major), int(minor)), fields[3].rstrip(b"/") + b"/"
            is_read_only = b"ro" in fields[5].split(b",")
            found.append(_Mount(int(fields[0]), device, root, is_read_only, kind))
    return found


def _host_mounts(mounts: Sequence[_Mount]) -> set[int]:
    """Read-only mounts of directories that are writable nowhere else.

    A project below /opt is also visible through a read-only /opt, and a protected name through its
    own read-only mount: a file that code wrote may be opened through either.
    """
    writable = [mount for mount in mounts if not mount.is_read_only]
    return {
        mount.id
        for mount in mounts
        if mount.is_read_only
        and not any(
            mount.device == other.device
            and (mount.root.startswith(other.root) or other.root.startswith(mount.root))
            for other in writable
        )
    }


def tables_of(pid: int) -> Iterator[str]:
    """The /proc directory of each thread that has a descriptor table of its own."""
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == pid or not share_descriptors(pid, int(name)):
            yield f"/proc/{pid}/task/{name}"


def _scan_tables(scan: _Scan, pid: int) -> None:
    for task in tables_of(pid):
        try:
            table = os.open(f"{task}/fd", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            scan.is_partial = scan.is_partial or error.errno not in _GONE
            continue
        try:
            _scan_table(scan, table, f"{task}/fdinfo")
        finally:
            os.close(table)


def _scan_table(scan: _Scan, table: int, notes: str) -> None:
    for number in os.listdir(table):
        scan.descriptors_left -= 1
        if scan.descriptors_left < 0:
            scan.is_partial = True
            return
        try:
            status = os.stat(number, dir_fd=table)
            if stat.S_ISSOCK(status.st_mode):
                scan.is_partial |= _has_descriptors_in_flight(f"{notes}/{number}")
            elif scan.is_new(status) and not _is_host_file(scan, f"{notes}/{number}"):
                scan.count(status)
        except OSError:
            scan.is_partial = True  # closed meanwhile, perhaps after it was passed on


def _has_descriptors_in_flight(path: str) -> bool:
    found = _IN_FLIGHT.search(read_some(path, 4096).decode("ascii", "replace"))
    return found is not None and int(found[1]) > 0


def _scan_mappings(scan: _Scan, pid: int) -> None:
    text = read_some(f"/proc/{pid}/maps", scan.maps_bytes_left)
    scan.maps_bytes_left -= len(text)
    scan.is_partial = scan.is_partial or scan.maps_bytes_left <= 0
    for addresses, major, minor in _DELETED.findall(text):
        device = os.makedev(int(major, 16), int(minor, 16))
        if device in scan.without_disk:
            continue
        try:
            flags = os.O_PATH | os.O_CLOEXEC
            node = os.open(f"/proc/{pid}/map_files/{addresses.decode()}", flags)
        except OSError:
            scan.is_partial = True  # only root may read map_files; or the process has ended
            continue
        try:
            status = os.fstat(node)
            if scan.is_new(status) and not _is_host_file(scan, f"/proc/self/fdinfo/{node}"):
                scan.count(status)
        finally:
            os.close(node)


def _is_host_file(scan: _Scan, notes: str) -> bool:
    """Whether it is a host file that was replaced meanwhile, by the mount it was opened through."""
    found = _MOUNT_ID.search(read_some(notes, 4096))
    return found is not None and int(found[1]) in scan.host_mounts


def read_some(path: str, most: int) -> bytes:
    """At most this many bytes of a file in /proc."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks: list[bytes] = []
        while most > 0 and (chunk := os.read(descriptor, min(most, _READ_BYTES))):
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)
