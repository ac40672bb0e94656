"""The outer wall: the visible part of the host, bubblewrap's command line, and the shim's plan.

A cell sees the least of the host's file system that ordinary programs need (ISO-2). bubblewrap
makes the namespaces and mounts the directories; `cellwall-cell init`, which it starts as PID 1 with
three capabilities over the cell's own namespaces, does the rest: it takes the few entries a cell
may see out of /etc and /dev, which are mounted aside until then, makes the root read-only and drops
all capabilities before the program starts.

`survey` inspects the host once; everything else is pure.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cellwall.core.host_programs import has_program, host_program
from cellwall.core.network import NETWORK_INSIDE
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux.plan import Plan

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
UID_INSIDE = 1000
GID_INSIDE = 1000
SECOND_UID_INSIDE = 0
"""The gid has the same number."""
NOBODY_INSIDE = 65534
"""In a cell with two users: the owner of the directories in which both write, and of no process.
The owner of a directory may replace every file in it, sticky or not."""
USERNS_FD = 200
"""In the shim and in bubblewrap: the user namespace of a cell with two users. Above every
descriptor that is sent with a plan."""
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


@dataclass(frozen=True, slots=True)
class Bind:
    """One directory of the host, mounted at `inside`."""

    outside: str
    inside: str
    read_only: bool


_NAMESPACES = (
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
)

ETC_ASIDE = "/.cellwall/etc"
DEV_ASIDE = "/.cellwall/dev"


def arguments(
    bubblewrap: str,
    root: HostRoot,
    *,
    binds: Sequence[Bind],
    layers: bool,
    egress: bool,
    second_user: bool = False,
    command: Sequence[str],
) -> list[str]:
    """The command line. `layers`: init will mount an overlay; `egress`: init will make sockets;
    `second_user`: the shim has made a user namespace with two users."""
    words = [bubblewrap, *_NAMESPACES]
    words += ["--userns", str(USERNS_FD)] if second_user else ["--unshare-user"]
    words += ["--uid", str(UID_INSIDE), "--gid", str(GID_INSIDE)]
    words += ["--hostname", HOSTNAME, "--as-pid-1", "--die-with-parent", "--new-session"]
    # For init alone, over its own namespaces: mounts (SYS_ADMIN), settings and addresses of the
    # network (NET_ADMIN) and of the user namespace (SYS_RESOURCE), then dropping the bounding set
    # as well (SETPCAP).
    words += ["--cap-drop", "ALL"]
    for name in ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_RESOURCE", "CAP_SETPCAP"):
        words += ["--cap-add", name]
    if layers:
        # overlayfs accesses its layers with the capabilities of its mounter: it makes a directory
        # of mode 0 and writes in it, and copies owners and modes. All within the one mapped uid.
        for name in ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER"):
            words += ["--cap-add", name]
    if second_user:
        # To hold both identities, once, before all capabilities are dropped (cell/users.c).
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if egress:
        # Ports below 1024 on the loopback device of its own namespace.
        words += ["--cap-add", "CAP_NET_BIND_SERVICE"]
    for path in root.binds:
        words += ["--ro-bind", path, path]
    if (
        second_user
    ):  # else it is closed to all but the first: certificates, `python`, git's templates
        words += ["--dir", _LAYERS.rstrip("/")]
    words += ["--ro-bind", "/etc", ETC_ASIDE, "--dev-bind", "/dev", DEV_ASIDE, "--proc", "/proc"]
    for bind in binds:
        words += ["--ro-bind" if bind.read_only else "--bind", bind.outside, bind.inside]
    return [*words, "--", *command]


_STAGE = "/run"  # in the shim's private mount namespace, see stage_all in cell/shim.c
_LAYERS = "/.cellwall/"
_UPPER_INSIDE = f"{_LAYERS}cow"
MAX_LOWERS = 16  # as in cell/cell.h


def lower_inside(number: int) -> str:
    """Where a read-only layer is mounted for init; the topmost has the number 0."""
    return f"{_LAYERS}lower{number or ''}"


@dataclass(frozen=True, slots=True)
class SecondUser:
    """The second user of a cell, as the host knows it. Each gid has the number of the uid."""

    uid: int
    """Of its processes: unprivileged, and of this cell alone."""
    stored_uid: int
    """The owner, on the disk, of its files in a workspace; the uid of no process. One number for
    all cells, since a session may get another cell."""


@dataclass(frozen=True, slots=True)
class OuterWall:
    """The parameters of bubblewrap that do not depend on a run."""

    bubblewrap: str
    root: HostRoot
    drop_to: int | None
    """The uid and gid to become, if started as root."""
    second: SecondUser | None = None


@dataclass(frozen=True, slots=True)
class HostDirectory:
    """A directory or program of the host that the cell sees, and whether its ids are mapped."""

    descriptor: int
    outside: str
    inside: str
    read_only: bool
    mapped: bool


def workspace_directories(mount: WorkspaceMount) -> list[HostDirectory]:
    """The workspace, or its copy-on-write layers."""
    shown = []
    if mount.dir_fd is not None and mount.path is not None:
        if mount.mode is WorkspaceMode.COPY_ON_WRITE:
            assert mount.layers_fd is not None and mount.layers_path is not None  # noqa: S101, PT018  # by WorkspaceMount's meaning
            lowers = ((mount.dir_fd, mount.path), *mount.more_lowers)
            shown += [
                HostDirectory(descriptor, path, lower_inside(number), True, True)
                for number, (descriptor, path) in enumerate(lowers)
            ]
            layers = HostDirectory(mount.layers_fd, mount.layers_path, _UPPER_INSIDE, False, True)
            shown.append(layers)
        else:
            read_only = mount.mode is WorkspaceMode.READ_ONLY
            shown.append(HostDirectory(mount.dir_fd, mount.path, "/workspace", read_only, True))
    return shown


def shim_plan(
    outer: OuterWall,
    shown: Sequence[HostDirectory],
    *,
    cgroup2: str | None,
    tasks: Sequence[str],
    remove: Sequence[str],
    layers_inside: bool,
    cell_fd: int,
    plan_fd: int,
    status_fd: int,
    given: Sequence[int],
    hands_view: bool = False,
    egress_fd: int | None = None,
    number_of: Callable[[int], int] = int,
) -> bytes:
    """The steps outside the cell, up to bubblewrap's command line.

    `given` are the program's descriptors; `number_of` maps a descriptor of ours to its number in
    the shim. `layers_inside`: init, not the shim, will mount an overlay. `hands_view`: a mount of
    the merged layers is sent to the supervisor. `egress_fd`: the socket over which init sends the
    egress sockets.
    """
    plan = Plan()
    if cgroup2 is not None:
        plan.step("cgroup2", cgroup2)
    for path in tasks:
        plan.step("tasks", path)
    for path in remove:
        plan.step("remove", path)
    binds = [Bind(directory.outside, directory.inside, directory.read_only) for directory in shown]
    if outer.drop_to is not None:
        binds = _stage(plan, shown, number_of)
        plan.step("user", outer.drop_to, outer.drop_to)
    second = outer.second
    if second is not None:
        inside = UID_INSIDE, SECOND_UID_INSIDE, NOBODY_INSIDE
        plan.step("second", second.uid, second.stored_uid, *inside, USERNS_FD)
        plan.step("pass", USERNS_FD)
    cell, init_plan, status = map(number_of, (cell_fd, plan_fd, status_fd))
    if hands_view and not layers_inside:
        plan.step("view", status)
    also = given if egress_fd is None else (*given, egress_fd)
    for number in sorted({cell, init_plan, status, *map(number_of, also)}):
        plan.step("pass", number)
    command = arguments(
        outer.bubblewrap,
        outer.root,
        binds=binds,
        layers=layers_inside,
        egress=egress_fd is not None,
        second_user=second is not None,
        command=(f"/proc/self/fd/{cell}", "init", str(init_plan), str(status)),
    )
    plan.step("exec", *command)
    return plan.encode()


def _stage(
    plan: Plan, shown: Sequence[HostDirectory], number_of: Callable[[int], int]
) -> list[Bind]:
    """Directories of root are often closed to others (/root is 0700), and files made inside must
    belong to the directory's owner: so they are mounted by descriptor, with ids mapped."""
    binds = []
    for number, directory in enumerate(shown):
        layer = directory.inside.removeprefix(_LAYERS) if _is_layer(directory) else ""
        source = f"{_STAGE}/{layer or number}"
        owner = os.fstat(directory.descriptor)
        is_upper = directory.inside == _UPPER_INSIDE
        kind = "layer" if is_upper else "map" if directory.mapped else "plain"
        descriptor = number_of(directory.descriptor)
        plan.step("stage", descriptor, source, kind, owner.st_uid, owner.st_gid)
        if not layer:
            binds.append(Bind(source, directory.inside, directory.read_only))
    layers = sum(map(_is_layer, shown))
    if layers:
        plan.step("overlay", f"{_STAGE}/merged", layers - 1)
        binds.append(Bind(f"{_STAGE}/merged", "/workspace", read_only=False))
    return binds


def _is_layer(directory: HostDirectory) -> bool:
    return directory.inside == _UPPER_INSIDE or directory.inside.startswith(lower_inside(0))


def tree_plan(uid: int, mount: WorkspaceMount, first: int) -> bytes:
    """For a template's shim: makes the mount that a cell attaches as its workspace."""
    plan = Plan()
    plan.step("user", uid, uid)
    numbers = {
        directory.descriptor: first + n for n, directory in enumerate(workspace_directories(mount))
    }
    _stage(plan, workspace_directories(mount), numbers.__getitem__)
    return plan.encode()
