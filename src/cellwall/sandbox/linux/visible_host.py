"""The root of a cell: which parts of the host it sees, and which small files it has in their place.

A cell sees the least of the host's file system that ordinary programs need (ISO-2). `survey`
inspects the host once; everything else is plain data.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from dataclasses import dataclass

from cellwall.core.host_programs import has_program, host_program
from cellwall.core.network import NETWORK_INSIDE

# Taken out of the host's /etc, read-only, where they exist. Nothing of /root, /home, /run, /var,
# /srv, /opt, /boot or /sys is shown at all.
_ETC = (
    ("alternatives", "Debian's choice of awk, editor, java: links that /usr/bin points to"),
    ("fonts", "font configuration, for plots"),
    ("ld.so.cache", "where shared libraries are"),
    ("services", "names of ports, getservbyname"),
    ("ssl/certs", "certificate authorities; never ssl/private"),
    ("ssl/openssl.cnf", "OpenSSL refuses to start without it on some hosts"),
)
_ETC_PREFIXES = ("java-", "openjdk")  # a JVM keeps its defaults there

_USR_ALIASES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# /usr holds programs, but these parts of it are configuration of the host.
HIDDEN_BELOW_USR = ("/usr/local/etc",)

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

# Parts of a new /proc that reveal or change the host. Writable files are hidden even where the
# kernel refuses an ordinary user, since it does not refuse root (core_pattern was writable in two
# published sandboxes). Files that only root can read (slabinfo, kpagecount) are not in the list.
PROC_HIDDEN = (
    "acpi",  # hardware control
    "asound",
    "buddyinfo",  # free pages by size: what an exploit of the allocator prepares
    "bus",  # raw PCI and input devices
    "cgroups",  # how many groups there are: other cells
    "cmdline",  # boot parameters, sometimes with secrets
    "config.gz",  # which mitigations the kernel was built without
    "consoles",
    "crypto",  # which ciphers are in use, and by how many
    "devices",  # drivers
    "diskstats",  # what the host reads and writes, and when
    "driver",  # the host's clock chip
    "fs",  # state of the host's file systems
    "interrupts",  # keystroke timing
    "iomem",  # hardware and its addresses
    "ioports",
    "irq",  # interrupt routing
    "kallsyms",  # addresses for kernel exploits
    "kcore",  # the kernel's memory
    "key-users",
    "keys",  # keyrings are not namespaced
    "kmsg",  # the kernel's log
    "latency_stats",
    "locks",  # reading it blocks every file lock on the host; many locks make that long
    "mdstat",  # the host's disks
    "misc",  # drivers
    "modules",
    "partitions",  # the host's disks
    "pressure",  # how busy the host and its other cells are
    "sched_debug",  # every process of the host
    "schedstat",
    "scsi",
    "softirqs",  # as interrupts: keystrokes, packets, disks
    "swaps",  # names of the host's files
    "sysrq-trigger",  # reboots the host
    "timer_list",  # addresses and processes of the host
    "vmstat",  # as diskstats
    "zoneinfo",
)
PROC_READ_ONLY = ("sys",)
# After `sys` was made read-only: counters and identifiers of this host and its boot.
PROC_HIDDEN_BELOW_SYS = (
    "sys/dev",  # drives and RAID arrays
    "sys/fs/aio-nr",
    "sys/fs/binfmt_misc",  # the host's interpreters
    "sys/fs/dentry-state",  # files that the host's other programs use
    "sys/fs/file-nr",
    "sys/fs/inode-nr",
    "sys/fs/inode-state",
    "sys/fs/quota",
    "sys/kernel/core_pattern",  # programs that the kernel starts as root
    "sys/kernel/hotplug",
    "sys/kernel/modprobe",
    "sys/kernel/poweroff_cmd",
    "sys/kernel/pty/nr",  # terminals in use
    "sys/kernel/random/boot_id",
    "sys/kernel/tainted",
)
# Interrupts and processor time of the whole host. Node aborts if it is empty, and C libraries count
# processors in it, so a substitute is mounted over it.
PROC_STAT = "/.cellwall/stat"


def proc_stat() -> bytes:
    """Like /proc/stat, with the host's processors but without their activity."""
    times = " 0" * 10
    lines = [f"cpu {times}", *(f"cpu{number}{times}" for number in range(os.cpu_count() or 1))]
    lines += ["intr 0", "ctxt 0", f"btime {_boot_s()}", "processes 1", "procs_running 1"]
    return "\n".join([*lines, "procs_blocked 0", "softirq 0" + " 0" * 10, ""]).encode()


@functools.cache
def _boot_s() -> int:
    """Not secret: /proc/uptime shows it as well."""
    return int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


PASSWD = "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000::{home}:/bin/sh\n"  # noqa: S105  # a file's text
GROUP = "root:x:0:\nsandbox:x:1000:\n"
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nservices: files\n"

PASSWD_OF_TWO = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::{home}:/bin/sh\n"  # noqa: S105  # likewise
HOSTNAME = "cellwall"
PROGRAMS_INSIDE = "/.cellwall/bin"
"""Command names that a host may lack: Debian has no `python`, which most people and agents type."""
SEARCH_PATH = (
    "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:"
    f"{PROGRAMS_INSIDE}"
)


# Dangling in a cell without egress: libraries then ask 127.0.0.1, where nothing listens.
NETWORK_LINKS = ((f"{NETWORK_INSIDE}/resolv.conf", "/etc/resolv.conf"),)

DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
)


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The visible part of the host."""

    binds: tuple[str, ...]
    """Directories mounted whole at the same path, read-only."""
    links: tuple[tuple[str, str], ...]
    """(target, name): merged /usr, the time zone."""
    etc: tuple[str, ...]
    """Names below /etc that the cell sees."""
    foreign_python: str | None
    """Python's prefix if it is not below /usr; mounted at /opt/python."""


@functools.cache
def survey() -> HostRoot:
    """Inspect the host. Cached: a host does not change its /usr while a process lives."""
    binds = ["/usr"]
    links = []
    for name in _USR_ALIASES:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.isdir(path):
            binds.append(path)
    zone = os.path.realpath("/etc/localtime")
    if zone.startswith("/usr/share/zoneinfo/"):
        links.append((zone, "/etc/localtime"))
    etc = [name for name, _reason in _ETC if os.path.exists(f"/etc/{name}")]
    etc += [name for name in sorted(os.listdir("/etc")) if name.startswith(_ETC_PREFIXES)]
    system_python = has_program("python3")
    if system_python:
        links.append((host_program("python3"), f"{PROGRAMS_INSIDE}/python"))
    prefix = os.path.realpath(sys.base_prefix)
    foreign = None if system_python or prefix == "/usr" else prefix
    return HostRoot(tuple(binds), tuple(links), tuple(etc), foreign)
