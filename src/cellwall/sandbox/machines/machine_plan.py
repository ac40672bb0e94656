"""Every command line and plan around a virtual machine. Pure: plain data in, words out.

Outside in: the shim's plan; bubblewrap, which holds the relay and the emulator as an unprivileged
user without a network and with no file but those named here; the emulator's devices; and, inside,
the plan of PID 1 of the machine, which starts the bubblewrap of a native cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.limits import MIB, Limits
from cellwall.sandbox.linux import outer_wall, run_cgroup
from cellwall.sandbox.linux.outer_wall import Bind, HostDirectory, OuterWall
from cellwall.sandbox.linux.outside_processes import FIRST_SENT_FD
from cellwall.sandbox.linux.plan import Plan
from cellwall.sandbox.linux.visible_host import HIDDEN_BELOW_USR, HOSTNAME, HostRoot
from cellwall.sandbox.machines.guest_image import CELL_IN_MACHINE

SHARED = "/share"
"""The root that the guest sees, in the file system of the emulator."""
WORKSPACE_SHARED = "/workspace-share"
_WORKSPACE_IN_MACHINE = "/run/workspace"
_KERNEL, _INITRAMFS = "/kernel", "/initramfs"
_EMPTY_DIRECTORIES = ("dev", "etc", "proc", "sys", "tmp", "run", "run/workspace")
_LINK_FD = 3  # as in cell/relay.c
_GROUP_MEMBERS = "/sys/fs/cgroup/cell/cgroup.procs"  # as in cell/guest.c

# Of the guest's kernel and PID 1, beside the memory of the code.
_KERNEL_BYTES = 160 * MIB
# Of the emulator: itself, the images it boots from, and translated code if it emulates.
_EMULATOR_BYTES = 256 * MIB
_TRANSLATED_MIB = 64
_EMULATOR_TASKS = 192  # the file server has up to 64 threads
_MAX_PROCESSORS = 64
_MACHINE_PROCESSES = run_cgroup.COLD_PROCESSES

# No more than one cell needs. Refused calls end the emulator.
_EMULATOR_FILTER = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@dataclass(frozen=True, slots=True)
class Emulator:
    """The program, and what differs between processors."""

    program: str
    board: str
    is_virtualized: bool
    """By /dev/kvm; else in software, which is no boundary."""
    kvm_group: int | None = None
    """The group that may open /dev/kvm, where others may not."""


# The memory of machines is never merged with equal pages of others (KSM): the time of a write would
# tell what they hold. Nor is it part of a core of the emulator.
_MEMORY = "mem-merge=off,dump-guest-core=off"

BOARDS: Mapping[str, tuple[str, str, str]] = {
    # Without what the board can leave out. Not `microvm`: without KVM's clock, Linux finds no timer
    # there, and the tests would try another board than users have.
    "x86_64": (
        "qemu-system-x86_64",
        "q35,sata=off,smbus=off,i8042=off,vmport=off,usb=off,graphics=off",
        # No machine in the machine: KVM's emulation of VMX and SVM is the part with most errors.
        ",-vmx,-svm",
    ),
    "aarch64": ("qemu-system-aarch64", "virt,gic-version=max,usb=off", ""),
}
"""Machine of the host -> emulator, board, and what its processor lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """What differs between machines."""

    emulator: Emulator
    processor_lacks: str
    outer: OuterWall
    owner: int
    """The uid of the emulator on the host, and of the code's user in the machine."""
    limits: Limits
    host_processors: int
    tools: Sequence[HostDirectory] = ()
    workspace: HostDirectory | None = None


def machine_memory_bytes(limits: Limits) -> int:
    """The memory of the machine, in whole MiB."""
    return math.ceil((limits.memory_bytes + _KERNEL_BYTES) / MIB) * MIB


def host_limits(limits: Limits) -> tuple[int, int]:
    """Memory and processes of the cgroup on the host, around everything."""
    return machine_memory_bytes(limits) + _EMULATOR_BYTES, _EMULATOR_TASKS + _processors(limits, 64)


def _processors(limits: Limits, available: int) -> int:
    return max(1, min(math.ceil(limits.cpus), available, _MAX_PROCESSORS))


def emulator_arguments(spec: MachineSpec) -> list[str]:
    """The machine: memory, processors, the shared files, and one channel of bytes."""
    emulator = spec.emulator
    cpu = ("host" if emulator.is_virtualized else "max") + spec.processor_lacks
    accelerator = "kvm" if emulator.is_virtualized else f"tcg,tb-size={_TRANSLATED_MIB}"
    words = [
        emulator.program, "-nodefaults", "-no-user-config", "-no-reboot",
        "-display", "none", "-monitor", "none", "-serial", "none", "-parallel", "none",
        "-nic", "none",
        "-sandbox", _EMULATOR_FILTER,
        "-M", f"{emulator.board},{_MEMORY}", "-accel", accelerator, "-cpu", cpu,
        "-smp", str(_processors(spec.limits, spec.host_processors)),
        "-m", f"{machine_memory_bytes(spec.limits) // MIB}M",
        "-kernel", _KERNEL, "-initrd", _INITRAMFS, "-append", _command_line(spec),
        "-device", "virtio-serial-pci,disable-legacy=on,max_ports=2",
        "-chardev", f"socket,id=link,fd={_LINK_FD}",
        "-device", "virtserialport,chardev=link,nr=1",
        "-object", "rng-random,id=random,filename=/dev/urandom",
        "-device", "virtio-rng-pci,disable-legacy=on,rng=random",
        *_share("root", SHARED, is_read_only=True),
    ]  # fmt: skip
    if spec.workspace is not None:
        words += _share("workspace", WORKSPACE_SHARED, is_read_only=spec.workspace.read_only)
    return words


def _share(name: str, path: str, *, is_read_only: bool) -> list[str]:
    """9p: the file server opens each name below `path` step by step and follows no link, with the
    rights of the emulator alone. `remap`: the mounts below it have devices of their own."""
    options = "security_model=none,multidevs=remap" + (",readonly=on" if is_read_only else "")
    return [
        "-fsdev", f"local,id={name},path={path},{options}",
        "-device", f"virtio-9p-pci,disable-legacy=on,fsdev={name},mount_tag={name}",
    ]  # fmt: skip


def _command_line(spec: MachineSpec) -> str:
    words = [
        "quiet",
        "panic=-1",
        "random.trust_cpu=on",
        "lsm=landlock",
        "cryptomgr.notests",
        f"rdinit={CELL_IN_MACHINE}",
        "--",
        "guest",
    ]
    if spec.workspace is not None:
        words.append("ro" if spec.workspace.read_only else "rw")
    return " ".join(words)


def wall_arguments(
    spec: MachineSpec,
    binds: Sequence[Bind],
    *,
    kernel_fd: int,
    initramfs_fd: int,
    filter_fd: int,
    hidden: Sequence[str],
    command: Sequence[str],
) -> list[str]:
    """bubblewrap around the relay and the emulator. `hidden`: parts of /usr that exist and that no
    cell sees."""
    root, owner = spec.outer.root, str(spec.owner)
    words = [
        spec.outer.bubblewrap,
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup",
        # The same number as outside: the file server shows owners as it sees them.
        "--uid", owner, "--gid", owner,
        "--hostname", HOSTNAME, "--as-pid-1", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", "--seccomp", str(filter_fd),
    ]  # fmt: skip
    # The emulator's own programs and firmware.
    words += _root_words(root, "")
    words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # of the emulator
    if spec.emulator.is_virtualized:
        words += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
    words += ["--ro-bind-data", str(kernel_fd), _KERNEL]
    words += ["--ro-bind-data", str(initramfs_fd), _INITRAMFS]
    # What the guest sees: not /etc, but the few names that a cell takes out of it.
    words += _root_words(root, SHARED)
    for name in root.etc:
        words += ["--ro-bind", f"/etc/{name}", f"{SHARED}/etc/{name}"]
    for path in hidden:
        words += ["--tmpfs", path, "--tmpfs", f"{SHARED}{path}"]
    for name in _EMPTY_DIRECTORIES:
        words += ["--dir", f"{SHARED}/{name}"]
    for bind in binds:
        words += ["--ro-bind" if bind.read_only else "--bind", bind.outside, bind.inside]
    return [*words, "--", *command]


def _root_words(root: HostRoot, below: str) -> list[str]:
    words: list[str] = []
    for path in root.binds:
        words += ["--ro-bind", path, f"{below}{path}"]
    for target, name in root.links:
        if "/" not in name.strip("/"):  # merged /usr
            words += ["--symlink", target, f"{below}{name}"]
    return words


def machine_shim_plan(
    spec: MachineSpec,
    group: run_cgroup.RunCgroup,
    *,
    cell_fd: int,
    kernel_fd: int,
    initramfs_fd: int,
    filter_fd: int,
    status_fd: int,
    usage_fd: int,
    plan_fds: tuple[int, int],
    given: Sequence[int],
    hidden: Sequence[str] = HIDDEN_BELOW_USR,
    number_of: Callable[[int], int] = int,
) -> bytes:
    """The steps outside. `given`: the program's descriptors, in the guest's order."""
    plan = Plan()
    if group.unified is not None:
        plan.step("cgroup2", group.unified)
    for path in group.tasks:
        plan.step("tasks", path)
    for path in group.remove:
        plan.step("remove", path)
    shown = [
        HostDirectory(each.descriptor, each.outside, f"{SHARED}{each.inside}", True, each.mapped)
        for each in spec.tools
    ]
    if spec.workspace is not None:
        shown.append(spec.workspace)
    if spec.outer.drop_to is None:
        binds = [Bind(each.outside, each.inside, each.read_only) for each in shown]
    else:
        binds = outer_wall.stage_directories(plan, shown, number_of)
        plan.step("user", spec.outer.drop_to, spec.outer.drop_to)
        if spec.emulator.kvm_group is not None:
            plan.step("group", spec.emulator.kvm_group)
    relayed = [number_of(each) for each in (status_fd, usage_fd, *plan_fds, *given)]
    read = (cell_fd, kernel_fd, initramfs_fd, filter_fd)
    cell, kernel, image, judge = map(number_of, read)
    for number in sorted({cell, kernel, image, judge, *relayed}):
        plan.step("pass", number)
    relay = [f"/proc/self/fd/{cell}", "relay", *map(str, relayed), "--", *emulator_arguments(spec)]
    command = wall_arguments(
        spec,
        binds,
        kernel_fd=kernel,
        initramfs_fd=image,
        filter_fd=judge,
        hidden=hidden,
        command=relay,
    )
    plan.step("exec", *command)
    return plan.encode()


def numbers_in_machine(inside: Sequence[int]) -> dict[int, int]:
    """The program's descriptors: number inside -> number when init starts, as cell/guest.c places
    them: the program file, init's plan and its status socket come first."""
    return {number: FIRST_SENT_FD + 3 + index for index, number in enumerate(sorted(inside))}


def guest_plan(spec: MachineSpec, inside: Sequence[int]) -> bytes:
    """The steps of PID 1 in the machine: the limits of the code, then those of a shim."""
    plan = Plan()
    plan.step("owner", spec.owner)
    for controller, file, value, required in run_cgroup.settings_v2(
        spec.limits, _MACHINE_PROCESSES
    ):
        if controller in ("memory", "pids"):  # the host limits the processor time of all
            plan.step("limit", file, value, int(required))
    plan.step("tasks", _GROUP_MEMBERS)
    plan.step("user", spec.owner, spec.owner)
    numbers = [FIRST_SENT_FD + index for index in range(3)] + list(
        numbers_in_machine(inside).values()
    )
    for number in numbers:
        plan.step("pass", number)
    cell, init_plan, status = numbers[:3]
    binds = [Bind(each.inside, each.inside, read_only=True) for each in spec.tools]
    if spec.workspace is not None:
        binds.append(Bind(_WORKSPACE_IN_MACHINE, "/workspace", spec.workspace.read_only))
    command = outer_wall.arguments(
        spec.outer.bubblewrap,
        spec.outer.root,
        binds=binds,
        layers=False,
        egress=False,
        command=(f"/proc/self/fd/{cell}", "init", str(init_plan), str(status)),
    )
    plan.step("exec", *command)
    return plan.encode()
