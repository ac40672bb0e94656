"""Finds out how this host provides cgroups, and makes them (LIM-3).

Three ways to a group, tried in this order, decided by `choose` from plain facts:
  1. cgroup v2 with the required controllers, as root: a group below the mount;
  2. cgroup v1, as root: one group in each hierarchy, below the group of this process, so that
     limits of Cellwall itself also bind its runs;
  3. an ordinary user on a systemd host with v2: a delegated scope from the user's systemd.
None of them: the run is refused with the reason and a hint (ISO-4).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cellwall.core.errors import LayerMissing
from cellwall.core.host_programs import ProgramRefused, host_program
from cellwall.sandbox.linux.run_cgroup import ZYGOTE, RunCgroup, read_text, write_control

NEEDED = frozenset({"memory", "pids", "cpu"})
_USEFUL_V1 = ("memory", "pids", "cpu", "cpuacct", "blkio")
USEFUL_V2 = ("memory", "pids", "cpu", "io")

ACCEPT = (
    "accept weaker limits with these two lines in ~/.config/cellwall/config.toml (chmod 600): "
    "[sandbox] and dangerously_without_cgroup = true"
)
"""Sampled limits instead of enforced ones, see proc_usage.py."""

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")

Way = Literal["v2-root", "v1-root", "systemd-user", "none"]


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted hierarchy, from /proc/self/mountinfo."""

    version: Literal[1, 2]
    point: str
    root: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """The facts about a host that `choose` decides by."""

    mounts: tuple[CgroupMount, ...]
    membership: Mapping[str, str]
    """controller -> path of this process in its hierarchy; "" for v2."""
    unified_controllers: frozenset[str]
    euid: int
    user_systemd: bool
    is_writable: bool = True
    """Whether groups can be made: not in a container that mounts the host's groups read-only."""
    in_container: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The way to a group, and the directories for groups; or why there is none."""

    way: Way
    bases: Mapping[str, str]
    """controller -> directory in which groups are made."""
    reason: str = ""
    hint: str = ""


def parse_mounts(mountinfo: str) -> tuple[CgroupMount, ...]:
    """The cgroup mounts in the text of /proc/self/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 3 or rest[0] not in ("cgroup", "cgroup2"):
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if rest[0] == "cgroup2":
            mounts.append(CgroupMount(2, point, fields[3], frozenset()))
        else:
            names = frozenset(rest[2].split(",")) & set(_USEFUL_V1)
            mounts.append(CgroupMount(1, point, fields[3], names))
    return tuple(mounts)


def parse_membership(text: str) -> dict[str, str]:
    """/proc/self/cgroup as controller -> path; the unified hierarchy has the name ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for name in controllers.split(","):
            paths[name] = path
    return paths


def directory_of(mount: CgroupMount, path: str) -> str:
    """The directory of a cgroup path: the mount may itself begin deeper (in a container)."""
    top = mount.root.rstrip("/")
    # Not below the mounted root (seen from another cgroup namespace): use the mount itself.
    relative = path.removeprefix(top) if f"{path}/".startswith(f"{top}/") else ""
    return mount.point + relative.rstrip("/")


def choose(facts: CgroupFacts) -> Choice:
    """Decide. Pure, so that every kind of host can be tested on one host."""
    unified = next((mount for mount in facts.mounts if mount.version == 2), None)
    if facts.euid == 0 and facts.mounts and not facts.is_writable:
        return _no_cgroup(
            "the cgroup file system is read-only here, as in a container with default options",
            "Start the container with a writable cgroup name space of its own (docker run "
            f"--cgroupns=private with /sys/fs/cgroup mounted rw), or {ACCEPT}.",
        )
    if facts.euid == 0:
        if unified is not None and facts.unified_controllers >= NEEDED:
            names = [name for name in USEFUL_V2 if name in facts.unified_controllers]
            return Choice("v2-root", dict.fromkeys(names, unified.point))
        v1 = {
            name: directory_of(mount, facts.membership.get(name, "/"))
            for mount in facts.mounts
            if mount.version == 1
            for name in mount.controllers
        }
        if v1.keys() >= NEEDED:
            return Choice("v1-root", v1)
        lacking = ", ".join(sorted(NEEDED - v1.keys() - facts.unified_controllers))
        return _no_cgroup(
            f"the host has no cgroup controller for: {lacking}",
            "Mount cgroup v2 with the memory, pids and cpu controllers "
            f"(in a container: start it with a private, writable cgroup namespace), or {ACCEPT}.",
        )
    if unified is not None and facts.user_systemd:
        lacking = ", ".join(sorted(NEEDED - facts.unified_controllers))
        if not lacking:
            return Choice("systemd-user", {})
        return _no_cgroup(
            f"cgroup v2 has no controller here for: {lacking}; an ordinary user gets none from v1",
            f"Boot with systemd.unified_cgroup_hierarchy=1, or run as root, or {ACCEPT}.",
        )
    if facts.in_container:
        return _no_cgroup(
            "a container gives an ordinary user no cgroup of its own",
            f"Limit the container itself (docker run --memory, --pids-limit), and {ACCEPT}.",
        )
    return _no_cgroup(
        "an ordinary user gets a cgroup only from the user's own systemd, and none is running here",
        "Log in with a systemd session (`loginctl enable-linger $USER` keeps one), or run as root, "
        f"or {ACCEPT}.",
    )


def _no_cgroup(reason: str, hint: str) -> Choice:
    return Choice("none", {}, reason, hint)


def gather() -> CgroupFacts:
    """Collect the facts about this host."""
    mounts = parse_mounts(read_text("/proc/self/mountinfo"))
    unified = next((mount for mount in mounts if mount.version == 2), None)
    controllers = read_text(f"{unified.point}/cgroup.controllers") if unified else ""
    own = parse_membership(read_text("/proc/self/cgroup"))
    return CgroupFacts(
        mounts=mounts,
        membership=own,
        unified_controllers=frozenset(controllers.split()),
        is_writable=_is_writable(mounts, own),
        euid=os.geteuid(),
        user_systemd=os.path.exists(f"{runtime_directory()}/systemd/private"),
        in_container=in_container(),
    )


def in_container() -> bool:
    """Whether Docker or Podman has started this process."""
    return any(map(os.path.exists, _CONTAINER_MARKS))


def _is_writable(mounts: tuple[CgroupMount, ...], own: Mapping[str, str]) -> bool:
    """Whether every hierarchy with a required controller, or the unified one, is writable."""
    limiting = [mount for mount in mounts if mount.controllers & NEEDED]
    limiting = limiting or [mount for mount in mounts if mount.version == 2]
    places = [
        directory_of(mount, own.get(min(mount.controllers, default=""), "/")) for mount in limiting
    ]
    return all(os.access(place, os.W_OK) for place in places)


def runtime_directory() -> str:
    """The directory of the user's systemd socket; cron and sudo do not set the variable."""
    return os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"


def scope_environment() -> dict[str, str]:
    """The variables by which systemd-run finds the user's manager. No other variable is passed, and
    the shim gives bubblewrap an empty environment (ISO-3)."""
    bus = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
    environment = {"XDG_RUNTIME_DIR": runtime_directory()}
    return environment | ({"DBUS_SESSION_BUS_ADDRESS": bus} if bus else {})


def make_group(
    choice: Choice,
    name: str,
    *,
    nested: bool = False,
    note: Callable[[Iterable[str]], None] | None = None,
) -> RunCgroup:
    """A new, empty group as root. `name` is an id that passed `check_id` or that Cellwall made.

    `nested`: for a template, inside an outer group for its cells. `note` is called with the
    directories before they are made: a process killed in between leaves a record of them.
    """
    version: Literal[1, 2] = 2 if choice.way == "v2-root" else 1
    try:
        if version == 2:
            _delegate(next(iter(choice.bases.values())), choice.bases)
        directories = {}
        for controller, base in choice.bases.items():
            own = f"{base}/cellwall"
            if version == 2:
                os.makedirs(own, exist_ok=True)
                _delegate(own, choice.bases)
            directories[controller] = f"{own}/{name}"
        if note is not None:
            note(dict.fromkeys(directories.values()))
        for path in dict.fromkeys(directories.values()):
            try:
                os.mkdir(path)
            except FileNotFoundError:  # the first run on this host
                os.makedirs(path)
        if nested:
            return _nest(version, directories)
    except OSError as error:
        raise _no_group(error, version) from error
    return RunCgroup(version, directories)


def _nest(version: Literal[1, 2], outer: Mapping[str, str]) -> RunCgroup:
    if version == 2:
        _delegate(next(iter(outer.values())), outer)
    inner = {controller: f"{path}/{ZYGOTE}" for controller, path in outer.items()}
    for path in dict.fromkeys(inner.values()):
        os.mkdir(path)
    return RunCgroup(version, inner, nest=outer)


def _no_group(error: OSError, version: int) -> LayerMissing:
    hint = "Run `cellwall doctor`; the cgroup file system must be writable."
    if error.errno == errno.EBUSY and version == 2:
        # The root group of a container: unlike the host's, it cannot both contain processes and
        # limit groups below it. Cellwall does not move processes of others.
        hint = (
            "Move the container's processes into a group of their own before Cellwall starts: "
            "mkdir /sys/fs/cgroup/main && while read pid; do echo $pid > "
            "/sys/fs/cgroup/main/cgroup.procs; done < /sys/fs/cgroup/cgroup.procs"
        )
    return LayerMissing(
        "no cgroup can be made on this host",
        hint=hint,
        code="CW-LAYER-CGROUP",
        detail=str(error),
    )


def scope_command(name: str) -> list[str]:
    """systemd-run asks the user's manager for a delegated scope and then execs the shim."""
    try:
        program = host_program("systemd-run")
    except ProgramRefused as refused:
        raise LayerMissing(refused.why, hint=refused.hint, code="CW-LAYER-CGROUP") from None
    return [
        program, "--user", "--scope", "--quiet", "--collect",
        f"--unit=cellwall-{name}", "--property=Delegate=yes", "--",
    ]  # fmt: skip


def group_in_scope(shim_pid: int, *, nested: bool = False) -> RunCgroup:
    """A group below the scope into which systemd put the shim.

    A v2 group that enables controllers for its children may contain no process itself, so the shim
    moves into a leaf of its own first.
    """
    facts = gather()
    unified = next((mount for mount in facts.mounts if mount.version == 2), None)
    path = parse_membership(read_text(f"/proc/{shim_pid}/cgroup")).get("", "")
    try:
        if unified is None or "cellwall-" not in path:
            raise OSError(f"not in a scope of Cellwall: {path}")
        scope = directory_of(unified, path)
        os.mkdir(f"{scope}/shim")
        write_control(f"{scope}/shim/cgroup.procs", str(shim_pid))
        available = read_text(f"{scope}/cgroup.controllers").split()
        names = [name for name in USEFUL_V2 if name in available]
        if not set(names) >= NEEDED:
            raise OSError(f"systemd delegates only: {available}")
        _delegate(scope, dict.fromkeys(names, ""))
        os.mkdir(f"{scope}/cell")
    except OSError as error:
        raise LayerMissing(
            "the user's systemd gave no usable cgroup",
            hint="Run `cellwall doctor`; the memory, pids and cpu controllers must be delegated "
            "to user sessions.",
            code="CW-LAYER-CGROUP",
            detail=str(error),
        ) from error
    # systemd removes the scope and its contents: the outer group is not removed here.
    nest = dict.fromkeys(names, scope) if nested else None
    return RunCgroup(2, dict.fromkeys(names, f"{scope}/cell"), nest=nest, removes_nest=False)


def _delegate(directory: str, controllers: Mapping[str, str]) -> None:
    enabled = read_text(f"{directory}/cgroup.subtree_control").split()
    missing = [f"+{name}" for name in controllers if name not in enabled]
    if missing:
        write_control(f"{directory}/cgroup.subtree_control", " ".join(missing))


def block_device(st_dev: int) -> str | None:
    """`major:minor` of the whole disk behind a file system; throttles take no partitions."""
    major, minor = os.major(st_dev), os.minor(st_dev)
    node = f"/sys/dev/block/{major}:{minor}"
    if major == 0 or not os.path.exists(node):
        return None
    if os.path.exists(f"{node}/partition"):
        return read_text(f"{os.path.realpath(node)}/../dev").strip() or None
    return f"{major}:{minor}"
