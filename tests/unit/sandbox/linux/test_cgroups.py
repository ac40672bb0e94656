"""Which way to a cgroup each kind of host offers, and what is written and read there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.errors import LayerMissing, SandboxFailed
from cellwall.core.limits import GIB, MIB, Limits
from cellwall.sandbox.linux import cgroups, run_cgroup
from cellwall.sandbox.linux.cgroups import CgroupFacts, CgroupMount, Choice
from cellwall.sandbox.linux.counter_files import RecentGroups
from cellwall.sandbox.linux.run_cgroup import Counters, RunCgroup
from conftest import need

ALL = frozenset({"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc"})
V2 = CgroupMount(2, "/sys/fs/cgroup", "/", frozenset())
V1 = (
    CgroupMount(1, "/sys/fs/cgroup/memory", "/", frozenset({"memory"})),
    CgroupMount(1, "/sys/fs/cgroup/pids", "/", frozenset({"pids"})),
    CgroupMount(1, "/sys/fs/cgroup/cpu,cpuacct", "/", frozenset({"cpu", "cpuacct"})),
    CgroupMount(1, "/sys/fs/cgroup/blkio", "/", frozenset({"blkio"})),
)
HYBRID = (*V1, CgroupMount(2, "/sys/fs/cgroup/unified", "/", frozenset()))


# ---- reading the host --------------------------------------------------------------------------


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize(
    ("line", "mount"),
    [
        (
            "31 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate",
            V2,
        ),
        (
            "37 32 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:14 - cgroup cgroup rw,cpu,cpuacct",
            V1[2],
        ),
        # No optional field at all, and a controller we have no use for.
        (
            "38 32 0:33 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls",
            CgroupMount(1, "/sys/fs/cgroup/net_cls", "/", frozenset()),
        ),
        # A container's view: the mount begins deeper in the hierarchy.
        (
            "812 807 0:32 /docker/4f1a /sys/fs/cgroup/memory ro master:15 - cgroup cgroup rw,memory",
            CgroupMount(1, "/sys/fs/cgroup/memory", "/docker/4f1a", frozenset({"memory"})),
        ),
        # Two optional fields; the kernel writes a space in a name as \040.
        (
            r"40 23 0:30 / /mnt/my\040groups rw shared:1 master:2 - cgroup2 none rw",
            CgroupMount(2, "/mnt/my groups", "/", frozenset()),
        ),
    ],
)
def test_a_cgroup_mount_is_read_from_mountinfo(line: str, mount: CgroupMount) -> None:
    assert cgroups.parse_mounts(line + "\n") == (mount,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
        "25 22 0:5 / /cgroup2 rw - tmpfs cgroup2 rw",  # only named like one
        "31 23 0:26 / /sys/fs/cgroup",
        "nonsense - cgroup2",
    ],
)
def test_anything_else_in_mountinfo_is_no_cgroup_mount(text: str) -> None:
    assert cgroups.parse_mounts(text) == ()


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", {}),
        ("0::/\n", {"": "/"}),
        (
            "0::/user.slice/user-1000.slice/session-2.scope\n",
            {"": "/user.slice/user-1000.slice/session-2.scope"},
        ),
        (
            "5:cpu,cpuacct:/a\n4:memory:/b\n1:name=systemd:/init.scope\n0::/init.scope\n",
            {
                "cpu": "/a",
                "cpuacct": "/a",
                "memory": "/b",
                "name=systemd": "/init.scope",
                "": "/init.scope",
            },
        ),
        ("0::/a:b/c\n", {"": "/a:b/c"}),  # a path may hold a colon
    ],
)
def test_membership_maps_controllers_to_paths(text: str, paths: dict[str, str]) -> None:
    assert cgroups.parse_membership(text) == paths


# ---- choosing the way --------------------------------------------------------------------------


def facts(
    *mounts: CgroupMount,
    euid: int = 0,
    membership: dict[str, str] | None = None,
    unified: frozenset[str] = frozenset(),
    user_systemd: bool = False,
    writable: bool = True,
) -> CgroupFacts:
    return CgroupFacts(mounts, membership or {}, unified, euid, user_systemd, writable)


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize(
    ("host", "choice"),
    [
        pytest.param(
            facts(V2, membership={"": "/init.scope"}, unified=ALL),
            Choice("v2-root", dict.fromkeys(("memory", "pids", "cpu", "io"), V2.point)),
            id="v2-root",
        ),
        pytest.param(
            facts(V2, unified=cgroups.NEEDED),
            Choice("v2-root", dict.fromkeys(("memory", "pids", "cpu"), V2.point)),
            id="v2-root-without-io",
        ),
        pytest.param(
            facts(*V1, membership={"memory": "/", "pids": "/", "cpu": "/", "cpuacct": "/"}),
            Choice(
                "v1-root",
                {
                    "memory": "/sys/fs/cgroup/memory",
                    "pids": "/sys/fs/cgroup/pids",
                    "cpu": "/sys/fs/cgroup/cpu,cpuacct",
                    "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
                    "blkio": "/sys/fs/cgroup/blkio",
                },
            ),
            id="v1-root",
        ),
        pytest.param(
            facts(*V1[:3], membership={"memory": "/m/own", "pids": "/p/", "cpu": "/c"}),
            Choice(
                "v1-root",
                {
                    "memory": "/sys/fs/cgroup/memory/m/own",
                    "pids": "/sys/fs/cgroup/pids/p",
                    "cpu": "/sys/fs/cgroup/cpu,cpuacct/c",
                    "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
                },
            ),
            id="v1-root-stays-below-its-own-limits",
        ),
        pytest.param(
            facts(*HYBRID, membership={"": "/init.scope"}),
            Choice(
                "v1-root",
                {
                    "memory": "/sys/fs/cgroup/memory",
                    "pids": "/sys/fs/cgroup/pids",
                    "cpu": "/sys/fs/cgroup/cpu,cpuacct",
                    "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
                    "blkio": "/sys/fs/cgroup/blkio",
                },
            ),
            id="hybrid-root-with-an-empty-v2",
        ),
        pytest.param(
            facts(V2, euid=1000, unified=ALL, user_systemd=True),
            Choice("systemd-user", {}),
            id="v2-user-with-systemd",
        ),
    ],
)
def test_each_kind_of_host_has_its_way(host: CgroupFacts, choice: Choice) -> None:
    found = cgroups.choose(host)
    assert found == choice
    assert dict(found.bases) == dict(choice.bases)


@pytest.mark.requirement("ISO-4", "LIM-3")
@pytest.mark.parametrize(
    ("host", "reason"),
    [
        pytest.param(facts(), "controller for: cpu, memory, pids", id="root-no-cgroup"),
        pytest.param(facts(V2), "controller for: cpu, memory, pids", id="root-v2-empty"),
        pytest.param(
            facts(V2, unified=ALL, writable=False), "is read-only here", id="root-v2-read-only"
        ),
        pytest.param(facts(*V1, writable=False), "is read-only here", id="root-v1-read-only"),
        pytest.param(
            facts(V2, unified=frozenset({"cpu", "pids", "io"})),
            "controller for: memory",
            id="root-v2-without-memory",
        ),
        pytest.param(facts(*V1[1:]), "controller for: memory", id="root-v1-without-memory"),
        pytest.param(facts(V1[0], V1[2]), "controller for: pids", id="root-v1-without-pids"),
        pytest.param(facts(euid=1000), "an ordinary user", id="user-no-cgroup"),
        pytest.param(facts(*V1, euid=1000), "an ordinary user", id="user-v1"),
        pytest.param(
            replace(facts(*V1, euid=1000), in_container=True), "a container gives", id="user-docker"
        ),
        pytest.param(
            facts(V2, euid=1000, unified=ALL), "an ordinary user", id="user-v2-without-systemd"
        ),
        pytest.param(
            facts(*V1, euid=1000, user_systemd=True), "an ordinary user", id="user-v1-with-systemd"
        ),
        # The user's systemd would give a scope, in which nothing can be limited.
        pytest.param(
            facts(*HYBRID, euid=1000, user_systemd=True),
            "controller here for: cpu, memory, pids",
            id="user-hybrid-with-systemd",
        ),
        pytest.param(
            facts(V2, euid=1000, unified=ALL - {"memory"}, user_systemd=True),
            "controller here for: memory",
            id="user-v2-memory-disabled-at-boot",
        ),
    ],
)
def test_a_host_without_a_way_is_refused_with_reason_and_hint(
    host: CgroupFacts, reason: str
) -> None:
    found = cgroups.choose(host)
    assert (found.way, dict(found.bases)) == ("none", {})
    assert reason in found.reason
    assert found.hint


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize(
    ("root", "path", "directory"),
    [
        ("/", "/", "/cg"),
        ("/", "/a/b", "/cg/a/b"),
        ("/docker/4f1a", "/docker/4f1a", "/cg"),
        ("/docker/4f1a", "/docker/4f1a/sub", "/cg/sub"),
        ("/docker/4f1a", "/docker/4f1abc", "/cg"),  # another container, only named alike
        ("/docker/4f1a", "/", "/cg"),  # joined a cgroup namespace after the mount was made
        ("/../..", "/", "/cg"),
    ],
)
def test_our_place_is_found_below_a_mount_that_begins_deeper(
    root: str, path: str, directory: str
) -> None:
    mount = CgroupMount(1, "/cg", root, cgroups.NEEDED)
    host = facts(mount, membership=dict.fromkeys(cgroups.NEEDED, path))
    assert dict(cgroups.choose(host).bases) == dict.fromkeys(cgroups.NEEDED, directory)


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize(
    ("variables", "environment"),
    [
        ({"XDG_RUNTIME_DIR": "/run/u"}, {"XDG_RUNTIME_DIR": "/run/u"}),
        ({}, {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}),
        ({"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}),
        (
            {"XDG_RUNTIME_DIR": "/run/u", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"},
            {"XDG_RUNTIME_DIR": "/run/u", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"},
        ),
    ],
)
def test_systemd_run_is_told_where_the_manager_is_and_nothing_else(
    variables: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("API_KEY", "secret")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cgroups.scope_environment() == environment


# ---- what is written ---------------------------------------------------------------------------

LIMITS = Limits(memory_bytes=64 * MIB, processes=10, cpus=1.5, io_bytes_per_s=MIB)


@pytest.mark.requirement("LIM-3")
def test_v1_spells_every_limit() -> None:
    assert run_cgroup.settings_v1(LIMITS) == (
        ("memory", "memory.limit_in_bytes", "67108864", True),
        ("memory", "memory.memsw.limit_in_bytes", "67108864", False),
        ("memory", "memory.swappiness", "0", False),
        ("memory", "memory.kmem.tcp.limit_in_bytes", "8388608", False),
        ("pids", "pids.max", "12", True),
        ("cpu", "cpu.cfs_period_us", "100000", True),
        ("cpu", "cpu.cfs_quota_us", "150000", True),
    )


@pytest.mark.requirement("LIM-3")
def test_v2_spells_every_limit() -> None:
    assert run_cgroup.settings_v2(LIMITS) == (
        ("memory", "memory.max", "67108864", True),
        ("memory", "memory.swap.max", "0", False),
        ("pids", "pids.max", "12", True),
        ("cpu", "cpu.max", "150000 100000", True),
    )


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("spell", [run_cgroup.settings_v1, run_cgroup.settings_v2])
def test_every_needed_controller_has_a_required_setting(spell) -> None:
    assert {name for name, _, _, required in spell(Limits()) if required} == cgroups.NEEDED


def group_v1(base: Path, *controllers: str) -> RunCgroup:
    for name in controllers:
        (base / name).mkdir()
    return RunCgroup(1, {name: str(base / name) for name in controllers})


def group_v2(base: Path, *controllers: str) -> RunCgroup:
    return RunCgroup(2, dict.fromkeys(controllers, str(base)))


def contents(base: Path) -> dict[str, str]:
    return {
        str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()
    }


@pytest.mark.requirement("LIM-3")
def test_limits_reach_the_files_of_v2(tmp_path: Path) -> None:
    files = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "io.max")
    for name in files:
        (tmp_path / name).touch()
    group_v2(tmp_path, "memory", "pids", "cpu", "io").limit(LIMITS, io_device="254:0")
    assert contents(tmp_path) == {
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "pids.max": "12",
        "cpu.max": "150000 100000",
        "io.max": "254:0 rbps=1048576 wbps=1048576 wiops=64",
    }


@pytest.mark.requirement("LIM-3")
def test_limits_reach_the_files_of_v1_and_what_is_optional_may_lack(tmp_path: Path) -> None:
    group = group_v1(tmp_path, "memory", "pids", "cpu", "blkio")
    files = (
        "memory/memory.limit_in_bytes",  # no swap accounting: no memsw file
        "pids/pids.max",
        "cpu/cpu.cfs_period_us",
        "cpu/cpu.cfs_quota_us",
        "blkio/blkio.throttle.read_bps_device",
        "blkio/blkio.throttle.write_bps_device",
        "blkio/blkio.throttle.write_iops_device",
    )
    for name in files:
        (tmp_path / name).touch()
    group.limit(LIMITS, io_device="8:0")
    assert contents(tmp_path) == {
        "memory/memory.limit_in_bytes": "67108864",
        "pids/pids.max": "12",
        "cpu/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "150000",
        "blkio/blkio.throttle.read_bps_device": "8:0 1048576",
        "blkio/blkio.throttle.write_bps_device": "8:0 1048576",
        "blkio/blkio.throttle.write_iops_device": "8:0 64",
    }


@pytest.mark.requirement("LIM-3")
def test_bandwidth_is_left_out_without_a_device_or_a_controller(tmp_path: Path) -> None:
    for name in ("memory.max", "pids.max", "cpu.max"):
        (tmp_path / name).touch()
    group_v2(tmp_path, "memory", "pids", "cpu").limit(LIMITS, io_device="254:0")
    group_v2(tmp_path, "memory", "pids", "cpu", "io").limit(LIMITS, io_device=None)
    group_v2(tmp_path, "memory", "pids", "cpu", "io").limit(LIMITS, io_device="254:0")
    assert sorted(contents(tmp_path)) == ["cpu.max", "memory.max", "pids.max"]


@pytest.mark.requirement("ISO-4", "LIM-3")
@pytest.mark.parametrize("missing", ["memory.max", "pids.max", "cpu.max"])
def test_a_needed_limit_that_cannot_be_written_is_a_refusal(tmp_path: Path, missing: str) -> None:
    for name in {"memory.max", "pids.max", "cpu.max"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(SandboxFailed) as caught:
        group_v2(tmp_path, "memory", "pids", "cpu").limit(LIMITS, io_device=None)
    assert caught.value.code == "CW-CGROUP-LIMIT"
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.requirement("ISO-4")
def test_a_needed_controller_that_is_absent_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "memory.max").touch()
    (tmp_path / "cpu.max").touch()
    with pytest.raises(SandboxFailed) as caught:
        group_v2(tmp_path, "memory", "cpu").limit(LIMITS, io_device=None)
    assert caught.value.code == "CW-CGROUP-LIMIT"


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("way", ["v1-root", "v2-root"])
def test_a_group_that_cannot_be_made_is_a_refusal(tmp_path: Path, way: cgroups.Way) -> None:
    (tmp_path / "file").touch()
    choice = Choice(way, dict.fromkeys(sorted(cgroups.NEEDED), str(tmp_path / "file")))
    with pytest.raises(LayerMissing) as caught:
        cgroups.make_group(choice, "act_1")
    assert caught.value.code == "CW-LAYER-CGROUP"
    assert caught.value.hint


@pytest.mark.requirement("LIM-3")
def test_a_v2_group_is_made_below_our_own_with_controllers_handed_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    own = tmp_path / "cellwall"
    own.mkdir()
    (own / "cgroup.subtree_control").touch()
    choice = Choice("v2-root", dict.fromkeys(("memory", "pids", "cpu"), str(tmp_path)))
    group = cgroups.make_group(choice, "act_1")
    assert (group.version, group.unified, group.tasks, group.remove) == (
        2,
        str(own / "act_1"),
        (),
        (str(own / "act_1"),),
    )
    assert contents(tmp_path) == {
        "cgroup.subtree_control": "+pids +cpu",  # what the host had enabled is not asked again
        "cellwall/cgroup.subtree_control": "+memory +pids +cpu",
    }


@pytest.mark.requirement("LIM-3")
def test_a_v1_group_is_made_once_in_each_hierarchy(tmp_path: Path) -> None:
    places = {"memory": "m", "pids": "p", "cpu": "c", "cpuacct": "c"}
    bases = {name: str(tmp_path / place) for name, place in places.items()}
    group = cgroups.make_group(Choice("v1-root", bases), "act_1")
    made = tuple(str(tmp_path / place / "cellwall/act_1") for place in ("m", "p", "c"))
    assert (group.version, group.unified, group.remove) == (1, None, made)
    assert group.tasks == tuple(f"{path}/tasks" for path in made)
    assert all(map(os.path.isdir, made))
    group.discard()
    assert not any(map(os.path.exists, made))
    group.discard()  # a second time has nothing to do


@pytest.mark.requirement("ISO-4")
def test_a_keeper_outside_of_a_scope_of_ours_is_refused() -> None:
    with pytest.raises(LayerMissing) as caught:
        cgroups.group_in_scope(os.getpid())
    assert caught.value.code == "CW-LAYER-CGROUP"


@pytest.mark.requirement("ISO-8")
def test_discard_kills_what_is_left_in_a_real_group() -> None:
    choice = cgroups.choose(cgroups.gather())
    need(choice.way in ("v1-root", "v2-root"), "cgroup controllers for root")
    group = cgroups.make_group(choice, f"act_discard_{os.getpid()}")
    program = [sys.executable, "-c", "import sys, time; sys.stdin.read(1); time.sleep(600)"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        for path in group.remove:
            Path(path, "cgroup.procs").write_text(str(process.pid))
        with pytest.raises(OSError):  # the control: the kernel keeps a group in use
            os.rmdir(group.remove[0])
        group.discard()
        assert process.wait(timeout=30) == -signal.SIGKILL
    assert not any(map(os.path.exists, group.remove))


# ---- what is read ------------------------------------------------------------------------------


@pytest.mark.requirement("LIM-3", "LIM-5")
def test_counters_of_v2(tmp_path: Path) -> None:
    files = {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
        "memory.peak": f"{GIB}\n",
        "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
        "pids.events": "max 3\n",
        "io.stat": "254:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=5 dios=0\n8:0 rbytes=3 wbytes=0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = group_v2(tmp_path, "memory", "pids", "cpu", "io").counters()
    assert found == Counters(
        cpu_s=1.5, memory_peak=GIB, out_of_memory=1, forks_refused=3, io_bytes=123
    )


@pytest.mark.requirement("LIM-3", "LIM-5")
def test_counters_of_v1(tmp_path: Path) -> None:
    group = group_v1(tmp_path, "memory", "pids", "cpu", "cpuacct", "blkio")
    files = {
        "cpuacct/cpuacct.usage": "2500000000\n",
        "memory/memory.max_usage_in_bytes": "4096\n",
        "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "pids/pids.events": "max 1\n",
        "blkio/blkio.throttle.io_service_bytes": "8:0 Read 10\n8:0 Write 5\n8:0 Total 15\nTotal 15\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    expected = Counters(cpu_s=2.5, memory_peak=4096, out_of_memory=2, forks_refused=1, io_bytes=15)
    assert group.counters() == expected
    group.keep_files_open()
    assert group.counters() == expected
    # Many disks: more text than is read at once.
    disks = "".join(f"8:{number} Total 1\n" for number in range(400))
    (tmp_path / "blkio/blkio.throttle.io_service_bytes").write_text(f"{disks}Total 400\n")
    (tmp_path / "cpuacct/cpuacct.usage").write_text("3500000000\n")
    assert group.counters() == replace(expected, cpu_s=3.5, io_bytes=400)
    group.close_files()
    assert group.counters() == replace(expected, cpu_s=3.5, io_bytes=400)


@pytest.mark.requirement("LIM-3", "LIM-5")
def test_open_files_of_a_removed_group_count_nothing_and_are_closed() -> None:
    need(os.access("/sys/fs/cgroup/pids", os.W_OK) and os.geteuid() == 0, "cgroup v1 as root")
    path = Path(f"/sys/fs/cgroup/pids/cellwall-test-{os.getpid()}")
    path.mkdir()
    try:
        group = RunCgroup(1, {"memory": str(path), "pids": str(path)})
        group.keep_files_open()
        before = len(os.listdir("/proc/self/fd"))
        assert group.counters() == Counters()
        assert len(os.listdir("/proc/self/fd")) > before
    finally:
        path.rmdir()
    assert group.counters() == Counters()
    group.close_files()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("LIM-5")
def test_only_the_groups_used_last_keep_their_files_open(tmp_path: Path) -> None:
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    groups = [RunCgroup(1, {"cpuacct": str(tmp_path)}) for _ in range(40)]
    recent, before = RecentGroups(), len(os.listdir("/proc/self/fd"))
    for group in (*groups, groups[0]):
        recent.keep(group)
        assert group.cpu_s() == 2.5
    assert len(os.listdir("/proc/self/fd")) == before + 16
    assert groups[1].cpu_s() == 2.5  # by its path
    for group in groups:
        recent.drop(group)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("LIM-5")
@pytest.mark.parametrize(
    ("files", "counters"),
    [
        pytest.param({}, Counters(), id="nothing"),
        pytest.param({"memory.peak": "max\n"}, Counters(), id="no-number"),
        pytest.param(
            {"memory.events": "oom_kill\nx y z\noom_kill -1\n"}, Counters(), id="not-a-counter"
        ),
        pytest.param({"cpu.stat": "usage_usec 0\n"}, Counters(cpu_s=0.0), id="not-begun"),
    ],
)
def test_a_counter_that_the_kernel_lacks_is_unknown_not_zero(
    tmp_path: Path, files: dict[str, str], counters: Counters
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert group_v2(tmp_path, "memory", "pids", "cpu").counters() == counters


# ---- the disk behind a directory ---------------------------------------------------------------


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("device", [os.makedev(0, 5), os.makedev(4000, 1)], ids=["tmpfs", "none"])
def test_a_file_system_without_a_disk_has_no_block_device(device: int) -> None:
    assert cgroups.block_device(device) is None


@pytest.mark.requirement("LIM-3")
def test_a_partition_stands_for_its_whole_disk() -> None:
    nodes = Path("/sys/dev/block")
    need(nodes.is_dir() and any(nodes.iterdir()), "a block device")
    wanted = {
        node.name: (node.resolve().parent / "dev").read_text().strip()
        if (node / "partition").exists()
        else node.name
        for node in nodes.iterdir()
    }
    found = {name: cgroups.block_device(os.makedev(*map(int, name.split(":")))) for name in wanted}
    assert found == wanted
