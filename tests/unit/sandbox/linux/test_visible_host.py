"""What of the host is shown: programs and their data, nothing of persons or services (ISO-2)."""

from __future__ import annotations

import os

import pytest

from cellwall.sandbox.linux import visible_host

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
    tops = {path.split("/")[1] for path in visible_host.survey().binds}
    assert tops & set(NEVER) == set()
    assert "usr" in tops


@pytest.mark.requirement("ISO-2")
def test_nothing_secret_of_etc_is_taken_over() -> None:
    taken = visible_host.survey().etc
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
    assert name in visible_host.PROC_HIDDEN
    assert "sys" in visible_host.PROC_READ_ONLY


def test_accounts_inside_are_made_up() -> None:
    for text in (visible_host.PASSWD.format(home="/workspace"), visible_host.GROUP):
        assert [line.split(":")[0] for line in text.splitlines()] == ["root", "sandbox"]


def test_devices_are_the_harmless_ones() -> None:
    assert set(visible_host.DEVICES) == {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")
    }
