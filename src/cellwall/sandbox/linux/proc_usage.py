"""Resource usage of a cell's processes, read from /proc by the supervisor.

`UsageSampler` replaces the counters of a cgroup, only with `dangerously_without_cgroup`. A cgroup
refuses memory at the time of the allocation; a sample sees the memory up to one monitor interval
later, so the limit can be exceeded for that long. rlimits bound each single process meanwhile, see
cell_plan.py. Not available without a cgroup: a share of processors, disk bandwidth, and the name of
the limit that refused a fork. Every process of a cell is a descendant of its shim: the cell's init
adopts orphans. Calls that allocate memory which no process maps and no file system shows are
refused: `without_cgroup` in seccomp.toml. Buffers of pipes and sockets are not measured, see
docs/limitations.md.

`find_unlinked_files` finds disk space that no directory entry shows. An unlinked file uses the disk
until its last reference is gone, so a limit that counts directory entries alone is bypassed by
`unlink` after `open`, or by O_TMPFILE (LIM-6). References are:
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cellwall.core.limits import Limits
from cellwall.core.sandbox_ports import UnlinkedFiles
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most
from cellwall.sandbox.linux._syscalls import share_descriptors
from cellwall.sandbox.linux.run_cgroup import Counters

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Offsets in /proc/PID/stat after the command's closing parenthesis, proc_pid_stat(5).
_PARENT, _UTIME, _STIME, _CSTIME, _STARTTIME = 1, 11, 12, 14, 19
_TMPFS_INSIDE = frozenset({"/tmp", "/dev/shm", "/workspace"})


class UsageSampler:
    """Samples the processes below one shim."""

    def __init__(self, shim_pid: int, limits: Limits) -> None:
        self._shim_pid = shim_pid
        self._limits = limits
        self._cpu_s = 0.0
        self._own_ticks: dict[tuple[int, str], int] = {}
        """Processor time of each live process, by pid and start time."""
        self._ended_ticks = 0
        self._peak = 0
        self._is_over = False

    def pids(self) -> list[int]:
        """Descendants of the shim, without the shim itself."""
        return list(_descendants(self._shim_pid))

    def cpu_s(self) -> float:
        """The highest sum seen so far."""
        self._cpu_s = max(self._cpu_s, self._ticks(_descendants(self._shim_pid)) / _TICKS_PER_S)
        return self._cpu_s

    def counters(self) -> Counters:
        """The highest values seen so far: ended processes cannot be sampled."""
        stats = _descendants(self._shim_pid)
        self._cpu_s = max(self._cpu_s, self._ticks(stats) / _TICKS_PER_S)
        used = self._memory(list(stats))
        self._peak = max(self._peak, used)
        self._is_over = self._is_over or used > self._limits.memory_bytes
        return Counters(
            cpu_s=self._cpu_s,
            memory_peak=self._peak,
            out_of_memory=int(self._is_over),
            is_sampled=True,
        )

    def _ticks(self, stats: dict[int, list[str]]) -> int:
        """The larger of two incomplete sums.

        One counts each live process and the children it has waited for. The other counts the last
        known time of every process ever seen: the kernel accounts the children of a process that
        ignores SIGCHLD to no parent.
        """
        waited_for = sum(sum(map(int, stat[_UTIME : _CSTIME + 1])) for stat in stats.values())
        own = {
            (pid, stat[_STARTTIME]): int(stat[_UTIME]) + int(stat[_STIME])
            for pid, stat in stats.items()
        }
        self._ended_ticks += sum(self._own_ticks[gone] for gone in self._own_ticks.keys() - own)
        self._own_ticks = own
        return max(waited_for, self._ended_ticks + sum(own.values()))

    def _memory(self, pids: list[int]) -> int:
        stored = _tmpfs_bytes(reversed(pids))
        resident = sum(_status_bytes(pid, ("RssAnon", "RssShmem")) for pid in pids)
        if resident + stored <= self._limits.memory_bytes:
            return resident + stored
        # Shared pages were counted once for each process. The exact figure is expensive.
        return stored + sum(_shared_bytes(pid) for pid in pids)


def _descendants(root: int) -> dict[int, list[str]]:
    """pid -> the fields of its stat after the command, parents before children."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # A process chooses its name, which may contain a closing parenthesis.
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read().rpartition(b")")[2].decode("ascii", "replace").split()
                if len(stat) > _STARTTIME:
                    stats[int(name)] = stat
                    children.setdefault(int(stat[_PARENT]), []).append(int(name))
    descendants: dict[int, list[str]] = {}
    todo = children.get(root, [])
    while todo:
        pid = todo.pop(0)
        descendants[pid] = stats[pid]
        todo += children.get(pid, [])
    return descendants


def _status_bytes(pid: int, names: tuple[str, ...]) -> int:
    return _kib_lines(f"/proc/{pid}/status", names)


def _shared_bytes(pid: int) -> int:
    """Proportional set size: shared pages divided by the number of processes that share them."""
    exact = _kib_lines(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    return exact or _status_bytes(pid, ("RssAnon", "RssShmem"))


def _kib_lines(path: str, names: tuple[str, ...]) -> int:
    total = 0
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in names:
                total += int(value.split()[0]) * 1024
    return total


def _tmpfs_bytes(pids: Iterable[int]) -> int:
    """Files in the cell's tmpfs mounts, seen through the root of one of its processes."""
    ours = os.stat("/proc/self/ns/pid").st_ino
    for pid in pids:
        with suppress(OSError):
            # The parents of the cell's init see the host's mounts.
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != ours:
                return sum(_used_bytes(f"/proc/{pid}/root{point}") for point in _tmpfs_points(pid))
    return 0


def _tmpfs_points(pid: int) -> list[str]:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        lines = [line.partition(" - ") for line in file]
    mounts = [(before.split(" ")[4], after) for before, _, after in lines]
    return [point for point, kind in mounts if point in _TMPFS_INSIDE and kind.startswith("tmpfs ")]


def _used_bytes(path: str) -> int:
    info = os.statvfs(path)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


# A scan must stay cheap, however many descriptors and mappings there are: more is partial.
_MAX_DESCRIPTORS = 20_000
_MAX_MAPS_BYTES = 4 * 1024 * 1024
# File systems in memory, which the cgroup counts, or without content.
_WITHOUT_DISK = frozenset(
    {b"tmpfs", b"ramfs", b"devtmpfs", b"devpts", b"proc", b"sysfs", b"mqueue"}
)
_MAX_ROUNDS = 6
_CACHED_TEXTS = 32
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
    with closing_fd(os.memfd_create("cellwall-probe", os.MFD_CLOEXEC)) as descriptor:
        return os.fstat(descriptor).st_dev


@dataclass(slots=True)
class _UnlinkedScan:
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
            without_disk, host_mounts = _read_mounts(
                read_some(f"/proc/{pid}/mountinfo", _MAX_MAPS_BYTES)
            )
            self.without_disk |= without_disk
            self.host_mounts |= host_mounts

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
    scan, known = _UnlinkedScan(), set[int]()
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


def _scan_process(scan: _UnlinkedScan, pid: int) -> None:
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


def tables_of(pid: int) -> Iterator[str]:
    """The /proc directory of each thread that has a descriptor table of its own."""
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == pid or not share_descriptors(pid, int(name)):
            yield f"/proc/{pid}/task/{name}"


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
    """Addresses and device of each mapping of a deleted file. Cached, as the mounts are."""
    return tuple(
        (addresses, os.makedev(int(major, 16), int(minor, 16)))
        for addresses, major, minor in _DELETED.findall(text)
    )


def _scan_mappings(scan: _UnlinkedScan, pid: int) -> None:
    text = read_some(f"/proc/{pid}/maps", scan.maps_bytes_left)
    scan.maps_bytes_left -= len(text)
    scan.is_partial = scan.is_partial or scan.maps_bytes_left <= 0
    for addresses, device in _deleted_mappings(text):
        if device in scan.without_disk:
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


def read_some(path: str, most: int) -> bytes:
    """At most this many bytes of a file in /proc."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        return read_at_most(descriptor, most)
