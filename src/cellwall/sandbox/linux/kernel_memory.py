"""Kernel memory of a cell that no cgroup counts: file locks and parts of sockets (LIM-6).

Counting is expensive, so two cheap sums of the host's kernel memory are read often, and only their
growth starts a count. The count attributes memory exactly, by descriptor and by network namespace:
growth caused by another cell ends no cell. Sockets are also counted regularly without growth:
memory that one cell takes while others release theirs does not show in the sums. /proc/locks is not
read: that costs the square of the number of locks and blocks every process of the host that locks.

The kernel counts the buffers of accepted connections, received datagrams and unix sockets. It does
not count, on cgroup v1 and v2 alike:
  (1) connections that were not accepted, and their data: an interrupt makes them, which belongs to
      no process;
  (2) a datagram that is being assembled (UDP_CORK, MSG_MORE);
  (3) the queues of netlink sockets;
  (4) joined multicast groups;
  (5) error queues. A cell on Linux 6.18 has none: see `setsockopt` in seccomp.toml and
      tstamp_allow_data in plan.py. On older kernels those of datagram sockets show as received.
A socket that is neither bound nor connected is in no list, only in the number of all sockets: it is
assumed to hold the most it can. Nothing here opens a descriptor of the cell (ISO-13).

Other uncounted memory cannot be allocated in a cell, or only in small amounts: see
docs/limitations.md.
"""

from __future__ import annotations

import functools
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from cellwall.core.limits import KIB, MIB, Limits
from cellwall.sandbox.linux.proc_usage import read_some, tables_of
from cellwall.sandbox.linux.run_cgroup import read_text, socket_bytes

MAX_LOCKS_BYTES = 8 * MIB
_MAX_CHASE_S = 0.2
_LOCK_BYTES = 256  # struct file_lock and its share of a slab
_SLAB_STEP_BYTES = 4 * MIB
_KERNEL_STEP_BYTES = 16 * MIB  # less is the coming and going of free pages
_REGULARLY_S = 1.0
_GAUGE_FRESH_S = 0.02
_PAUSE_FACTOR = 4
_REGULAR_FACTOR = 100  # a hundredth of one core
_MAX_PAUSE_S = 5.0  # one expensive count (many descriptor tables) must not delay the next for long
# Memory in /proc/meminfo that is not the kernel's own; SReclaimable is cache.
_NOT_KERNEL = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
_MEMORY_LINES = re.compile(
    rf"^({'|'.join(_NOT_KERNEL)}|MemTotal|SUnreclaim): +([0-9]+) ", re.MULTILINE
)


class UnchargedMemory:
    """Checks one cell, from the creation of this object on."""

    def __init__(self, pids: Callable[[], Sequence[int]], limits: Limits) -> None:
        self._pids = pids
        self._memory_bytes = limits.memory_bytes
        self._max_socket_bytes = socket_bytes(limits)
        self._slab, self._kernel = _gauge.read()
        self._not_before = 0.0
        self._regularly = time.monotonic() + _REGULARLY_S

    def is_due(self) -> bool:
        """Whether the host's kernel memory has grown enough to count the cell's part."""
        slab, kernel = _gauge.read()
        self._slab, self._kernel = min(self._slab, slab), min(self._kernel, kernel)
        now = time.monotonic()
        has_grown = self._has_more_slab(slab) or kernel - self._kernel >= _KERNEL_STEP_BYTES
        return now >= self._not_before and (has_grown or now >= self._regularly)

    def _has_more_slab(self, slab: int) -> bool:
        return slab - self._slab >= _SLAB_STEP_BYTES

    def exceeds_limit(self) -> bool:
        """Count. May block."""
        # Processor time of this thread: on a busy host a count takes long without costing much, and
        # a pause by the wall clock would leave the cell that makes the host busy unchecked.
        started = time.thread_time()
        slab, kernel = _gauge.read()
        counts_locks = self._has_more_slab(slab)
        if counts_locks:
            self._slab = slab
        self._kernel = kernel
        pids = self._pids()
        most = MAX_LOCKS_BYTES // _LOCK_BYTES
        exceeds_limit = counts_locks and count_locks(pids, most=most) > most
        most = self._max_socket_bytes
        in_sockets = uncharged_bytes(pids, memory_bytes=self._memory_bytes, most=most)
        now, cost_s = time.monotonic(), time.thread_time() - started
        self._not_before = now + _PAUSE_FACTOR * cost_s
        pause_s = max(_REGULARLY_S, _REGULAR_FACTOR * cost_s)
        self._regularly = now + min(pause_s, _MAX_PAUSE_S)
        return exceeds_limit or in_sockets > most


def count_locks(pids: Sequence[int], *, most: int) -> int:
    """File locks of these processes, counted up to the first beyond `most`.

    A POSIX lock ends with its descriptor table, so it is found at a descriptor. Locks of an open
    file description could be in flight; the seccomp filter refuses them.
    """
    count = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            count += _LockCounter(most - count).of_process(pid)
        if count > most:
            break
    return count


class _LockCounter:
    """Counts the locks of one process.

    Threads can pass a table of their own on, each ending before the table was read. The next thread
    has the same table: counting continues at the descriptor where the last one stopped. A process
    in which that does not end is stopped (SIGSTOP) while it is counted; one that another process
    continues meanwhile counts as over the limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._whole: set[str] = set()
        self._read: set[str] = set()
        """Descriptors of tables that were passed on."""

    def of_process(self, pid: int) -> int:
        if self._chase(pid):
            return self._count
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            if not self._chase(pid) and not select.select([process], [], [], 0)[0]:
                self._count = self._most + 1
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
            os.close(process)
        return self._count

    def _chase(self, pid: int) -> bool:
        """Whether all its tables were read, or enough to exceed the limit."""
        until = time.monotonic() + _MAX_CHASE_S
        while time.monotonic() < until:
            is_whole = [self._count_table(task) for task in tables_of(pid)]
            if all(is_whole) or self._count > self._most:
                return True
        return False

    def _count_table(self, task: str) -> bool:
        """Whether its table was read to the end."""
        if task in self._whole:
            return True
        begun = set[str]()
        try:
            for number in os.listdir(f"{task}/fdinfo"):
                if number in self._read:
                    continue
                self._count += self._locks_at(task, number)
                begun.add(number)
                if self._count > self._most:
                    return True
            is_whole = os.path.exists(f"{task}/fdinfo")
        except OSError:  # the thread has ended
            is_whole = False
        if is_whole:
            self._whole.add(task)
        else:
            self._read |= begun
        return is_whole

    def _locks_at(self, task: str, number: str) -> int:
        try:
            # Each has a line of at least 32 bytes: `lock: 1: POSIX  ADVISORY  WRITE …`.
            text = read_some(f"{task}/fdinfo/{number}", 64 * (self._most + 64))
        except FileNotFoundError:
            if os.path.exists(task):
                return 0  # closed meanwhile
            raise
        return text.count(b"\nlock:")


class _Gauge:
    """Limits how often /proc/meminfo is read, for any number of cells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = -1.0
        self._bytes = (0, 0)

    def read(self) -> tuple[int, int]:
        """Bytes of unreclaimable slab, and of all memory of the kernel itself."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= _GAUGE_FRESH_S:
                self._read_at = now
                self._bytes = _kernel_bytes()
            return self._bytes


def _kernel_bytes() -> tuple[int, int]:
    found = _MEMORY_LINES.findall(read_text("/proc/meminfo"))
    values = {name: int(kibibytes) * 1024 for name, kibibytes in found}
    slab, total = values.pop("SUnreclaim", 0), values.pop("MemTotal", 0)
    return slab, max(0, total - sum(values.values()))


_gauge = _Gauge()


# More sockets than fit (some 200,000, each costs the kernel kilobytes) are too many.
_MAX_LIST_BYTES = 32 * MIB
# struct tcp_sock and its companions, without data.
_CONNECTION_BYTES = 4 * KIB
_MULTICAST_BYTES = 512  # a group and its membership
# One datagram of 64 KiB and its head.
_MAX_CORKED_BYTES = 68 * KIB
_LISTENING, _TIME_WAIT, _REQUESTED = b"0A", b"06", (b"03", b"0C")
# sl local remote state tx:rx timer retransmits uid timeout inode
_INTERNET_SOCKET = re.compile(
    rb"^ *\d+: \S+ \S+ ([0-9A-F]{2}) ([0-9A-F]+):([0-9A-F]+) \S+ \S+ +\d+ +\d+ (\d+) ", re.MULTILINE
)
_LISTS = ("udp", "udp6", "unix", "netlink", "igmp", "igmp6")
_IN_USE = re.compile(rb"^(sockets|TCP|UDP|TCP6|UDP6): (?:used|inuse) (\d+)", re.MULTILINE)


def datagram_bytes(text: bytes) -> tuple[int, int]:
    """From /proc/net/udp or udp6: bytes being assembled, and bytes received and unread."""
    sockets = _INTERNET_SOCKET.findall(text)
    return sum(int(each[1], 16) for each in sockets), sum(int(each[2], 16) for each in sockets)


def unaccepted_bytes(text: bytes) -> int:
    """From /proc/net/tcp or tcp6."""
    used = 0
    for state, _sent, received, inode in _INTERNET_SOCKET.findall(text):
        # Without an inode: not accepted yet, or closed by its process and still being sent. The
        # namespace itself bounds connections in TIME_WAIT and half-open ones.
        if inode == b"0" and state not in (_LISTENING, _TIME_WAIT, *_REQUESTED):
            used += _CONNECTION_BYTES + int(received, 16)
    return used


def netlink_bytes(text: bytes) -> tuple[int, int]:
    """From /proc/net/netlink: queued bytes, and the number of sockets that are not the kernel's."""
    # sk Eth Pid Groups Rmem Wmem …
    lines = [fields for line in text.splitlines()[1:] if len(fields := line.split()) > 5]
    used = sum(int(fields[4]) + int(fields[5]) for fields in lines)
    return used, sum(fields[2] != b"0" for fields in lines)


def uncharged_bytes(pids: Sequence[int], *, memory_bytes: int, most: int) -> int:
    """Uncounted bytes of sockets in these processes' namespaces; exact only beyond `most`.

    `memory_bytes` is the cell's limit: unread datagrams beyond it cannot have been counted.
    """
    used = 0
    for net in _namespaces(pids):
        with suppress(OSError):  # the process has ended
            used += _uncharged_in(net, memory_bytes, most)
    return used


def _namespaces(pids: Sequence[int]) -> Iterator[str]:
    """/proc/PID/net of one process in each network namespace that is not our own."""
    # bubblewrap's process is in the cgroup of a cold cell, and in the host's namespace.
    seen = {os.stat("/proc/self/ns/net").st_ino}
    for pid in pids:
        with suppress(OSError):  # it has ended
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
            if namespace not in seen:
                seen.add(namespace)
                yield f"/proc/{pid}/net"


def _uncharged_in(net: str, memory_bytes: int, most: int) -> int:
    before = _count_sockets(net)
    if not before.get(b"sockets"):
        return 0
    texts = {name: _read_list(f"{net}/{name}") for name in _LISTS}
    # The smaller number: a socket closed during the reads is not unlisted.
    after = _count_sockets(net)
    counts = {name: min(count, after.get(name, 0)) for name, count in before.items()}
    streams = counts.get(b"TCP", 0) + counts.get(b"TCP6", 0)
    used, listed = netlink_bytes(texts["netlink"])
    listed += streams + max(0, texts["unix"].count(b"\n") - 1)
    used += _MULTICAST_BYTES * sum(texts[name].count(b"\n") for name in ("igmp", "igmp6"))
    received = 0
    for name in ("udp", "udp6"):
        corked, waiting = datagram_bytes(texts[name])
        used += corked
        received += waiting
        listed += max(0, texts[name].count(b"\n") - 1)
    used += max(0, received - memory_bytes)
    used += max(0, counts[b"sockets"] - listed) * _MAX_CORKED_BYTES
    # Reading these lists walks a table of the whole host: only where they can matter.
    if used <= most < used + streams * _max_received_bytes():
        texts |= {
            name: _read_list(f"{net}/{name}")
            for name in ("tcp", "tcp6")
            if counts.get(name.upper().encode())
        }
        used += sum(unaccepted_bytes(texts.get(name, b"")) for name in ("tcp", "tcp6"))
    is_cut = any(len(text) >= _MAX_LIST_BYTES for text in texts.values())
    return max(used, most + 1) if is_cut else used


def _count_sockets(net: str) -> dict[bytes, int]:
    text = _read_list(f"{net}/sockstat") + _read_list(f"{net}/sockstat6")
    return {name: int(count) for name, count in _IN_USE.findall(text)}


@functools.cache
def _max_received_bytes() -> int:
    """Of one connection: set by SO_RCVBUF, which the kernel doubles, or by auto-tuning."""
    settable, tuned = 4 * MIB, 32 * MIB
    with suppress(OSError, ValueError, IndexError):
        settable = int(_read_list("/proc/sys/net/core/rmem_max"))
        tuned = int(_read_list("/proc/sys/net/ipv4/tcp_rmem").split()[2])
    return max(2 * settable, tuned) + _CONNECTION_BYTES


def _read_list(path: str) -> bytes:
    try:
        return read_some(path, _MAX_LIST_BYTES)
    except FileNotFoundError:  # a kernel without IPv6
        return b""
