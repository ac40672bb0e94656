"""Attacks on single runs of the SDK in the supervisor: nobody gets more, or less, by that way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import cellwall
from cellwall import run_code, run_command
from cellwall.sandbox.linux._syscalls import landlock_abi
from conftest import need
from interfaces.both_ways import records

pytestmark = pytest.mark.only_on("warm", reason="how the cell is made is the supervisor's affair")
_KNOWN = "only the vault knows this value"


# What the caller's process has, and the supervisor has not


@pytest.mark.requirement("GRD-5", "SEC-2")
def test_values_of_a_vault_that_the_caller_has_open_are_redacted(own_ways, own_supervisor):
    words = ["echo", _KNOWN]
    assert run_command(words).stdout == f"{_KNOWN}\n"  # the control: nobody knows it
    assert own_ways.taken == [True]
    with cellwall.Vault.open(create=True, key="file") as vault:
        vault.set("TOKEN", _KNOWN)
        assert _KNOWN not in run_command(words).stdout
        assert _KNOWN not in json.dumps(records(2))
        assert own_ways.taken == [True]
    run_command(["true"])
    assert own_ways.taken == [True, True]


class Lines(list[str]):
    """A sink that counts as false until it has heard something."""

    def __call__(self, text: str) -> None:
        self.append(text)


def test_a_callback_that_counts_as_false_gets_the_output(ways):
    heard, alone = Lines(), Lines()
    run_command("echo on", on_stdout=heard)
    ways.alone(lambda: run_command("echo on", on_stdout=alone))
    assert heard == alone == ["on\n"]
    assert ways.taken == [True]


@pytest.mark.requirement("ISO-8")
def test_an_error_of_cellwall_in_a_callback_is_the_caller_s(ways):
    """A callback that starts a run of its own, and that run is refused."""

    def fail(_text: str) -> None:
        raise cellwall.Busy("mine")

    for call in (run_command, lambda *a, **k: ways.alone(lambda: run_command(*a, **k))):
        with pytest.raises(cellwall.Busy, match="mine"):
            call("echo 1; sleep 60", on_stdout=fail, timeout=100)
        assert records(1)[0]["body"]["status"] == "interrupted"
    assert ways.taken == [True]


def test_a_callback_may_run_something_itself(ways):
    def both() -> list[object]:
        found: list[object] = []
        run_command("echo on", on_stdout=lambda _: found.append(run_code("6 * 7").value))
        return found

    assert both() == ways.alone(both) == [42]
    assert ways.taken == [True, True]


# Names that mean something else in each process


@pytest.mark.requirement("FS-2")
@pytest.mark.parametrize("form", ["/proc/self/fd/{}/in", "/dev/fd/{}/in:ro", "/proc/self/cwd/in"])
def test_a_descriptor_is_the_caller_s(ways, tmp_path, monkeypatch, form):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "mine").touch()
    monkeypatch.chdir(tmp_path)
    opened = os.open(tmp_path, os.O_PATH)
    try:
        assert run_command(["ls"], workspace=form.format(opened)).stdout == "mine\n"
    finally:
        os.close(opened)
    assert run_command(["ls"], workspace=str(tmp_path / "in")).stdout == "mine\n"  # the control
    assert ways.taken == [False, True]


@pytest.mark.requirement("POL-9")
def test_labels_belong_to_the_directory_of_the_caller(ways, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    run_command(["true"], workspace="in")
    there = records(2)
    ways.alone(lambda: run_command(["true"], workspace="in"))
    assert there == records(2)
    (source,) = there[0]["body"]["labels"]["private"]
    assert source["source"] == f"files of {tmp_path}/in"
    assert ways.taken == [True]


@pytest.mark.requirement("POL-7")
def test_a_policy_or_configuration_by_descriptor_is_the_caller_s(ways, supervisor, tmp_path):
    policy, settings = tmp_path / "policy.toml", tmp_path / "settings.toml"
    policy.write_text('[permissions]\nallow = ["Bash(echo *)"]\n')
    base = (supervisor.home / "cellwall.toml").read_text()
    settings.write_text(f"{base}\n[limits]\nwall_s = 0.3\n")
    for path in (policy, settings):
        path.chmod(0o600)
    with policy.open() as rules, settings.open() as limits:
        words = f"/proc/self/fd/{rules.fileno()}"
        assert run_command(["touch", "x"], policy=words).status == "denied"
        assert run_command(["echo", "x"], policy=words).status == "ok"
        given = f"/proc/self/fd/{limits.fileno()}"
        assert run_command(["sleep", "60"], config=given).limit == "wall"
    assert ways.taken == [False] * 3
    assert run_command(["touch", "x"], policy=str(policy)).status == "denied"  # the control
    assert ways.taken[3:] == [True]


@pytest.mark.requirement("FS-2")
def test_a_directory_under_another_one_is_the_caller_s(ways, tmp_path, monkeypatch):
    """A later mount hides the caller's working directory from everybody who comes by its name."""
    need(os.geteuid() == 0, "root, to mount")
    place = tmp_path / "place"
    place.mkdir()
    (place / "mine").touch()
    monkeypatch.chdir(place)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    try:
        assert run_command(["ls"], workspace=".").stdout == "mine\n"
        assert ways.taken == [False]
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert run_command(["ls"], workspace=".").stdout == "mine\n"
    assert ways.taken == [False, True]


# Files that a runtime reads once


@pytest.mark.requirement("CFG-2")
def test_a_configuration_with_the_old_time_of_change_is_read_again(own_ways, own_supervisor):
    file = own_supervisor.home / "cellwall.toml"
    base = file.read_text()
    file.write_text(f"{base}\n[limits]\nwall_s = 60.5\n")
    before = file.stat()
    assert run_command(["sleep", "1"]).status == "ok"
    with file.open("r+") as opened:
        opened.write(f"{base}\n[limits]\nwall_s = 0.25\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert run_command(["sleep", "1"]).limit == "wall"
    assert own_ways.taken == [True, True]


@pytest.mark.requirement("GRD-5")
def test_a_changed_file_of_secret_patterns_is_read_again(own_ways, own_supervisor, tmp_path):
    rules, file = tmp_path / "team.toml", own_supervisor.home / "cellwall.toml"

    def look_for(pattern: str) -> None:
        rules.write_text(f"[[rules]]\nid = \"team-token\"\nregex = '''{pattern}'''\n")
        rules.chmod(0o600)

    look_for("nothing-[0-9]{6}")
    file.write_text(f'{file.read_text()}\n[guard]\nsecret_rule_files = ["{rules}"]\n')
    assert run_command(["echo", "team-123456"]).stdout == "team-123456\n"
    look_for("team-[0-9]{6}")
    assert "team-123456" not in run_command(["echo", "team-123456"]).stdout
    assert own_ways.taken == [True, True]


# Callers that have given up rights


_CONFINED = """
import ctypes, os, sys, cellwall
from cellwall.runtime import wiring
libc, run = ctypes.CDLL(None, use_errno=True), cellwall.run_command
place, is_confined = sys.argv[1], sys.argv[2] == "confined"
if is_confined:  # no directory may be listed; as root, and so without `no_new_privs`
    rules = ctypes.create_string_buffer((1 << 3).to_bytes(8, "little"), 8)
    ruleset = libc.syscall(444, rules, 8, 0)
    assert ruleset >= 0 and libc.syscall(446, ruleset, 0) == 0
    try:
        print(os.listdir(place))
    except PermissionError:
        print("confined")
wiring.shared_app = lambda *_: sys.exit("runs here")
print(run(["ls"], workspace=place).stdout.strip())
"""


@pytest.mark.requirement("ISO-10")
def test_landlock_of_the_caller_is_not_left_behind(ways, tmp_path):
    need(os.geteuid() == 0 and landlock_abi() > 0, "root, and Landlock")
    (tmp_path / "secret").touch()

    def found(how: str) -> tuple[str, str]:
        words = [sys.executable, "-c", _CONFINED, str(tmp_path), how]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout, done.stderr.strip()

    assert found("free") == ("secret\n", "")  # the control: the supervisor takes it
    assert found("confined") == ("confined\n", "runs here")
