"""Files without a name: what the processes of a cell keep on the disk though no directory shows it.

An unlinked file costs the disk as much as before for as long as something holds it, so a limit
that counts names alone is passed by `unlink` after `open`, or by O_TMPFILE (LIM-6). What can hold:
  (1) a descriptor, in the table of any thread: a thread can have a table of its own;
  (2) a mapping, also after the descriptor was closed; a running program is one;
  (3) a message in a socket's queue (SCM_RIGHTS), where nobody can look. That there is one is told.
We look from outside: a process can hide its tables from init (PR_SET_DUMPABLE), not from the
supervisor. Whatever could not be looked at makes the answer partial, and the file system's own
count of free blocks decides then, see leases.py.
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

# One look must stay cheap, however many descriptors and mappings there are: more is partial.
_MAX_DESCRIPTORS = 20_000
_MAX_MAPS_BYTES = 4 * 1024 * 1024
_READ_BYTES = 256 * 1024
# Their content is memory, which the cgroup counts, or nothing at all.
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
    """Of memfd_create, System V shared memory and shared anonymous mappings: the kernel's own."""
    descriptor = os.memfd_create("cellwall-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Scan:
    """One look at one cell."""

    without_disk: set[int] = field(default_factory=lambda: {_anonymous_device()})
    mount_namespaces: set[int] = field(default_factory=set)
    hosts_mounts: set[int] = field(default_factory=set)
    """Ids of mounts through which only files of the host's are reached, and none written."""
    seen: set[tuple[int, int]] = field(default_factory=set)
    used_bytes: int = 0
    is_partial: bool = False
    descriptors_left: int = _MAX_DESCRIPTORS
    maps_bytes_left: int = _MAX_MAPS_BYTES

    def learn_mounts(self, pid: int) -> None:
        """bubblewrap's own process is in the group of a cold cell and sees other mounts."""
        namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
        if namespace not in self.mount_namespaces:
            self.mount_namespaces.add(namespace)
            mounts = _mounts_of(pid)
            self.without_disk |= {m.device for m in mounts if m.kind in _WITHOUT_DISK}
            self.hosts_mounts |= _hosts_mounts(mounts)

    def is_news(self, status: os.stat_result) -> bool:
        """Whether it has no name, lies on a disk and was not counted yet."""
        if status.st_nlink or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return False
        place = (status.st_dev, status.st_ino)
        return place not in self.seen and status.st_dev not in self.without_disk

    def count(self, status: os.stat_result) -> None:
        self.seen.add((status.st_dev, status.st_ino))
        self.used_bytes += status.st_blocks * 512


def find_unlinked_files(pids: Callable[[], Sequence[int]]) -> UnlinkedFiles:
    """Files on a disk that only these processes hold, each counted once. May take a moment.

    A file can be handed on from process to process, each ending before we come to it; so whoever is
    new after a look is looked at as well, and one that is never caught up with makes it partial.
    """
    look, known = _Scan(), set[int]()
    for _ in range(_MAX_ROUNDS):
        new = [pid for pid in pids() if pid not in known]
        if not new:
            break
        known.update(new)
        for pid in new:
            _scan_process(look, pid)
    else:
        look.is_partial = True
    return UnlinkedFiles(look.used_bytes, len(look.seen), look.is_partial)


def _scan_process(look: _Scan, pid: int) -> None:
    if pid <= 0:  # 0: a process that our PID namespace does not show
        look.is_partial = True
        return
    try:
        look.learn_mounts(pid)
        _scan_tables(look, pid)
        _scan_mappings(look, pid)
    except OSError as error:
        look.is_partial = look.is_partial or error.errno not in _GONE


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line of mountinfo, proc_pid_mountinfo(5)."""

    id: int
    device: int
    root: bytes
    """Which directory of its file system it shows; it ends with a slash."""
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


def _hosts_mounts(mounts: Sequence[_Mount]) -> set[int]:
    """Read-only ones that show nothing of what is shown writable elsewhere.

    A project below /opt is seen through a read-only /opt as well, and a protected name through
    its own read-only mount: what code wrote is not the host's because it was opened there.
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
    """The place in /proc of each thread that has a table of descriptors of its own."""
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == pid or not share_descriptors(pid, int(name)):
            yield f"/proc/{pid}/task/{name}"


def _scan_tables(look: _Scan, pid: int) -> None:
    for task in tables_of(pid):
        try:
            table = os.open(f"{task}/fd", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            look.is_partial = look.is_partial or error.errno not in _GONE
            continue
        try:
            _scan_table(look, table, f"{task}/fdinfo")
        finally:
            os.close(table)


def _scan_table(look: _Scan, table: int, notes: str) -> None:
    for number in os.listdir(table):
        look.descriptors_left -= 1
        if look.descriptors_left < 0:
            look.is_partial = True
            return
        try:
            status = os.stat(number, dir_fd=table)
            if stat.S_ISSOCK(status.st_mode):
                look.is_partial |= _has_descriptors_in_flight(f"{notes}/{number}")
            elif look.is_news(status) and not _is_hosts(look, f"{notes}/{number}"):
                look.count(status)
        except OSError:
            look.is_partial = True  # closed meanwhile, perhaps after it was copied elsewhere


def _has_descriptors_in_flight(path: str) -> bool:
    found = _IN_FLIGHT.search(read_some(path, 4096).decode("ascii", "replace"))
    return found is not None and int(found[1]) > 0


def _scan_mappings(look: _Scan, pid: int) -> None:
    text = read_some(f"/proc/{pid}/maps", look.maps_bytes_left)
    look.maps_bytes_left -= len(text)
    look.is_partial = look.is_partial or look.maps_bytes_left <= 0
    for addresses, major, minor in _DELETED.findall(text):
        device = os.makedev(int(major, 16), int(minor, 16))
        if device in look.without_disk:
            continue
        try:
            flags = os.O_PATH | os.O_CLOEXEC
            node = os.open(f"/proc/{pid}/map_files/{addresses.decode()}", flags)
        except OSError:
            look.is_partial = True  # only root may look there; or it has ended meanwhile
            continue
        try:
            status = os.fstat(node)
            if look.is_news(status) and not _is_hosts(look, f"/proc/self/fdinfo/{node}"):
                look.count(status)
        finally:
            os.close(node)


def _is_hosts(look: _Scan, notes: str) -> bool:
    """A file of the host's that was replaced meanwhile, by the mount that it was opened through."""
    found = _MOUNT_ID.search(read_some(notes, 4096))
    return found is not None and int(found[1]) in look.hosts_mounts


def read_some(path: str, most: int) -> bytes:
    """A file of the kernel's, no further than this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks: list[bytes] = []
        while most > 0 and (chunk := os.read(descriptor, min(most, _READ_BYTES))):
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)
