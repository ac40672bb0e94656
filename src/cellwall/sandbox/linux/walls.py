"""The walls inside a cell that only take rights away: rlimits, Landlock and the filter of calls.

Init carries these steps out last, when nothing is left to mount. Pure.
"""

from __future__ import annotations

import functools
import resource
from dataclasses import dataclass

from cellwall.core.files import SECOND_HOME
from cellwall.core.limits import Limits
from cellwall.sandbox.linux.outer_wall import OuterWall
from cellwall.sandbox.linux.plan import Plan, landlock_ruleset
from cellwall.sandbox.linux.visible_host import DEVICES

# Above the limit, so that a program can open one descriptor too many and the filter reports its
# use; otherwise the kernel would refuse silently and the limit could not be named (LIM-2).
_DESCRIPTOR_ROOM = 64
_TASK_ROOM = 16
_CPU_FACTOR = 1.5
_DATA_FACTOR = 2
_LOCKED_BYTES = 8 * 1024 * 1024
# POSIX timers included. The kernel counts them per uid, which cells of a template share, and per
# user namespace, which they do not: this is the share of one cell.
_PENDING_SIGNALS = 8192
# No core is that short, so none is written. Not 0: the kernel would still start the host's core
# collector (systemd-coredump, apport), as root, on memory that code controls (CVE-2025-4598,
# CVE-2025-5054). With 1 it does not, see core(5); the filter keeps it at 1.
CORE_BYTES = 1
_WRITABLE = ("/workspace", "/tmp", "/dev/shm")
_DEVICES = (*DEVICES, "/dev/pts", "/dev/ptmx")


@dataclass(frozen=True, slots=True)
class Walls:
    """The layers for this host and configuration."""

    outer: OuterWall
    landlock_abi: int
    """0: not enforced, only with `dangerously_without_landlock`."""
    seccomp_filter: bytes
    cgroup: bool
    """False: rlimits alone, only with `dangerously_without_cgroup`."""
    tmp_bytes: int
    shm_bytes: int
    reports_sockets: bool = False
    """Init learns of every socket before it is made. The network namespace of a cell that has made
    none may be handed on (cell/networks.c)."""
    in_machine: bool = False
    """The cell is in a virtual machine, whose kernel numbers devices and inodes itself."""
    is_gvisor: bool = False
    """gVisor's kernel has no notifications of a filter, so that the limit of open files is a
    refusal that the program sees and no outcome names; it has no rlimits but the usual; and
    everybody may read what its /proc says of a process."""


def plan_inner_walls(plan: Plan, walls: Walls, limits: Limits) -> None:
    """The steps that only remove privileges; the filter comes last."""
    _plan_rlimits(plan, walls, limits)
    plan.step("drop")
    if walls.landlock_abi:
        homes = () if walls.outer.second is None else (SECOND_HOME,)
        plan.add(_landlock_steps(walls.landlock_abi, homes))
    plan.step("seccomp", int(not walls.is_gvisor), len(walls.seccomp_filter))
    plan.blob(walls.seccomp_filter)


@functools.cache
def _landlock_steps(abi: int, homes: tuple[str, ...]) -> bytes:
    plan = Plan()
    rules = landlock_ruleset(abi, writable=(*_WRITABLE, *homes), devices=_DEVICES)
    plan.step("landlock", rules.handled, rules.scoped)
    for path, access in rules.rules:
        plan.step("allow", path, access)
    plan.step("enforce")
    return plan.joined()


def _plan_rlimits(plan: Plan, walls: Walls, limits: Limits) -> None:
    rlimits = {
        resource.RLIMIT_CORE: CORE_BYTES,
        resource.RLIMIT_NOFILE: limits.open_files + (0 if walls.is_gvisor else _DESCRIPTOR_ROOM),
        resource.RLIMIT_FSIZE: limits.file_size_bytes + 1,  # see has_file_of in cell/watch.c
        # Per process, should the monitor be late; the monitor checks the sum. With room: the kernel
        # counts by ticks here, more than was used on a busy host, and its SIGKILL names no limit.
        resource.RLIMIT_CPU: int(limits.cpu_s * _CPU_FACTOR) + 2,
        resource.RLIMIT_MEMLOCK: _LOCKED_BYTES,
    }
    if walls.is_gvisor:
        # The engine's cgroup counts threads of gVisor, of which one process needs one or several,
        # by version and platform. The kernel inside counts init as well. It refuses in silence:
        # with room above the limit, init sees that there are too many, and names it (LIM-2).
        plan.step("tasks", limits.processes + 1)
        rlimits[resource.RLIMIT_NPROC] = limits.processes + 1 + _TASK_ROOM
    else:
        users = 1 if walls.outer.second is None else 2  # the kernel counts them per uid
        rlimits[resource.RLIMIT_SIGPENDING] = _PENDING_SIGNALS // users
        rlimits[resource.RLIMIT_RTPRIO] = rlimits[resource.RLIMIT_NICE] = 0
    if not walls.cgroup:
        # Samples come too late for fast allocations, see proc_usage.py. Not RLIMIT_AS: V8, Go
        # and the JVM reserve far more addresses than they use.
        rlimits[resource.RLIMIT_DATA] = _DATA_FACTOR * limits.memory_bytes
        rlimits[resource.RLIMIT_NPROC] = limits.processes + 1
    for number, value in rlimits.items():
        plan.step("rlimit", number, value)
