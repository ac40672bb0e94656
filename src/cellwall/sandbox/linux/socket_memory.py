"""Memory of a cell's sockets that no cgroup counts, read from /proc/PID/net (LIM-6).

The kernel counts the buffers of accepted connections, received datagrams and unix sockets. It does
not count, on cgroup v1 and v2 alike:
  (1) connections that nobody has accepted, and the data in them: an interrupt makes them, which
      belongs to no process;
  (2) a datagram that is being put together (UDP_CORK, MSG_MORE);
  (3) the queues of netlink sockets;
  (4) the groups of multicast that they have joined;
  (5) error queues. A cell of Linux 6.18 has none: see `setsockopt` in seccomp.toml and
      tstamp_allow_data in networkplan.py. Before, those of datagram sockets are seen as received.
A socket that is neither bound nor connected is in no list, only in the number of all sockets: what
it may hold is taken for held. Nothing here opens a descriptor of the cell's (ISO-13).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cellwall.core.limits import KIB, MIB
from cellwall.sandbox.linux.unlinked_files import read_some

# More sockets than fit are too many: some 200,000, each of which costs the kernel kilobytes.
_MAX_LIST_BYTES = 32 * MIB
# struct tcp_sock, and what is kept with it; data comes on top.
_CONNECTION_BYTES = 4 * KIB
_MULTICAST_BYTES = 512  # of a group and its membership
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
    """From /proc/net/udp or udp6: being put together, and received and waiting."""
    found = _INTERNET_SOCKET.findall(text)
    return sum(int(each[1], 16) for each in found), sum(int(each[2], 16) for each in found)


def unaccepted_bytes(text: bytes) -> int:
    """From /proc/net/tcp or tcp6."""
    used = 0
    for state, _sent, received, inode in _INTERNET_SOCKET.findall(text):
        # Without an inode: not accepted yet, or closed by its process and still being sent. The
        # namespace itself bounds what waits for its end and what is not connected yet.
        if inode == b"0" and state not in (_LISTENING, _TIME_WAIT, *_REQUESTED):
            used += _CONNECTION_BYTES + int(received, 16)
    return used


def netlink_bytes(text: bytes) -> tuple[int, int]:
    """From /proc/net/netlink: what waits, and the number of sockets that are not the kernel's."""
    # sk Eth Pid Groups Rmem Wmem …
    lines = [fields for line in text.splitlines()[1:] if len(fields := line.split()) > 5]
    used = sum(int(fields[4]) + int(fields[5]) for fields in lines)
    return used, sum(fields[2] != b"0" for fields in lines)


def uncharged_bytes(pids: Sequence[int], *, memory_bytes: int, most: int) -> int:
    """What the sockets of these processes' namespaces hold uncounted; exact only beyond `most`.

    `memory_bytes` is the cell's limit, beyond which waiting datagrams cannot have been counted.
    """
    used = 0
    for net in _namespaces(pids):
        with suppress(OSError):  # the process has ended
            used += _look_at(net, memory_bytes, most)
    return used


def _namespaces(pids: Sequence[int]) -> Iterator[str]:
    """/proc/PID/net of one process in each network namespace that is not our own."""
    # bubblewrap's own process is in the group of a cold cell, and in the host's namespace.
    seen = {os.stat("/proc/self/ns/net").st_ino}
    for pid in pids:
        with suppress(OSError):  # it has ended
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
            if namespace not in seen:
                seen.add(namespace)
                yield f"/proc/{pid}/net"


def _look_at(net: str, memory_bytes: int, most: int) -> int:
    before = _count_sockets(net)
    if not before.get(b"sockets"):
        return 0
    texts = {name: _read_list(f"{net}/{name}") for name in _LISTS}
    # The smaller number: what was closed while we read is not unlisted.
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
    # These lists are long walks through a table of the whole host: only where it can matter.
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
    """In one connection: by SO_RCVBUF, which the kernel doubles, or by itself."""
    asked, grown = 4 * MIB, 32 * MIB
    with suppress(OSError, ValueError, IndexError):
        asked = int(_read_list("/proc/sys/net/core/rmem_max"))
        grown = int(_read_list("/proc/sys/net/ipv4/tcp_rmem").split()[2])
    return max(2 * asked, grown) + _CONNECTION_BYTES


def _read_list(path: str) -> bytes:
    try:
        return read_some(path, _MAX_LIST_BYTES)
    except FileNotFoundError:  # a kernel without IPv6
        return b""
