"""What a virtual machine is started with, which hosts are refused, and what the machine boots."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

import cellwall
from cellwall.core.errors import LayerMissing
from cellwall.core.limits import GIB, MIB, Limits
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox import doctor
from cellwall.sandbox.linux import seccomp
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.outer_wall import HostDirectory, OuterWall
from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.run_cgroup import RunCgroup
from cellwall.sandbox.linux.visible_host import HostRoot
from cellwall.sandbox.machines import guest_image, machine_path, machine_plan
from cellwall.sandbox.machines.guest_usage import GuestMeter
from cellwall.sandbox.machines.machine_plan import Emulator, MachineSpec
from cellwall.sandbox.machines.machine_walls import MachineFacts, judge_machine
from conftest import need

pytestmark = pytest.mark.requirement("ISO-11")

SETTINGS = NativeSettings(
    uid_base=1_900_000_000,
    tmp_bytes=1 << 20,
    shm_bytes=1 << 20,
    max_result_bytes=1 << 20,
    backend="kvm",
)
FACTS = MachineFacts(
    machine="x86_64",
    emulator="/usr/bin/qemu-system-x86_64",
    emulator_problem=None,
    is_root=True,
    may_open_kvm=True,
    kvm_mode=0o660,
    kvm_group=104,
    has_processor_flags=True,
)
ROOT = HostRoot(
    ("/usr",), (("usr/bin", "/bin"), ("/usr/share/x", "/etc/localtime")), ("fonts",), None
)
SPEC = MachineSpec(
    emulator=Emulator("/usr/bin/qemu", "q35", is_virtualized=True, kvm_group=104),
    processor_lacks=",-vmx,-svm",
    outer=OuterWall("/usr/bin/bwrap", ROOT, None),
    owner=1234,
    limits=Limits(memory_bytes=64 * MIB, cpus=1.5, processes=20),
    host_processors=8,
)
WORKSPACE = HostDirectory(
    9, "/state/w", machine_plan.WORKSPACE_SHARED, read_only=False, mapped=True
)


def words_of(spec: MachineSpec) -> list[str]:
    plan = machine_plan.machine_shim_plan(
        spec, RunCgroup(2, {"memory": "/g"}), cell_fd=64, kernel_fd=65, initramfs_fd=66,
        filter_fd=67, status_fd=68, usage_fd=69, plan_fds=(70, 71), given=(72, 73, 74),
    )  # fmt: skip
    return plan.decode().split("\0")


@pytest.mark.requirement("ISO-4", "ISO-12")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kvm_mode": None}, "CW-LAYER-KVM"),
        ({"has_processor_flags": False}, "CW-LAYER-KVM"),
        ({"kvm_mode": 0o600}, "CW-LAYER-KVM"),
        ({"kvm_group": 0}, "CW-LAYER-KVM"),  # never a member of root's group
        ({"is_root": False, "may_open_kvm": False}, "CW-LAYER-KVM"),
        ({"emulator": None}, "CW-LAYER-QEMU"),
        ({"machine": "riscv64"}, "CW-LAYER-KVM"),
    ],
)
def test_a_host_that_cannot_run_machines_is_refused_with_a_hint(
    change: dict[str, object], code: str
) -> None:
    with pytest.raises(LayerMissing) as refused:
        judge_machine(SETTINGS, replace(FACTS, **change))  # type: ignore[arg-type]  # its fields
    assert (refused.value.code, bool(refused.value.hint)) == (code, True)


def test_the_emulator_gets_the_group_of_kvm_and_no_other() -> None:
    assert judge_machine(SETTINGS, FACTS).kvm_group == 104
    assert judge_machine(SETTINGS, replace(FACTS, kvm_mode=0o666)).kvm_group is None
    assert judge_machine(SETTINGS, replace(FACTS, is_root=False)).kvm_group is None


@pytest.mark.requirement("ISO-4")
def test_a_machine_is_emulated_only_by_a_dangerous_setting() -> None:
    without = replace(FACTS, kvm_mode=None)
    with pytest.raises(LayerMissing):
        judge_machine(SETTINGS, without)
    accepted = replace(SETTINGS, dangerously_emulate_machines=True)
    emulator = judge_machine(accepted, without)
    assert not emulator.is_virtualized
    words = machine_plan.emulator_arguments(replace(SPEC, emulator=emulator))
    assert words[words.index("-accel") + 1].startswith("tcg")
    # The control: the usual machine is accelerated, and QEMU falls back to nothing else.
    words = machine_plan.emulator_arguments(SPEC)
    assert words[words.index("-accel") + 1] == "kvm"
    assert words.count("-accel") == 1


@pytest.mark.requirement("ISO-4", "ISO-11", "ISO-12")
def test_a_run_is_refused_where_there_is_no_kvm_and_doctor_says_the_same(tmp_path: Path) -> None:
    need(not os.path.exists("/dev/kvm"), "no /dev/kvm")
    file = tmp_path / "config.toml"
    file.write_text('[sandbox]\nbackend = "kvm"\n')
    file.chmod(0o600)
    refusal = cellwall.run_command("true", config=str(file)).refusal
    assert refusal is not None
    assert refusal.code in ("CW-LAYER-KVM", "CW-LAYER-QEMU")
    (check,) = [
        each
        for each in doctor.judge(doctor.gather(weakened=(), settings=SETTINGS)).checks
        if each.name == "backend kvm"
    ]
    assert (check.status, check.found, check.hint) == ("missing", refusal.message, refusal.hint)


@pytest.mark.requirement("NET-1", "ISO-2")
def test_the_wall_around_the_emulator_shows_what_a_cell_sees_and_no_network() -> None:
    words = words_of(SPEC)
    assert words[words.index("exec") + 1] == "/usr/bin/bwrap"
    for name in ("user", "ipc", "pid", "net", "uts", "cgroup"):
        assert f"--unshare-{name}" in words
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert "--cap-add" not in words
    assert words[words.index("--seccomp") + 1] == "67"
    binds = [
        (words[at], words[at + 1], words[at + 2])
        for at, word in enumerate(words)
        if word in ("--bind", "--dev-bind", "--ro-bind")
    ]
    assert binds == [
        ("--ro-bind", "/usr", "/usr"),
        ("--dev-bind", "/dev/kvm", "/dev/kvm"),
        ("--ro-bind", "/usr", "/share/usr"),
        ("--ro-bind", "/etc/fonts", "/share/etc/fonts"),
    ]
    assert words[words.index("-nic") + 1] == "none"
    assert "-nodefaults" in words
    assert "-no-user-config" in words
    shares = [words[at + 1] for at, word in enumerate(words) if word == "-fsdev"]
    assert shares == ["local,id=root,path=/share,security_model=none,multidevs=remap,readonly=on"]
    # Emulated, there is no /dev/kvm; with a workspace, there is one more share.
    emulated = replace(SPEC, emulator=replace(SPEC.emulator, is_virtualized=False))
    assert "/dev/kvm" not in words_of(emulated)
    words = words_of(replace(SPEC, workspace=WORKSPACE))
    assert words[words.index("--bind") + 1 : words.index("--bind") + 3] == [
        "/state/w", "/workspace-share",
    ]  # fmt: skip
    assert "local,id=workspace,path=/workspace-share,security_model=none,multidevs=remap" in words


@pytest.mark.requirement("LIM-2", "LIM-6")
def test_the_machine_is_bounded_outside_and_the_code_inside() -> None:
    words = machine_plan.emulator_arguments(SPEC)
    assert (words[words.index("-m") + 1], words[words.index("-smp") + 1]) == ("224M", "2")
    memory, tasks = machine_plan.host_limits(SPEC.limits)
    assert (memory, tasks < 1000) == (480 * MIB, True)
    inside = machine_plan.guest_plan(SPEC, (0, 1, 2)).decode().rstrip("\0").split("\0")
    assert inside[:2] == ["owner", "1234"]
    assert inside[2:6] == ["limit", "memory.max", str(64 * MIB), "1"]
    at = inside.index("pids.max")
    assert inside[at - 1 : at + 3] == ["limit", "pids.max", "22", "1"]
    assert inside[inside.index("user") : inside.index("user") + 3] == ["user", "1234", "1234"]
    assert inside[-5:] == ["--", "/proc/self/fd/64", "init", "65", "66"]
    assert machine_plan.numbers_in_machine((0, 1, 2)) == {0: 67, 1: 68, 2: 69}


def test_usage_of_the_guest_is_bounded_and_that_of_the_host_is_added(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    descriptor = memory_file("usage", (2_500_000).to_bytes(8, "little") + b"\xff" * 32)
    try:
        meter = GuestMeter(RunCgroup(2, {"memory": str(tmp_path)}), descriptor)
        counters = meter.counters()
        assert (counters.cpu_s, counters.out_of_memory) == (2.5, (1 << 62) + 1)
        assert counters.memory_peak == 1 << 62
    finally:
        os.close(descriptor)


def test_no_counter_of_the_guest_falls_and_none_exceeds_what_the_host_gave(tmp_path: Path) -> None:
    """Else a kernel that was taken over would change what its account is charged for other runs."""
    (tmp_path / "cpu.stat").write_text("usage_usec 4000000\n")
    descriptor = memory_file("usage", bytes(40))
    meter = GuestMeter(RunCgroup(2, {"memory": str(tmp_path)}), descriptor)

    def seen(cpu_us: int, memory_now: int) -> tuple[float | None, int | None, int | None]:
        os.pwrite(descriptor, struct.pack("=5Q", cpu_us, 9, memory_now, 0, 0), 0)
        return meter.counters().cpu_s, meter.memory_bytes(), meter.counters().memory_peak

    try:
        assert seen(2_000_000, 7) == (2.0, 7, 9)  # the control: an honest kernel
        assert seen(3_000_000, 5) == (3.0, 5, 9)
        assert seen(0, 5) == (3.0, 5, 9)
        assert seen(1 << 63, 5) == (4.0, 5, 9)
        assert meter.cpu_s() == 4.0
    finally:
        os.close(descriptor)


@pytest.mark.requirement("ISO-1", "ISO-7")
def test_machines_share_no_pages_and_offer_no_machine_inside() -> None:
    for is_virtualized, cpu in ((True, "host,-vmx,-svm"), (False, "max,-vmx,-svm")):
        emulator = replace(SPEC.emulator, is_virtualized=is_virtualized)
        words = machine_plan.emulator_arguments(replace(SPEC, emulator=emulator))
        board = words[words.index("-M") + 1].split(",")
        assert {"q35", "mem-merge=off", "dump-guest-core=off"} <= set(board)
        assert words[words.index("-cpu") + 1] == cpu


def test_the_emulator_does_not_see_what_a_cell_does_not_see() -> None:
    plan = machine_plan.wall_arguments(
        SPEC,
        (),
        kernel_fd=1,
        initramfs_fd=2,
        filter_fd=3,
        hidden=("/usr/local/etc",),
        command=("x",),
    )
    covers = [plan[at + 1] for at, word in enumerate(plan) if word == "--tmpfs"]
    assert covers == ["/tmp", "/usr/local/etc", "/share/usr/local/etc"]


@pytest.mark.requirement("ISO-4", "NET-1", "FS-1")
def test_egress_and_directories_are_refused_instead_of_left_out(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[sandbox]\nbackend = "kvm"\n')
    file.chmod(0o600)
    given = tmp_path / "project"
    given.mkdir()
    for fields, code in (
        ({"allow_domains": ("api.example.com",)}, "CW-BACKEND-EGRESS"),
        ({"workspace": f"{given}:ro"}, "CW-BACKEND-WORKSPACE"),
    ):
        refusal = cellwall.run_command("true", config=str(file), **fields).refusal
        assert refusal is not None
        assert (refusal.code, bool(refusal.hint)) == (code, True)
    # The control: a private workspace passes this check, and is refused only by the host, if at all.
    machine_path._check(None, WorkspaceMount(mode=WorkspaceMode.PRIVATE))


TRY = """
import ctypes, os, resource, sys
found = []
def tries(name, deed):
    try: deed()
    except OSError as error: found.append((name, error.errno)); return
    found.append((name, 0))
os.chdir(sys.argv[1])
def unshare():
    calls = ctypes.CDLL(None, use_errno=True)
    if calls.unshare(0x10000000) != 0: raise OSError(ctypes.get_errno(), "")
calls = ctypes.CDLL(None, use_errno=True)
def fails(answer):
    if answer != 0: raise OSError(ctypes.get_errno(), "")
file = open("plain", "w")
tries("whiteout", lambda: fails(calls.renameat2(-100, b"gone", -100, b"there", 4)))
tries("fallocate", lambda: fails(calls.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(4096))))
resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
found.append(("core", resource.getrlimit(resource.RLIMIT_CORE)[1]))
tries("files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
tries("terminal", lambda: fails(calls.ioctl(0, 0x5412, b"x")))
tries("chmod", lambda: os.chmod("plain", 0o4755))
tries("open", lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, 0o2755)))
tries("mkdir", lambda: os.mkdir("dir", 0o2777))
tries("device", lambda: os.mknod("device", 0o020666, 0))
tries("namespace", unshare)
tries("usual", lambda: os.chmod("plain", 0o755))
print(found)
"""


@pytest.mark.requirement("ISO-1", "FS-1")
def test_the_filter_around_the_emulator_makes_no_set_id_file_and_no_device(tmp_path: Path) -> None:
    """A kernel inside that has been taken over asks the file server of the emulator for both. And
    an emulator that was taken over cannot do what no limit counts."""
    bubblewrap = HostLayers.detect().bubblewrap
    need(bubblewrap, "bubblewrap")
    assert bubblewrap is not None
    filter_fd = memory_file("filter", seccomp.build_around_emulator(seccomp.host_arch()))
    command = [
        bubblewrap, "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink",
        "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--bind", str(tmp_path), "/w",
        "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip
    inner = [
        "--",
        "/usr/bin/python3",
        "-I",
        "-S",
        "-c",
        TRY,
        "/w",
    ]

    def found(*extra: str) -> dict[str, int]:
        done = subprocess.run(
            [*command, *extra, *inner], capture_output=True, text=True, pass_fds=[filter_fd],
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(eval(done.stdout))  # of our own program

    try:
        need(os.path.exists("/usr/bin/python3"), "/usr/bin/python3")
        free = found()  # the control
        assert (free["chmod"], free["open"], free["mkdir"]) == (0, 0, 0)
        assert (free["whiteout"], free["core"], free["terminal"]) == (errno.ENOENT, 0, errno.ENOTTY)
        assert free["fallocate"] == 0
        for path in tmp_path.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        held = found("--seccomp", str(filter_fd))
    finally:
        os.close(filter_fd)
    refused = errno.EPERM
    names = ("chmod", "open", "mkdir", "device", "namespace", "whiteout", "terminal")
    assert {name: held[name] for name in names} == dict.fromkeys(names, refused)
    assert (held["usual"], held["files"]) == (0, 0)
    # As asked before: 1 is the value by which the kernel starts no collector of the host.
    assert (held["fallocate"], held["core"] != 0) == (errno.EOPNOTSUPP, True)


def test_the_kernel_of_a_host_is_the_newest_whose_modules_are_there(tmp_path: Path) -> None:
    boot, modules = tmp_path / "boot", tmp_path / "lib/modules"
    boot.mkdir()
    for release, has_modules in (("6.1.0-9-amd64", True), ("6.1.0-40-amd64", True), ("6.9", False)):
        (boot / f"vmlinuz-{release}").write_bytes(b"")
        if has_modules:
            (modules / release).mkdir(parents=True)
    assert guest_image.find_kernel(None, boot=str(boot)).release == "6.1.0-40-amd64"
    named = guest_image.find_kernel(str(boot / "vmlinuz-6.1.0-9-amd64"))
    assert named.modules == str(modules / "6.1.0-9-amd64")
    for configured in (str(boot / "vmlinuz-6.9"), "/nowhere"):
        with pytest.raises(LayerMissing) as refused:
            guest_image.find_kernel(configured)
        assert (refused.value.code, bool(refused.value.hint)) == ("CW-LAYER-KERNEL", True)


def test_a_kernel_without_the_file_driver_is_refused(tmp_path: Path) -> None:
    """As Debian's for clouds. A driver that is built in needs no file."""
    kernel = guest_image.GuestKernel("", str(tmp_path))
    (tmp_path / "kernel").mkdir()
    for name, needs in (("virtio_console", ""), ("9pnet_virtio", "9pnet"), ("9pnet", "")):
        module = b"\0depends=" + needs.encode() + b"\0"
        (tmp_path / f"kernel/{name}.ko").write_bytes(module)
    (tmp_path / "modules.builtin").write_text("kernel/drivers/virtio/virtio_pci.ko\n")
    with pytest.raises(LayerMissing, match="9p"):
        guest_image.initramfs(kernel, b"program")
    (tmp_path / "kernel/9p.ko").write_bytes(b"\0depends=9pnet\0")
    archive = guest_image.initramfs(kernel, b"program")
    assert b"virtio_console.ko\n9pnet.ko\n9pnet_virtio.ko\n9p.ko\n" in archive
    assert archive == guest_image.initramfs(kernel, b"program")


def test_packed_drivers_are_unpacked_and_damaged_ones_refused(tmp_path: Path) -> None:
    """Debian ships plain drivers or .xz, Ubuntu and Fedora ship .zst or .xz, Arch ships .zst."""
    driver = b"\0depends=\0" + random.Random(3).randbytes(100_000)
    packed = {
        "ko": driver,
        "ko.xz": lzma.compress(driver),
        "ko.gz": gzip.compress(driver),
        "ko.zst": zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(
            driver
        ),
    }
    (tmp_path / "modules.builtin").write_text("virtio_pci.ko\nvirtio_console.ko\n9pnet_virtio.ko\n")
    (tmp_path / "kernel").mkdir()
    kernel = guest_image.GuestKernel("", str(tmp_path))
    for suffix, content in packed.items():
        file = tmp_path / f"kernel/9p.{suffix}"
        file.write_bytes(content)
        assert driver in guest_image.initramfs(kernel, b"program"), suffix
        damaged = (
            content[:-20_000],
            b"",
            b"x" * 60 + content[60:],
            content[:60] + b"\xff" * 400 + content[460:],
        )
        for damage in damaged if suffix != "ko" else ():
            file.write_bytes(damage)
            with pytest.raises(LayerMissing, match="damaged") as refused:
                guest_image.initramfs(kernel, b"program")
            assert (refused.value.code, bool(refused.value.hint)) == ("CW-LAYER-KERNEL", True)
        file.unlink()


def test_the_archive_is_one_that_cpio_reads(tmp_path: Path) -> None:
    archive = guest_image.cpio({"a": (0o040755, b""), "a/b": (0o100644, b"text")})
    assert len(archive) % 4 == 0
    assert archive.startswith(b"070701")
    assert archive.rstrip(b"\0").endswith(b"TRAILER!!!")
    at = archive.index(b"a/b\0")
    assert archive[at - 110 : at - 104] == b"070701"
    assert archive[archive.index(b"text") :][:4] == b"text"


def test_a_large_machine_has_no_more_processors_than_the_host() -> None:
    spec = replace(SPEC, limits=Limits(cpus=200.0, memory_bytes=GIB), host_processors=4)
    words = machine_plan.emulator_arguments(spec)
    assert words[words.index("-smp") + 1] == "4"
    assert sys.byteorder == "little"  # as frames are
