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
from cellwall.sandbox.native._syscalls import share_descriptors

# One look must stay cheap, however many descriptors and mappings there are: more is partial.
_MAX_DESCRIPTORS = 20_000
_MAX_MAPS_BYTES = 4 * 1024 * 1024
_READ_BYTES = 256 * 1024
# Their content is memory, which the cgroup counts, or nothing at all.
_WITHOUT_DISK = frozenset(
    {b"tmpfs", b"ramfs", b"devtmpfs", b"devpts", b"proc", b"sysfs", b"mqueue"}
)
_READ_ONLY = ("/usr/", "/bin/", "/sbin/", "/lib", "/opt/", "/etc/")
_MAX_ROUNDS = 6
_DELETED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) \d+ +(.*) \(deleted\)$",
    re.MULTILINE,
)
_IN_FLIGHT = re.compile(r"^scm_fds:\s*(\d+)", re.MULTILINE)
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
class _Look:
    """One look at one cell."""

    without_disk: set[int] = field(default_factory=lambda: {_anonymous_device()})
    mount_namespaces: set[int] = field(default_factory=set)
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
            self.without_disk |= _devices_without_disk(pid)

    def is_news(self, status: os.stat_result) -> bool:
        """Whether it has no name, lies on a disk and was not counted yet."""
        if status.st_nlink or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return False
        place = (status.st_dev, status.st_ino)
        return place not in self.seen and status.st_dev not in self.without_disk

    def count(self, status: os.stat_result) -> None:
        self.seen.add((status.st_dev, status.st_ino))
        self.used_bytes += status.st_blocks * 512


def unlinked_files(pids: Callable[[], Sequence[int]]) -> UnlinkedFiles:
    """Files on a disk that only these processes hold, each counted once. May take a moment.

    A file can be handed on from process to process, each ending before we come to it; so whoever is
    new after a look is looked at as well, and one that is never caught up with makes it partial.
    """
    look, known = _Look(), set[int]()
    for _ in range(_MAX_ROUNDS):
        new = [pid for pid in pids() if pid not in known]
        if not new:
            break
        known.update(new)
        for pid in new:
            _look_at_process(look, pid)
    else:
        look.is_partial = True
    return UnlinkedFiles(look.used_bytes, len(look.seen), look.is_partial)


def _look_at_process(look: _Look, pid: int) -> None:
    if pid <= 0:  # 0: a process that our PID namespace does not show
        look.is_partial = True
        return
    try:
        look.learn_mounts(pid)
        _look_at_tables(look, pid)
        _look_at_mappings(look, pid)
    except OSError as error:
        look.is_partial = look.is_partial or error.errno not in _GONE


def _devices_without_disk(pid: int) -> set[int]:
    found = set()
    for line in read_some(f"/proc/{pid}/mountinfo", _MAX_MAPS_BYTES).splitlines():
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(), after.split(b" ", 1)[0]
        if len(fields) > 2 and kind in _WITHOUT_DISK:
            major, _, minor = fields[2].partition(b":")
            found.add(os.makedev(int(major), int(minor)))
    return found


def tables_of(pid: int) -> Iterator[str]:
    """The place in /proc of each thread that has a table of descriptors of its own."""
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == pid or not share_descriptors(pid, int(name)):
            yield f"/proc/{pid}/task/{name}"


def _look_at_tables(look: _Look, pid: int) -> None:
    for task in tables_of(pid):
        try:
            table = os.open(f"{task}/fd", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            look.is_partial = look.is_partial or error.errno not in _GONE
            continue
        try:
            _look_at_table(look, table, f"{task}/fdinfo")
        finally:
            os.close(table)


def _look_at_table(look: _Look, table: int, notes: str) -> None:
    for number in os.listdir(table):
        look.descriptors_left -= 1
        if look.descriptors_left < 0:
            look.is_partial = True
            return
        try:
            status = os.stat(number, dir_fd=table)
            if stat.S_ISSOCK(status.st_mode):
                look.is_partial |= _has_descriptors_in_flight(f"{notes}/{number}")
            elif look.is_news(status) and not _is_hosts(os.readlink(number, dir_fd=table)):
                look.count(status)
        except OSError:
            look.is_partial = True  # closed meanwhile, perhaps after it was copied elsewhere


def _has_descriptors_in_flight(path: str) -> bool:
    found = _IN_FLIGHT.search(read_some(path, 4096).decode("ascii", "replace"))
    return found is not None and int(found[1]) > 0


def _look_at_mappings(look: _Look, pid: int) -> None:
    text = read_some(f"/proc/{pid}/maps", look.maps_bytes_left)
    look.maps_bytes_left -= len(text)
    look.is_partial = look.is_partial or look.maps_bytes_left <= 0
    for addresses, major, minor, path in _DELETED.findall(text):
        device = os.makedev(int(major, 16), int(minor, 16))
        if device in look.without_disk or _is_hosts(os.fsdecode(path)):
            continue
        try:
            status = os.stat(f"/proc/{pid}/map_files/{addresses.decode()}")
        except OSError:
            look.is_partial = True  # only root may look there; or it has ended meanwhile
            continue
        if look.is_news(status):
            look.count(status)


def _is_hosts(path: str) -> bool:
    """A file of the host's that was replaced meanwhile, by its place in the cell.

    Nothing can be written there, and nothing of the workspace can have such a place.
    """
    return path.startswith(_READ_ONLY)


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
