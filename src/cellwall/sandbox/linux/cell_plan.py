"""Writes the plans of cells: the steps inside. Pure: plain data in, bytes out."""

from __future__ import annotations

import functools
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.core.files import SECOND_HOME
from cellwall.core.limits import Limits
from cellwall.core.network import NETWORK_INSIDE
from cellwall.core.skills import SKILLS_INSIDE, Skill
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.files.descriptors import identity_of
from cellwall.sandbox.linux import outer_wall, visible_host
from cellwall.sandbox.linux.outer_wall import lower_inside
from cellwall.sandbox.linux.plan import (
    EgressPlan,
    Plan,
    kept_network_steps,
    network_steps,
    plan_egress,
    user_steps,
)
from cellwall.sandbox.linux.skill_plan import plan_skills
from cellwall.sandbox.linux.walls import CORE_BYTES, Walls, plan_inner_walls

_TMP_INODES = 16_384
_SHM_INODES = 1024
# The kernel has one number of pseudo-terminals for the whole host (kernel.pty.max) and charges them
# to no cgroup; an instance without `max` may take them all (LIM-6).
_MAX_TERMINALS = 64
_DEVPTS_OPTIONS = f"newinstance,ptmxmode=0666,mode=620,max={_MAX_TERMINALS}"
_ROOT_DIRS = (
    "/dev",
    "/dev/pts",
    "/dev/shm",
    "/etc",
    "/etc/ssl",
    "/tmp",
    "/code",
    SKILLS_INSIDE,
    "/.cellwall/empty",
    visible_host.PROGRAMS_INSIDE,
    NETWORK_INSIDE,
    "/.cellwall/__pycache__",
)

PASSWD_WITHOUT_HOME = "/.cellwall/passwd"  # noqa: S105  # a file's name
_HIDDEN_OF_INIT = ("fd", "fdinfo", "map_files", "task")
_CODE_ROOM = 64 * 1024
_INOTIFY_INSTANCES = 16
_TEMPLATE_TMP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The program, limits and contents of one cell."""

    limits: Limits
    mount: WorkspaceMount
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    descriptors: Mapping[int, int] = field(default_factory=dict)
    """number inside -> number in the cell, for the program."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """path inside -> content."""
    is_once: bool = True
    """The cell ends with its program; otherwise it stays alive and starts programs on request."""
    cwd: str = "/workspace"
    skills: Sequence[Skill] = ()
    egress: EgressPlan | None = None
    as_second: bool = False
    """The program runs as the second user."""


def _has_layers_inside(walls: Walls, job: Job) -> bool:
    return job.mount.mode is WorkspaceMode.COPY_ON_WRITE and walls.outer.drop_to is None


def init_plan(walls: Walls, job: Job) -> bytes:
    """The steps inside a cold cell, carried out by cell/build.c; the filter comes last."""
    plan = Plan()
    plan.add(_root_steps(walls.outer.root))
    plan.files(job.files)
    _plan_mounts(plan, walls, job)
    plan_skills(plan, job.skills)
    plan.add(user_steps())
    plan.add(network_steps())
    plan_egress(plan, job.egress, homes=homes(job.mount))
    plan.add(_cover_steps())
    if walls.outer.second is not None:
        _plan_second_user(plan)
    plan_life(plan, job)
    plan_inner_walls(plan, walls, job.limits)
    return plan.encode()


def _plan_second_user(plan: Plan) -> None:
    """The last steps that need a capability. /proc gives the files of init, which no process may
    trace, to uid 0 of the cell: they become read-only (beside Landlock), and those go of which the
    kernel shows the owner something without asking whether it may trace."""
    plan.step("cover", "ro", "/proc/1")
    for name in _HIDDEN_OF_INIT:
        plan.step("cover", "hide", f"/proc/1/{name}")
    plan.step("handed", outer_wall.USERNS_FD)
    plan.step("both", outer_wall.SECOND_UID_INSIDE, outer_wall.SECOND_UID_INSIDE)


def template_plan(walls: Walls, job: Job, *, zygote_filter: bytes) -> bytes:
    """The steps inside a template: a root for all its cells, in which no untrusted code runs.

    /proc stays uncovered, since the kernel refuses a new procfs mount to a process that does not
    see a complete one; there is no Landlock, since it forbids all mounts. Each cell adds both.
    """
    plan = Plan()
    plan.add(_root_steps(walls.outer.root))
    plan.step("dir", "/workspace")
    plan.files(job.files)
    plan.step("seal", "/")
    # For files that imports write; each cell mounts its own over it.
    plan.step("tmpfs", "/tmp", f"size={_TEMPLATE_TMP_BYTES},nr_inodes={_SHM_INODES},mode=1777")
    plan_life(plan, job)
    if not job.argv:
        plan.step("zygote")
    # Only limits that all cells share: a lowered limit cannot be raised again inside.
    plan.step("rlimit", resource.RLIMIT_CORE, CORE_BYTES)
    plan.step("drop")
    plan.step("seccomp", 0, len(zygote_filter))
    plan.blob(zygote_filter)
    return plan.encode()


def warm_plan(
    walls: Walls, job: Job, *, joins: Sequence[int], tree: int | None, is_interpreter: bool
) -> bytes:
    """The steps inside a cell that a template forks: it builds the same walls itself.

    `joins` and `tree` are the numbers of the cgroup files and of the workspace's mount.
    """
    plan = Plan()
    if walls.reports_sockets:
        plan.add(kept_network_steps())
    plan.step("ids", outer_wall.UID_INSIDE, outer_wall.GID_INSIDE)
    for number in joins:
        plan.step("join", number)
    plan.step("namespaces")
    if not walls.reports_sockets:
        plan.step("loopback")
    plan.step("proc")
    plan.step("share", "/proc/sys/user/max_inotify_instances", _INOTIFY_INSTANCES)
    _plan_memory(plan, walls, job.limits)
    mount = job.mount
    if tree is not None:
        plan.step("tree", tree, "/workspace")
        if mount.mode is WorkspaceMode.READ_ONLY:
            plan.step("seal", "/workspace")
    else:
        plan.step("tmpfs", "/workspace", _workspace_options(job.limits))
    if not mount.home:
        plan.step("same", PASSWD_WITHOUT_HOME, "/etc/passwd")
    if job.files:
        plan.step("tmpfs", "/code", f"size={_CODE_ROOM + sum(map(len, job.files.values()))}")
        plan.files(job.files)
    plan_skills(plan, job.skills)
    plan.add(user_steps())
    if not walls.reports_sockets:
        plan.add(network_steps())
    plan_egress(plan, job.egress, homes=homes(job.mount))
    plan_watch(plan, job.limits, mount)
    plan.add(_cover_steps())
    if is_interpreter:
        plan.step("interpreter")
    plan_life(plan, job)
    plan_inner_walls(plan, walls, job.limits)
    return plan.encode()


def homes(mount: WorkspaceMount) -> tuple[str, ...]:
    """The folders in which programs look for their settings and caches. Nothing is ever put into a
    user's directory."""
    return ("/tmp", "/workspace") if mount.home else ("/tmp",)


def plan_life(plan: Plan, job: Job) -> None:
    """The program, its variables and its descriptors."""
    # Before the filter: init moves these descriptors, whose numbers may be high, to low ones.
    for name, value in job.env.items():
        plan.step("env", f"{name}={value}")
    plan.step("cwd", job.cwd)
    if job.as_second:
        plan.step("as-second")
    if job.is_once:
        plan.step("once")
    for inside, descriptor in job.descriptors.items():
        plan.step("give", descriptor, inside)
    for word in job.argv:
        plan.step("arg", word)


def task_plan(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str,
    terminal: tuple[int, int] | None,
    as_second: bool = False,
) -> bytes:
    """A program to start in a live cell."""
    plan = Plan()
    if as_second:
        plan.step("as-second")
    for name, value in env.items():
        plan.step("env", f"{name}={value}")
    plan.step("cwd", cwd)
    if terminal is not None:
        plan.step("terminal", *terminal)
    for word in argv:
        plan.step("arg", word)
    return plan.encode()


@functools.cache
def _root_steps(root: visible_host.HostRoot) -> bytes:
    """The root's own entries, then those taken out of /etc and /dev; the same for every cell."""
    plan = Plan()
    for path in _ROOT_DIRS:
        plan.step("dir", path)
    for target, name in (*root.links, *visible_host.DEVICE_LINKS, *visible_host.NETWORK_LINKS):
        plan.step("link", target, name)
    for name in root.etc:
        plan.step("take", "ro", f"{outer_wall.ETC_ASIDE}/{name}", f"/etc/{name}")
    for device in visible_host.DEVICES:
        plan.step("take", "dev", f"{outer_wall.DEV_ASIDE}/{device.removeprefix('/dev/')}", device)
    plan.step("leave", outer_wall.ETC_ASIDE)
    plan.step("leave", outer_wall.DEV_ASIDE)
    return plan.joined()


def _plan_mounts(plan: Plan, walls: Walls, job: Job) -> None:
    mount = job.mount
    if mount.dir_fd is None or _has_layers_inside(walls, job):
        plan.step("dir", "/workspace")  # otherwise bubblewrap has mounted it
    in_memory = mount.own_path is not None and mount.own_path.startswith("/tmp/")
    if mount.own_path is not None and not in_memory:
        plan.step("path", mount.own_path)
    if walls.outer.second is not None:
        plan.step("dir", SECOND_HOME)
    plan.step("seal", "/")
    _plan_memory(plan, walls, job.limits)
    if walls.outer.second is not None:
        _plan_second_home(plan, walls, job.limits)
    if mount.own_path is not None and in_memory:
        plan.step("path", mount.own_path)
    if mount.dir_fd is None:
        plan.step("tmpfs", "/workspace", _workspace_options(job.limits))
    elif _has_layers_inside(walls, job):
        lowers = [mount.dir_fd, *(descriptor for descriptor, _ in mount.more_lowers)]
        for number, descriptor in enumerate(lowers):
            plan.step("expect", lower_inside(number), *identity_of(descriptor))
        plan.step("overlay", "/.cellwall", "/workspace", len(lowers))
        if not job.is_once:
            plan.step("view", "/workspace")  # before any cover is mounted over it
    elif mount.mode is not WorkspaceMode.COPY_ON_WRITE and not walls.in_machine:
        plan.step("expect", "/workspace", *identity_of(mount.dir_fd))
    plan_watch(plan, job.limits, mount)


def _plan_memory(plan: Plan, walls: Walls, limits: Limits) -> None:
    tmp_bytes = min(walls.tmp_bytes, limits.disk_bytes)
    has_two = walls.outer.second is not None
    nobody = f",uid={outer_wall.NOBODY_INSIDE},gid={outer_wall.NOBODY_INSIDE}" if has_two else ""
    plan.step("tmpfs", "/tmp", f"size={tmp_bytes},nr_inodes={_TMP_INODES},mode=1777{nobody}")
    shm_bytes = min(walls.shm_bytes, limits.memory_bytes)
    plan.step("tmpfs", "/dev/shm", f"size={shm_bytes},nr_inodes={_SHM_INODES},mode=1777{nobody}")
    plan.step("devpts", "/dev/pts", _DEVPTS_OPTIONS)


def _plan_second_home(plan: Plan, walls: Walls, limits: Limits) -> None:
    owner = outer_wall.SECOND_UID_INSIDE
    size = min(walls.tmp_bytes, limits.disk_bytes)
    options = f"size={size},nr_inodes={_TMP_INODES},mode=0700,uid={owner},gid={owner}"
    plan.step("tmpfs", SECOND_HOME, options)
    plan.step("watch", SECOND_HOME)


def _workspace_options(limits: Limits) -> str:
    return f"size={limits.disk_bytes},nr_inodes={limits.file_count},mode=0755"


def plan_watch(plan: Plan, limits: Limits, mount: WorkspaceMount) -> None:
    """Covers over protected names, and the mounts that init checks while a program runs."""
    watched = ["/tmp", "/dev/shm"] + ([] if mount.dir_fd is not None else ["/workspace"])
    if mount.covers:
        plan.step("workspace", "/workspace")
        for treatment, path in mount.covers:
            plan.step("protect", treatment, path)
    if mount.own_path is not None:
        # Last, with all covers; Landlock's rule for /workspace applies to the directory itself,
        # whatever path leads to it.
        plan.step("mirror", "/workspace", mount.own_path)
    for path in watched:
        plan.step("watch", path)
    if mount.dir_fd is not None:
        plan.step("search", "/workspace")
    plan.step("file-size", limits.file_size_bytes)
    plan.step("open-files", limits.open_files)


@functools.cache
def _cover_steps() -> bytes:
    plan = Plan()
    for path in visible_host.HIDDEN_BELOW_USR:
        plan.step("cover", "hide", path)
    for name in visible_host.PROC_HIDDEN:
        plan.step("cover", "hide", f"/proc/{name}")
    for name in visible_host.PROC_READ_ONLY:
        plan.step("cover", "ro", f"/proc/{name}")
    for name in visible_host.PROC_HIDDEN_BELOW_SYS:
        plan.step("cover", "hide", f"/proc/{name}")
    plan.step("same", visible_host.PROC_STAT, "/proc/stat")
    return plan.joined()
