"""bubblewrap's command line: every namespace, no capability that is not named (ISO-1)."""

from __future__ import annotations

import pytest

from cellwall.sandbox.linux import outer_wall
from cellwall.sandbox.linux.visible_host import HostRoot

ROOT = HostRoot(("/usr", "/lib64"), (("usr/bin", "/bin"),), ("services",), None)


def words(
    *, layers: bool = False, egress: bool = False, binds: tuple[outer_wall.Bind, ...] = ()
) -> list[str]:
    return outer_wall.arguments(
        "/usr/bin/bwrap",
        ROOT,
        binds=binds,
        layers=layers,
        egress=egress,
        command=("/init", "1"),
    )


def values(line: list[str], option: str) -> list[str]:
    return [line[at + 1] for at, word in enumerate(line) if word == option]


@pytest.mark.requirement("ISO-1")
def test_every_namespace_is_new_and_dies_with_its_parent() -> None:
    line = words()
    wanted = {f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup")}
    assert wanted <= set(line)
    assert {"--die-with-parent", "--new-session", "--as-pid-1"} <= set(line)
    assert not any(word.endswith("-try") or word.startswith("--share") for word in line)


@pytest.mark.requirement("ISO-1")
def test_all_capabilities_are_dropped_before_the_three_that_init_needs() -> None:
    line = words()
    assert values(line, "--cap-drop") == ["ALL"]
    assert line.index("--cap-drop") < line.index("--cap-add")
    assert values(line, "--cap-add") == [
        *("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_RESOURCE", "CAP_SETPCAP")
    ]


def test_layers_bring_only_the_capabilities_of_overlayfs() -> None:
    extra = set(values(words(layers=True), "--cap-add")) - set(values(words(), "--cap-add"))
    assert extra == {"CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER"}


@pytest.mark.requirement("NET-1")
def test_only_a_cell_with_egress_may_bind_low_ports() -> None:
    line = words(egress=True)
    extra = set(values(line, "--cap-add")) - set(values(words(), "--cap-add"))
    assert extra == {"CAP_NET_BIND_SERVICE"}
    assert "--unshare-net" in line


@pytest.mark.requirement("ISO-2")
def test_the_host_is_bound_read_only_and_only_a_given_directory_may_be_written() -> None:
    binds = (
        outer_wall.Bind("/a", "/workspace", read_only=False),
        outer_wall.Bind("/b", "/opt/x", read_only=True),
    )
    line = words(binds=binds)
    assert values(line, "--bind") == ["/a"]
    assert {"/usr", "/lib64", "/etc", "/b"} == set(values(line, "--ro-bind"))


def test_a_hostile_name_stays_one_word_and_the_command_stands_behind_the_mark() -> None:
    line = words(binds=(outer_wall.Bind("--bind / /", "/workspace", read_only=True),))
    assert line[-3:] == ["--", "/init", "1"]
    assert line[line.index("--bind / /") - 1] == "--ro-bind"
