"""Which engines are refused, for each backend; and what a container is asked to be."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from cellwall.core.errors import LayerMissing
from cellwall.core.limits import Limits
from cellwall.sandbox.containers import container_cell, container_request, root_image
from cellwall.sandbox.containers.container_request import ContainerBind, ContainerSpec
from cellwall.sandbox.containers.container_walls import (
    EngineChoice,
    container_walls,
    find_engine,
    judge_engine,
    user_in,
)
from cellwall.sandbox.containers.engine import EngineFacts
from cellwall.sandbox.linux.cgroups import Choice
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.visible_host import HostRoot

SETTINGS = NativeSettings(
    uid_base=1_900_000_000, tmp_bytes=1 << 20, shm_bytes=1 << 20, max_result_bytes=1 << 20
)
GOOD = EngineFacts(
    version="Docker 28.1",
    has_user_namespace=True,
    is_rootless=False,
    runtimes=frozenset({"runc", "runsc", "krun", "kata"}),
    has_limits=True,
    root_ids=(300_000, 300_000),
)


def fit_for(backend: str) -> EngineFacts:
    """gVisor's file server must reach the state folder: no user namespace of the engine."""
    return replace(GOOD, has_user_namespace=backend != "gvisor")


LAYERS = HostLayers(None, 4, Choice("none", {}))


@pytest.mark.requirement("ISO-11", "ISO-4")
@pytest.mark.parametrize(
    ("backend", "change", "code"),
    [
        ("container", {"has_user_namespace": False}, "CW-LAYER-USERNS"),
        ("container", {"has_limits": False}, "CW-LAYER-CGROUP"),
        ("gvisor", {"runtimes": frozenset({"runc"})}, "CW-LAYER-GVISOR"),
        ("gvisor", {"has_user_namespace": True}, "CW-LAYER-GVISOR"),
        ("gvisor", {"has_limits": False}, "CW-LAYER-CGROUP"),
    ],
)
def test_engine_that_lacks_a_wall_is_refused_with_a_hint(backend, change, code) -> None:
    settings = replace(SETTINGS, backend=backend)
    good = fit_for(backend)
    assert judge_engine(settings, good)
    with pytest.raises(LayerMissing) as refused:
        judge_engine(settings, replace(good, **change))
    assert refused.value.code == code
    assert refused.value.hint


@pytest.mark.requirement("ISO-11")
@pytest.mark.parametrize(("backend", "runtime"), [("container", ""), ("gvisor", "runsc")])
def test_backend_names_the_runtime(backend: str, runtime: str) -> None:
    settings = replace(SETTINGS, backend=backend)
    assert judge_engine(settings, fit_for(backend)).runtime == runtime


@pytest.mark.requirement("ISO-11", "CFG-1")
def test_engine_without_user_namespace_is_used_only_by_the_dangerous_setting() -> None:
    settings = replace(SETTINGS, backend="container", dangerously_without_user_namespace=True)
    choice = judge_engine(settings, replace(GOOD, has_user_namespace=False))
    user = user_in(choice, settings, uid_offset=7)
    assert user.inside == user.outside
    assert 0 not in user.inside
    with pytest.raises(LayerMissing, match="user namespace"):
        no_setting = replace(settings, dangerously_without_user_namespace=False)
        judge_engine(no_setting, replace(GOOD, has_user_namespace=False))


def test_code_in_a_user_namespace_is_an_unprivileged_user_inside_and_outside() -> None:
    choice = EngineChoice("", has_user_namespace=True, root_ids=(300_000, 300_000))
    user = user_in(choice, SETTINGS, uid_offset=7)
    assert (user.inside, user.outside) == ((1000, 1000), (301_000, 301_000))


@pytest.mark.requirement("ISO-11", "ISO-4")
def test_gvisor_and_a_kernel_without_landlock_are_refused_without_the_dangerous_setting() -> None:
    user = user_in(EngineChoice("", True, None), SETTINGS, uid_offset=0)
    gvisor, container = (replace(SETTINGS, backend=name) for name in ("gvisor", "container"))
    assert container_walls(container, LAYERS, user, open_files=256).landlock_abi == 4
    for settings, layers in ((gvisor, LAYERS), (container, replace(LAYERS, landlock_abi=0))):
        with pytest.raises(LayerMissing, match="Landlock"):
            container_walls(settings, layers, user, open_files=256)
        accepted = replace(settings, dangerously_without_landlock=True)
        assert container_walls(accepted, layers, user, open_files=256).landlock_abi == 0


@pytest.mark.requirement("ISO-4")
def test_host_without_an_engine_is_refused_with_a_hint(tmp_path) -> None:
    with pytest.raises(LayerMissing) as refused:
        find_engine(replace(SETTINGS, engine_socket=str(tmp_path / "none")), {}).facts()
    assert refused.value.code == "CW-LAYER-ENGINE"
    assert "systemctl" in refused.value.hint


# --- the request

SPEC = ContainerSpec(
    image="cellwall-root:1",
    user=(1000, 1000),
    tag="t",
    limits=Limits(),
    join_directory="/state/join",
    workspace=(),
    binds=(ContainerBind("/usr", "/usr"),),
    tmp_bytes=1 << 20,
    shm_bytes=1 << 20,
    file_bytes=10,
    kernel=(6, 1),
    open_files=512,
)


@pytest.mark.requirement("ISO-11", "ISO-1", "ISO-2", "LIM-3")
def test_request_holds_every_wall() -> None:
    request = container_request.container_request(SPEC)
    host = request["HostConfig"]
    assert {name: host[name] for name in ("ReadonlyRootfs", "CapDrop", "NetworkMode", "IpcMode", "CgroupnsMode", "Privileged")} == {
        "ReadonlyRootfs": True, "CapDrop": ["ALL"], "NetworkMode": "none",
        "IpcMode": "private", "CgroupnsMode": "private", "Privileged": False,
    }  # fmt: skip
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["MemorySwap"] == host["Memory"] == Limits().memory_bytes
    assert host["PidsLimit"] == Limits().processes + 1
    assert host["CpuQuota"] == int(Limits().cpus * host["CpuPeriod"])
    assert {"/sys", "/proc/kcore", "/proc/irq"} <= set(host["MaskedPaths"])
    assert all(mount["ReadOnly"] for mount in host["Mounts"])
    assert request["User"] == "1000:1000"
    assert request["Env"] == []
    assert not {"CapAdd", "Devices", "PortBindings", "PidMode", "UsernsMode"} & host.keys()


@pytest.mark.requirement("ISO-5", "ISO-11")
def test_init_of_gvisor_alone_starts_as_root_to_close_itself() -> None:
    request = container_request.container_request(replace(SPEC, closes_init=True))
    assert request["User"] == "0:0"
    assert set(request["HostConfig"]["CapAdd"]) == {"SYS_ADMIN", "SETUID", "SETGID", "SETPCAP"}
    assert request["HostConfig"]["CapDrop"] == ["ALL"]


@pytest.mark.requirement("ISO-11")
def test_podman_gets_the_same_walls_in_its_own_words() -> None:
    host = container_request.container_request(replace(SPEC, profile_path="/p"))["HostConfig"]
    seccomp, masks = host["SecurityOpt"][1:]
    assert seccomp == "seccomp=/p"
    assert masks.removeprefix("mask=").split(":") == host["MaskedPaths"]
    assert "nr_inodes" not in str(host["Tmpfs"])
    docker = container_request.container_request(SPEC)["HostConfig"]
    changed = {name for name in host if host[name] != docker[name]}
    assert changed == {"SecurityOpt", "Tmpfs"}


def test_only_a_private_workspace_is_mounted_for_writing() -> None:
    request = container_request.container_request(
        replace(SPEC, workspace=(ContainerBind("/state/files", "/workspace", is_read_only=False),))
    )
    written = [
        mount["Target"] for mount in request["HostConfig"]["Mounts"] if not mount["ReadOnly"]
    ]
    assert written == ["/workspace"]
    assert "/workspace" not in request["HostConfig"]["Tmpfs"]


def test_settings_that_an_older_kernel_lacks_are_left_out() -> None:
    def names(kernel: tuple[int, int]) -> set[str]:
        request = container_request.container_request(replace(SPEC, kernel=kernel))
        return set(request["HostConfig"]["Sysctls"])

    assert names((4, 10)) == set()
    assert names((6, 1)) == {"net.ipv4.ip_unprivileged_port_start"}
    assert names((6, 8)) == names((6, 1)) | {"net.core.optmem_max"}
    assert len(names((6, 18))) == 3


@pytest.mark.requirement("ISO-6")
def test_profile_of_the_engine_refuses_what_the_filter_refuses_and_leaves_init_its_calls() -> None:
    profile = json.loads(container_request.seccomp_profile())
    refused = {name for entry in profile["syscalls"] for name in entry["names"]}
    assert {"mount", "unshare", "ptrace", "bpf", "keyctl", "io_uring_setup"} <= refused
    assert not refused & {"seccomp", "landlock_create_ruleset", "landlock_restrict_self", "execve"}


def test_image_is_named_by_its_content() -> None:
    root = HostRoot(("/usr",), (("usr/bin", "/bin"),), (), None)
    first = root_image.root_archive(root, b"program", home="/workspace")
    assert first == root_image.root_archive(root, b"program", home="/workspace")
    other = root_image.root_archive(root, b"another", home="/workspace")
    assert root_image.image_name(first) != root_image.image_name(other)


# --- the cgroup that the engine made

_MOUNTS = "".join(
    f"{number} 1 0:{number} / {{base}}/{name} rw - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(("memory", "pids", "cpu"))
)


@pytest.mark.requirement("LIM-3", "ISO-4")
@pytest.mark.parametrize("ignored", [None, "memory", "pids", "cpu"])
def test_limit_that_the_engine_did_not_apply_is_a_refusal(tmp_path, ignored) -> None:
    files = {
        "memory": ("memory.limit_in_bytes", "67108864", str(0x7FFFFFFFFFFFF000)),
        "pids": ("pids.max", "21", "max"),
        "cpu": ("cpu.cfs_quota_us", "100000", "-1"),
    }
    membership = ""
    for number, (name, (file, limited, unlimited)) in enumerate(files.items()):
        directory = tmp_path / name / "docker" / "id"
        directory.mkdir(parents=True)
        (directory / file).write_text(f"{unlimited if name == ignored else limited}\n")
        membership += f"{number}:{name}:/docker/id\n"
    mounts = _MOUNTS.format(base=tmp_path)
    if ignored is None:
        assert container_cell.engine_group(membership, mounts) is not None
        return
    with pytest.raises(LayerMissing, match=ignored) as refused:
        container_cell.engine_group(membership, mounts)
    assert refused.value.code == "CW-LAYER-CGROUP"


@pytest.mark.requirement("ISO-1", "ISO-4")
def test_container_that_shares_a_namespace_with_us_or_is_root_is_a_refusal() -> None:
    own, names = os.getpid(), frozenset(container_cell.NAMESPACES)
    container_cell.check_identity(own, 301_000, names)
    with pytest.raises(LayerMissing, match="root of this host"):
        container_cell.check_identity(own, 0, names)
    for name in names:
        with pytest.raises(LayerMissing, match=name) as refused:
            container_cell.check_identity(own, 301_000, names - {name})
        assert refused.value.code == "CW-LAYER-NAMESPACE"


def test_process_in_no_known_hierarchy_has_no_group() -> None:
    assert container_cell.engine_group("0::/x\n", "") is None
