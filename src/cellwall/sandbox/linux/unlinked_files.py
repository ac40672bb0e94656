"""Disk space that no directory entry shows.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cellwall.core.sandbox_ports import UnlinkedFiles
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.linux.proc_usage import read_some, tables_of

_MAX_MOUNTS_BYTES = 4 * 1024 * 1024
# File systems in memory, which the cgroup counts, or without content.
_WITHOUT_DISK = frozenset(
    {b"tmpfs", b"ramfs", b"devtmpfs", b"devpts", b"proc", b"sysfs", b"mqueue"}
)
_MAX_ROUNDS = 6
_CACHED_TEXTS = 32
_IN_FLIGHT = re.compile(r"^scm_fds:\s*(\d+)", re.MULTILINE)
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_GONE = frozenset({errno.ENOENT, errno.ESRCH})


@functools.cache
def _anonymous_device() -> int:
    """The kernel's device for memfds, System V shared memory and shared anonymous mappings."""
    with closing_fd(os.memfd_create("cellwall-probe", os.MFD_CLOEXEC)) as descriptor:
        return os.fstat(descriptor).st_dev


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """A scan must stay cheap, however much code opens and maps: more makes the result partial."""

    processes: int
    descriptors: int
    maps_bytes: int


FULL_SCAN = ScanBounds(processes=1_000_000, descriptors=20_000, maps_bytes=4 * 1024 * 1024)
BRIEF_SCAN = ScanBounds(processes=6, descriptors=128, maps_bytes=128 * 1024)
"""For the event loop, which must not be held up: about half a millisecond at most."""


@dataclass(slots=True)
class _UnlinkedScan:
    """One scan of one cell."""

    descriptors_left: int
    maps_bytes_left: int
    without_disk: set[int] = field(default_factory=lambda: {_anonymous_device()})
    scanned: list[int] = field(default_factory=list)
    """Processes whose mounts were not read: most scans find no file that needs them."""
    mount_namespaces: set[int] = field(default_factory=set)
    host_mounts: set[int] = field(default_factory=set)
    """Ids of mounts that reach only files of the host, and none that code wrote."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    used_bytes: int = 0
    is_partial: bool = False

    def _learn_mounts(self) -> None:
        """Once per namespace: bubblewrap's process, in a cold cell's group, sees other mounts."""
        while self.scanned:
            pid = self.scanned.pop()
            try:
                namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
                if namespace in self.mount_namespaces:
                    continue
                text = read_some(f"/proc/{pid}/mountinfo", _MAX_MOUNTS_BYTES)
            except OSError as error:  # files of unknown mounts are counted
                self.is_partial = self.is_partial or error.errno not in _GONE
                continue
            self.mount_namespaces.add(namespace)
            without_disk, host_mounts = _read_mounts(text)
            self.without_disk |= without_disk
            self.host_mounts |= host_mounts

    def has_disk(self, device: int) -> bool:
        if device in self.without_disk:
            return False
        self._learn_mounts()
        return device not in self.without_disk

    def is_new(self, status: os.stat_result) -> bool:
        """Whether the file is unlinked, on a disk and not counted yet."""
        if status.st_nlink or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return False
        place = (status.st_dev, status.st_ino)
        return place not in self.seen and self.has_disk(status.st_dev)

    def count(self, status: os.stat_result) -> None:
        self.seen.add((status.st_dev, status.st_ino))
        self.used_bytes += status.st_blocks * 512


def find_unlinked_files(
    pids: Callable[[], Sequence[int]], bounds: ScanBounds = FULL_SCAN
) -> UnlinkedFiles:
    """Unlinked files on a disk that these processes hold, each counted once. May block.

    A file can be passed from process to process, each ending before its scan; so processes that
    are new after a round are scanned as well, and a chain without end makes the result partial.
    """
    scan, known = _UnlinkedScan(bounds.descriptors, bounds.maps_bytes), set[int]()
    for _ in range(_MAX_ROUNDS):
        new = [pid for pid in pids() if pid not in known]
        if not new:
            break
        known.update(new)
        if len(known) > bounds.processes:
            scan.is_partial = True
            break
        for pid in new:
            _scan_process(scan, pid)
    else:
        scan.is_partial = True
    return UnlinkedFiles(scan.used_bytes, len(scan.seen), scan.is_partial)


def _scan_process(scan: _UnlinkedScan, pid: int) -> None:
    if pid <= 0:  # 0: a process outside our PID namespace
        scan.is_partial = True
        return
    scan.scanned.append(pid)
    try:
        _scan_tables(scan, pid)
        _scan_mappings(scan, pid)
    except OSError as error:
        scan.is_partial = scan.is_partial or error.errno not in _GONE


@dataclass(frozen=True, slots=True)
class _MountLine:
    """One line of mountinfo, proc_pid_mountinfo(5)."""

    id: int
    device: int
    root: bytes
    """The directory of its file system that is mounted, with a trailing slash."""
    is_read_only: bool
    kind: bytes


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _read_mounts(text: bytes) -> tuple[frozenset[int], frozenset[int]]:
    """Devices without a disk, and ids of mounts that reach only files of the host. Cached: the
    mounts of a cell stay the same, and a live cell is scanned after each run."""
    mounts = _parse_mounts(text)
    without_disk = frozenset(m.device for m in mounts if m.kind in _WITHOUT_DISK)
    return without_disk, frozenset(_host_mounts(mounts))


def _parse_mounts(text: bytes) -> list[_MountLine]:
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ", 1)[0]
        if len(fields) > 5:
            major, _, minor = fields[2].partition(b":")
            device, root = os.makedev(int(major), int(minor)), fields[3].rstrip(b"/") + b"/"
            is_read_only = b"ro" in fields[5].split(b",")
            mounts.append(_MountLine(int(fields[0]), device, root, is_read_only, kind))
    return mounts


def _host_mounts(mounts: Sequence[_MountLine]) -> set[int]:
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


def _scan_tables(scan: _UnlinkedScan, pid: int) -> None:
    for task in tables_of(pid):
        try:
            table = os.open(f"{task}/fd", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            scan.is_partial = scan.is_partial or error.errno not in _GONE
            continue
        with closing_fd(table):
            _scan_table(scan, table, f"{task}/fdinfo")


def _scan_table(scan: _UnlinkedScan, table: int, notes: str) -> None:
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
    match = _IN_FLIGHT.search(read_some(path, 4096).decode("ascii", "replace"))
    return match is not None and int(match[1]) > 0


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _deleted_mappings(text: bytes) -> tuple[tuple[bytes, int], ...]:
    """Addresses and device of each mapping of a deleted file. Cached, as the mounts are.

    By words, not by an expression, which takes eight times as long: an interpreter of a cell has
    more than a hundred such mappings, of its zygote's memory.
    """
    lines = [line for line in text.split(b"\n") if line.endswith(b" (deleted)")]
    return tuple(_address_and_device(line.split(b" ", 4)) for line in lines)


def _address_and_device(words: Sequence[bytes]) -> tuple[bytes, int]:
    """Of a line in proc_pid_maps(5): address, access, offset, device, and the rest."""
    major, _, minor = words[3].partition(b":")
    return words[0], os.makedev(int(major, 16), int(minor, 16))


def _scan_mappings(scan: _UnlinkedScan, pid: int) -> None:
    text = read_some(f"/proc/{pid}/maps", scan.maps_bytes_left)
    scan.maps_bytes_left -= len(text)
    scan.is_partial = scan.is_partial or scan.maps_bytes_left <= 0
    for addresses, device in _deleted_mappings(text):
        if not scan.has_disk(device):
            continue
        try:
            flags = os.O_PATH | os.O_CLOEXEC
            node = os.open(f"/proc/{pid}/map_files/{addresses.decode()}", flags)
        except OSError:
            scan.is_partial = True  # only root may read map_files; or the process has ended
            continue
        with closing_fd(node):
            status = os.fstat(node)
            if scan.is_new(status) and not _is_host_file(scan, f"/proc/self/fdinfo/{node}"):
                scan.count(status)


def _is_host_file(scan: _UnlinkedScan, notes: str) -> bool:
    """Whether it is a host file that was replaced meanwhile, by the mount it was opened through."""
    match = _MOUNT_ID.search(read_some(notes, 4096))
    return match is not None and int(match[1]) in scan.host_mounts
