"""Both plans of a run, read back: order of the walls, identities, limits (ISO-1, FS-1, LIM-1)."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.limits import Limits
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux import cell_plan, outer_wall, visible_host
from cellwall.sandbox.linux.walls import Walls

ROOT = visible_host.HostRoot(("/usr",), (), (), None)
FILTER = b"\x06\0\0\0\0\0\xff\x7f"
OUTER = outer_wall.OuterWall("/usr/bin/bwrap", ROOT, None)
WALLS = Walls(OUTER, 6, FILTER, True, 1 << 20, 1 << 20)
PRIVATE = WorkspaceMount(mode=WorkspaceMode.PRIVATE)
JOB = cell_plan.Job(
    limits=Limits(),
    mount=PRIVATE,
    argv=("prog", "a b"),
    env={"A": "1"},
    descriptors={0: 10, 1: 11},
    files={"/code/x": b"co\0de"},
)


def init(walls: Walls = WALLS, job: cell_plan.Job = JOB) -> list[str]:
    return cell_plan.init_plan(walls, job).decode("latin-1").split("\0")


def keep(walls: Walls, job: cell_plan.Job) -> list[str]:
    layered = job.mount.mode is WorkspaceMode.COPY_ON_WRITE
    plan = outer_wall.shim_plan(
        walls.outer, outer_wall.workspace_directories(job.mount),
        cgroup2="/g2", tasks=["/t"], remove=["/r"],
        layers_inside=layered and walls.outer.drop_to is None,
        cell_fd=20, plan_fd=21, status_fd=22, given=tuple(job.descriptors.values()),
    )  # fmt: skip
    return plan.decode().split("\0")


def has(words: list[str], *sequence: str) -> bool:
    return any(tuple(words[at : at + len(sequence)]) == sequence for at in range(len(words)))


@pytest.mark.requirement("ISO-1")
def test_the_walls_stand_before_the_program_and_seccomp_comes_last() -> None:
    words = init()
    order = [
        words.index(verb)
        for verb in ("seal", "give", "rlimit", "drop", "landlock", "enforce", "seccomp")
    ]
    assert order == sorted(order)
    assert has(words, "arg", "prog", "arg", "a b", "rlimit")
    assert has(words, "env", "A=1")
    assert has(words, "give", "10", "0")
    assert has(words, "give", "11", "1")


@pytest.mark.requirement("NET-2")
def test_egress_is_built_before_capabilities_are_dropped_and_before_any_code() -> None:
    egress = cell_plan.EgressPlan(77, (443,), {"ca.pem": b"x"})
    words = init(job=replace(JOB, egress=egress))
    assert has(words, "listen", "77", "proxy", "127.0.0.1", "3128")
    assert has(words, "prefix", "198.18.0.1", "255.254.0.0")
    assert has(words, "datagrams", "77", "dns", "127.0.0.1", "53")
    assert has(words, "listen", "77", "tcp:443", "0.0.0.0", "443", "handed", "77")
    assert has(words, "file", "/.cellwall/net/ca.pem", "292", "1", "x", "seal", "/.cellwall/net")
    assert words.index("handed") < words.index("drop") < words.index("seccomp")


@pytest.mark.requirement("NET-1")
def test_a_plan_without_egress_has_no_step_of_it() -> None:
    assert not {"listen", "datagrams", "prefix", "handed"} & set(init())
    bare = cell_plan.EgressPlan(77, (), {})
    words = init(job=replace(JOB, egress=bare))
    assert "listen" in words
    assert not {"datagrams", "prefix"} & set(words)


@pytest.mark.requirement("FS-3")
def test_files_for_programs_are_offered_in_homes_and_never_in_a_users_directory() -> None:
    egress = cell_plan.EgressPlan(77, (), {}, {".cache/x/y": b"z"})
    words = init(job=replace(JOB, egress=egress))
    assert has(words, "offer", "/tmp/.cache/x/y", "420", "1", "z")
    assert has(words, "offer", "/workspace/.cache/x/y", "420", "1", "z")
    assert words.index("seal") < words.index("offer") < words.index("drop")
    mount = replace(JOB.mount, home=False)
    words = init(job=replace(JOB, egress=egress, mount=mount))
    assert has(words, "offer", "/tmp/.cache/x/y", "420", "1", "z")
    assert "/workspace/.cache/x/y" not in words


def test_without_landlock_there_is_no_ruleset_but_every_other_wall() -> None:
    words = init(replace(WALLS, landlock_abi=0))
    assert "landlock" not in words
    assert {"seal", "drop", "seccomp"} <= set(words)


@pytest.mark.requirement("LIM-1")
def test_limits_become_rlimits_and_sizes_of_file_systems() -> None:
    limits = Limits(open_files=100, file_size_bytes=8192, disk_bytes=65_536, cpu_s=3, file_count=50)
    words = init(job=replace(JOB, limits=limits))
    assert has(words, "rlimit", str(resource.RLIMIT_NOFILE), "164")
    assert has(words, "rlimit", str(resource.RLIMIT_FSIZE), "8193")
    assert has(words, "rlimit", str(resource.RLIMIT_CORE), "1")
    assert has(words, "rlimit", str(resource.RLIMIT_CPU), "6")
    assert has(words, "tmpfs", "/workspace", "size=65536,nr_inodes=50,mode=0755")
    assert has(words, "tmpfs", "/tmp", f"size=65536,nr_inodes={cell_plan._TMP_INODES},mode=1777")
    assert has(words, "open-files", "100")
    assert has(words, "file-size", "8192")
    assert str(resource.RLIMIT_NPROC) not in _rlimits(words)


def _rlimits(words: list[str]) -> set[str]:
    return {words[at + 1] for at, word in enumerate(words) if word == "rlimit"}


@pytest.mark.requirement("LIM-1")
def test_without_a_cgroup_memory_and_processes_have_rlimits() -> None:
    words = init(replace(WALLS, cgroup=False))
    assert {str(resource.RLIMIT_DATA), str(resource.RLIMIT_NPROC)} <= _rlimits(words)


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    "mode", [WorkspaceMode.READ_ONLY, WorkspaceMode.READ_WRITE, WorkspaceMode.COPY_ON_WRITE]
)
@pytest.mark.parametrize("drop_to", [None, 1_900_000_000])
def test_a_given_directory_is_mounted_by_descriptor_or_its_identity_is_checked(
    mode: WorkspaceMode, drop_to: int | None, tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        mount = WorkspaceMount(
            mode=mode, dir_fd=descriptor, path=str(tmp_path), layers_fd=descriptor, layers_path=str(tmp_path),
            covers=(("hide", ".env"), ("ro", ".git/hooks")),
        )  # fmt: skip
        walls, job = (
            replace(WALLS, outer=replace(OUTER, drop_to=drop_to)),
            replace(JOB, mount=mount),
        )
        inside, outside = init(walls, job), keep(walls, job)
        info = os.stat(tmp_path)
    finally:
        os.close(descriptor)
    checked = any(
        has(inside, "expect", at, str(info.st_dev), str(info.st_ino))
        for at in ("/workspace", "/.cellwall/lower")
    )
    staged = has(outside, "stage", str(descriptor))
    assert checked or staged
    assert staged == (drop_to is not None)
    assert has(inside, "protect", "hide", ".env", "protect", "ro", ".git/hooks")
    assert inside.index("protect") < inside.index("drop")


@pytest.mark.requirement("ISO-10")
def test_root_is_dropped_before_bubblewrap_and_only_named_descriptors_pass() -> None:
    words = keep(replace(WALLS, outer=replace(OUTER, drop_to=1_900_000_007)), JOB)
    assert has(words, "user", "1900000007", "1900000007")
    assert words.index("user") < words.index("exec")
    assert [words[at + 1] for at, word in enumerate(words) if word == "pass"] == [
        "10",
        "11",
        "20",
        "21",
        "22",
    ]
    assert words[:6] == ["cgroup2", "/g2", "tasks", "/t", "remove", "/r"]
    assert "user" not in keep(WALLS, JOB)


@pytest.mark.parametrize("job", [replace(JOB, argv=("a\0b",)), replace(JOB, env={"A": "\0"})])
def test_a_nul_byte_never_reaches_a_plan(job: cell_plan.Job) -> None:
    with pytest.raises(BadInput) as refused:
        cell_plan.init_plan(WALLS, job)
    assert refused.value.code == "CW-NUL-BYTE"


@pytest.mark.requirement("ISO-7")
def test_only_a_cell_whose_sockets_are_reported_has_a_network_of_the_zygote() -> None:
    def words(walls: Walls) -> list[str]:
        plan = cell_plan.warm_plan(walls, JOB, joins=(), tree=None, is_interpreter=True)
        return plan.decode("latin-1").split("\0")

    own, kept = words(WALLS), words(replace(WALLS, reports_sockets=True))
    assert "loopback" in own
    assert not {"kept-network", "network-setting"} & set(own)
    assert has(own, "setting", "/proc/sys/net/core/optmem_max", "4096")
    # First, since the zygote reads no further; written by it alone: a cell has no right to write them.
    assert kept[0] == "kept-network"
    assert has(kept, "network-setting", "/proc/sys/net/core/optmem_max", "4096")
    assert kept.index("network-setting") < kept.index("ids")
    assert "loopback" not in kept
    assert not has(kept, "setting", "/proc/sys/net/core/optmem_max")
    settings = {own[at + 1] for at, word in enumerate(own) if word == "setting"}
    of_kept = {kept[at + 1] for at, word in enumerate(kept) if word.endswith("setting")}
    assert settings == of_kept
