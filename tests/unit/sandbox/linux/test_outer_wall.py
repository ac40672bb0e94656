"""What of the host is shown: programs and their data, nothing of persons or services (ISO-2).

bubblewrap's command line: every namespace, no capability that is not named (ISO-1).
"""

from __future__ import annotations

import os

import pytest

from cellwall.sandbox.linux import outer_wall

NEVER = (
    "root",
    "home",
    "run",
    "var",
    "srv",
    "opt",
    "boot",
    "sys",
    "mnt",
    "media",
    "tmp",
    "proc",
    "dev",
    "etc",
)


@pytest.mark.requirement("ISO-2")
def test_no_directory_of_persons_or_services_is_shown_whole() -> None:
    tops = {path.split("/")[1] for path in outer_wall.survey().binds}
    assert tops & set(NEVER) == set()
    assert "usr" in tops


@pytest.mark.requirement("ISO-2")
def test_nothing_secret_of_etc_is_taken_over() -> None:
    taken = outer_wall.survey().etc
    secret = {
        "shadow",
        "gshadow",
        "passwd",
        "group",
        "sudoers",
        "ssh",
        "ssl",
        "ssl/private",
        "machine-id",
        "hostname",
        "hosts",
    }
    assert set(taken) & secret == set()
    assert not any(name.startswith(("/", "..", "ssl/private")) or ".." in name for name in taken)
    assert all(os.path.exists(f"/etc/{name}") for name in taken)


@pytest.mark.requirement("ISO-2")
@pytest.mark.parametrize(
    "name",
    ["kcore", "kallsyms", "keys", "kmsg", "sysrq-trigger", "irq", "bus", "cmdline", "timer_list"],
)
def test_the_dangerous_parts_of_proc_are_covered(name: str) -> None:
    assert name in outer_wall.PROC_HIDDEN
    assert "sys" in outer_wall.PROC_READ_ONLY


def test_accounts_inside_are_made_up() -> None:
    for text in (outer_wall.PASSWD.format(home="/workspace"), outer_wall.GROUP):
        assert [line.split(":")[0] for line in text.splitlines()] == ["root", "sandbox"]


def test_devices_are_the_harmless_ones() -> None:
    assert set(outer_wall.DEVICES) == {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")
    }


ROOT = outer_wall.HostRoot(("/usr", "/lib64"), (("usr/bin", "/bin"),), ("services",), None)


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
