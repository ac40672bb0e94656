"""The description of one container for the engine: every wall that the engine builds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.limits import Limits
from cellwall.core.types import Json
from cellwall.sandbox.containers.root_image import CELL_INSIDE, FILLED_BY_INIT, JOIN_INSIDE
from cellwall.sandbox.linux import run_cgroup, visible_host
from cellwall.sandbox.linux.seccomp_rules import load_rules

JOIN_SOCKET = "line"
LABEL = "cellwall"
_TMP_INODES = 16_384
_CODE_ROOM = 64 * 1024
_PERIOD_US = 100_000
_MAX_THREADS = 16_384  # of the uid on the host; the cgroup has the limit of the run

# What init itself needs; it adds the filter of a native cell before any program starts.
_FOR_INIT = frozenset(
    {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
)
# Of gVisor's kernel, not of the host's: to mount, to become another user, and to drop them all.
_TO_CLOSE_INIT = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP")
# As in plan.py. Docker passes them on only for a network namespace of its own; a setting that an
# older kernel lacks would refuse every container.
_SYSCTLS = (
    # Docker lets containers listen on ports below 1024: there a program could pass for a resolver.
    ("net.ipv4.ip_unprivileged_port_start", "1024", (4, 11)),
    ("net.core.optmem_max", "4096", (6, 8)),
    ("net.core.tstamp_allow_data", "0", (6, 18)),
)


# The engine masks a file by /dev/null, which can be opened for writing: read-only says more.
_READ_ONLY = frozenset(
    f"/proc/{name}"
    for name in (
        "sysrq-trigger",
        "sys/kernel/core_pattern",
        "sys/kernel/hotplug",
        "sys/kernel/modprobe",
        "sys/kernel/poweroff_cmd",
    )
)


_DEVICES = tuple(f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero"))


@dataclass(frozen=True, slots=True)
class ContainerBind:
    """A directory or file of the host, visible inside."""

    outside: str
    inside: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What differs between containers."""

    image: str
    user: tuple[int, int]
    tag: str
    """Marks the state folder."""
    limits: Limits
    join_directory: str
    workspace: Sequence[ContainerBind]
    """/workspace, and the mounts that cover protected names in it; empty: a memory file system."""
    binds: Sequence[ContainerBind]
    tmp_bytes: int
    shm_bytes: int
    file_bytes: int
    """Code, skills and network files, which init writes into memory."""
    kernel: tuple[int, int]
    open_files: int
    """Above the limit of the code, for init's own descriptors."""
    closes_init: bool = False
    """gVisor's kernel shows everybody the environment and the memory map of every process. Init
    starts as root of that kernel, mounts over its own directory of /proc, and becomes `user`."""
    runtime: str = ""
    profile_path: str | None = None
    """A file with the seccomp profile, for Podman; Docker takes the profile itself."""
    own_processes: int = run_cgroup.WARM_PROCESSES
    """Processes and threads in the container's cgroup beside those of the code."""


def container_request(spec: ContainerSpec) -> dict[str, Json]:
    """The body of `POST /containers/create`."""
    limits = spec.limits
    memory = limits.memory_bytes
    host: dict[str, Json] = {
        "AutoRemove": True,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": _security_options(spec),
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Memory": memory,
        "MemorySwap": memory,  # of both together: no swap
        # Not NanoCpus, which the engine refuses above the number of its processors.
        "CpuPeriod": _PERIOD_US,
        "CpuQuota": int(limits.cpus * _PERIOD_US),
        "PidsLimit": limits.processes + spec.own_processes,
        "ShmSize": min(spec.shm_bytes, memory),
        "Tmpfs": dict(_tmpfs(spec)),
        "Mounts": [
            *map(_mount, spec.binds),
            _mount(ContainerBind(spec.join_directory, JOIN_INSIDE)),
            *map(_mount, spec.workspace),
        ],
        "MaskedPaths": list(masked_paths()),
        "ReadonlyPaths": ["/proc/sys", *sorted(_READ_ONLY), *_devices(spec)],
        "Sysctls": {name: value for name, value, since in _SYSCTLS if spec.kernel >= since},
        # Init lowers both. An engine's own default may be above what the host lets it set.
        "Ulimits": [
            {"Name": "nofile", "Soft": spec.open_files, "Hard": spec.open_files},
            {"Name": "nproc", "Soft": _MAX_THREADS, "Hard": _MAX_THREADS},
        ],
        "LogConfig": {"Type": "none"},
        "Init": False,
        "Privileged": False,
        "PublishAllPorts": False,
        "RestartPolicy": {"Name": "no"},
        # Else the engine copies the host's resolvers and search domains into the container.
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
    }
    if spec.runtime:
        host["Runtime"] = spec.runtime
    if spec.closes_init:
        host["CapAdd"] = list(_TO_CLOSE_INIT)
    return {
        "Image": spec.image,
        "Entrypoint": [CELL_INSIDE, "join", f"{JOIN_INSIDE}/{JOIN_SOCKET}"],
        "User": "0:0" if spec.closes_init else f"{spec.user[0]}:{spec.user[1]}",
        "Hostname": visible_host.HOSTNAME,
        "Env": [],
        "WorkingDir": "/",
        "Labels": {LABEL: spec.tag},
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "HostConfig": host,
    }


def _security_options(spec: ContainerSpec) -> list[Json]:
    if spec.profile_path is None:
        return ["no-new-privileges:true", f"seccomp={seccomp_profile()}"]
    # Podman ignores `MaskedPaths`.
    masks = ":".join(masked_paths())
    return ["no-new-privileges:true", f"seccomp={spec.profile_path}", f"mask={masks}"]


def _tmpfs(spec: ContainerSpec) -> Mapping[str, Json]:
    limits = spec.limits
    flags = "rw,nosuid,nodev,exec,mode=1777"
    tmp_bytes = min(spec.tmp_bytes, limits.disk_bytes)
    places: dict[str, Json] = {
        "/tmp": f"{flags},size={tmp_bytes}{_inodes(spec, _TMP_INODES)}",
        **dict.fromkeys(FILLED_BY_INIT, f"{flags},size={_CODE_ROOM + spec.file_bytes}"),
    }
    if not spec.workspace:
        size = f"size={limits.disk_bytes}{_inodes(spec, limits.file_count)}"
        places["/workspace"] = f"{flags},{size}"
    return places


def _devices(spec: ContainerSpec) -> tuple[str, ...]:
    """In a user namespace the devices are those of the host: code must not change their owners and
    times. Writing to a device needs no writable mount."""
    return () if spec.runtime else _DEVICES


def _inodes(spec: ContainerSpec, count: int) -> str:
    """Podman has no such option; the memory limit then bounds the number of files."""
    return f",nr_inodes={count}" if spec.profile_path is None else ""


def _mount(bind: ContainerBind) -> Json:
    # Not recursive: older engines make only the top mount read-only.
    options: dict[str, Json] = {"Propagation": "rprivate", "NonRecursive": True}
    return {
        "Type": "bind",
        "Source": bind.outside,
        "Target": bind.inside,
        "ReadOnly": bind.is_read_only,
        "BindOptions": options,
    }


def masked_paths() -> tuple[str, ...]:
    """All of /sys, and what a native cell hides of /proc."""
    hidden = (*visible_host.PROC_HIDDEN, *visible_host.PROC_HIDDEN_BELOW_SYS)
    masked = {f"/proc/{name}" for name in hidden} - _READ_ONLY
    return ("/sys", *visible_host.HIDDEN_BELOW_USR, *sorted(masked))


def seccomp_profile() -> str:
    """The calls that no process of the container may make, in the format of OCI engines.

    A list of refusals, since the engine's own steps run under it: the allowlist of a native cell is
    installed by init, on top of this filter. The strictest answer wins.
    """
    refused = [
        {
            "names": [name for name in group.names if name not in _FOR_INIT],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": group.errno,
        }
        for group in load_rules().deny
    ]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [e for e in refused if e["names"]]}
    return json.dumps(profile)
