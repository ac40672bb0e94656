"""The outer wall: bubblewrap's command line, and the shim's plan.

bubblewrap makes the namespaces and mounts the directories; `cellwall-cell init`, which it starts as
PID 1 with three capabilities over the cell's own namespaces, does the rest: it takes the few
entries a cell may see (visible_host.py) out of /etc and /dev, which are mounted aside until then,
makes the root read-only and drops all capabilities before the program starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux.plan import Plan
from cellwall.sandbox.linux.visible_host import HOSTNAME, HostRoot

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
        binds = stage_directories(plan, shown, number_of)
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


def stage_directories(
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
    stage_directories(plan, workspace_directories(mount), numbers.__getitem__)
    return plan.encode()
