"""Shims work whatever descriptors the supervisor has open, and name what the host refuses."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.linux.outside_processes import CellShim, PlaceholderReaper
from cellwall.sandbox.linux.plan import Plan
from conftest import need


@pytest.mark.slow
@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("held", [0, 40, 61, 70, 90, 300])
def test_a_supervisor_with_any_number_of_open_descriptors_can_run(held):
    # Numbers of descriptors sent to the shim must not collide with its own socket.
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
    try:
        assert [cellwall.run_command(["echo", "hi"]).stdout for _ in range(3)] == ["hi\n"] * 3
    finally:
        for descriptor in kept:
            os.close(descriptor)


@pytest.fixture
def no_core_files() -> Iterator[None]:
    """A soft limit of 0, at which the kernel starts the program of core_pattern, core(5).

    A vault that was opened in this process before has lowered its hard limit to 1 for good.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    need(hard != 0, "a limit of core files that can be set to 1")
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.requirement("ISO-7")
@pytest.mark.usefixtures("no_core_files")
def test_a_crash_of_what_the_shim_starts_starts_no_program_of_the_host(tmp_path: Path):
    """Of the emulator of a virtual machine, too, which has no init on this host."""
    asks = "import resource, sys; print(resource.getrlimit(4), file=open(sys.argv[1], 'w'))"
    free, held = tmp_path / "free", tmp_path / "held"
    command = [sys.executable, "-I", "-S", "-c", asks]
    subprocess.run([*command, str(free)], check=True)
    assert free.read_text().startswith("(0, ")  # the control
    shim = CellShim(tag="test")
    try:
        assert ready_to_read(shim, timeout_s=60)
        assert shim.receive() == ["hello"]
        plan = Plan()
        plan.step("exec", *command, str(held))
        shim.begin(plan.encode(), [])
        assert ready_to_read(shim, timeout_s=60)
        assert shim.receive() == ["ended", "0"]
        shim.release()
    finally:
        shim.close()
    assert held.read_text() == "(1, 1)\n"


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("bwrap: No permissions to create new namespace, …", "CW-LAYER-USERNS"),
        ("bwrap: setting up uid map: Permission denied", "CW-LAYER-USERNS"),
        ("bwrap: Creating new namespace failed: No space left on device", "CW-LAYER-USERNS"),
        ("bwrap: Can't mount proc", "CW-SANDBOX-BUILD"),
        ("", "CW-SANDBOX-BUILD"),
    ],
)
def test_a_host_without_user_namespaces_is_told_with_its_hint(said: str, code: str):
    shim = CellShim.__new__(CellShim)
    shim._diagnostics, write = os.pipe()
    os.write(write, said.encode())
    os.close(write)
    try:
        error = shim.failure("bubblewrap")
    finally:
        os.close(shim._diagnostics)
    assert (error.code, "cellwall doctor" in error.hint) == (code, True)
    assert said not in error.message or not said  # bubblewrap's own words are for the record


def test_the_line_to_the_reaper_ends_with_its_owner_and_without_a_warning():
    reaper = PlaceholderReaper()
    numbers = [reaper.life_fd, reaper._theirs.fileno()]
    del reaper  # a warning would be an error here
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
