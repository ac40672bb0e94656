"""System calls that take walls down, and files that would outlive them (ISO-6)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import (
    ORDINARY_UID,
    WHO,
    Verdicts,
    attack_names,
    inside,
    judge,
    outside,
    throwaway,
)
from conftest import need

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("kernel_calls"))
@pytest.mark.table("name")
def test_call_that_takes_walls_down_is_refused(
    name: str, who: str, path: str, remember: Remember
) -> None:
    control = remember(
        "kernel_calls", lambda: outside("kernel_calls", prefix=throwaway(), disposable=True)
    )
    verdicts = remember(
        ("kernel_calls", who, path), lambda: inside("kernel_calls", who=who, options={})
    )
    judge(name, control, verdicts)


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("set_id"))
@pytest.mark.table("name")
def test_no_set_id_file_and_no_device_node_can_be_made(
    name: str, who: str, path: str, remember: Remember
) -> None:
    control = remember("set_id", lambda: outside("set_id", prefix=throwaway(), disposable=True))
    verdicts = remember(("set_id", who, path), lambda: inside("set_id", who=who, options={}))
    judge(name, control, verdicts)


@pytest.mark.requirement("ISO-6")
def test_no_set_id_file_reaches_a_read_write_workspace(tmp_path: Path) -> None:
    inside(
        "set_id",
        who="as-root" if os.geteuid() == 0 else "as-ordinary-user",
        options={"workspace": f"{tmp_path}:rw"},
        directory="/workspace",
    )
    modes = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    # Some attacks make the file first and then fail to mark it: those files must be there.
    assert len(modes) >= 5, modes
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o6000} == {}


@pytest.mark.requirement("ISO-6")
def test_set_uid_program_in_the_workspace_gives_nobody_root(open_folder: Path) -> None:
    need(os.geteuid() == 0, "root")
    program = open_folder / "whoami"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    control = subprocess.run(
        [program, "-u"], user=ORDINARY_UID, group=ORDINARY_UID, capture_output=True, check=True
    )
    assert control.stdout == b"0\n", "outside, the program makes root of anybody"

    for mode in ("ro", "rw", "cow"):
        with cellwall.Sandbox.create(workspace=f"{open_folder}:{mode}") as sandbox:
            ran = sandbox.commands.run(["/workspace/whoami", "-u"])
        assert (ran.exit_code, ran.stdout) == (0, "1000\n"), mode


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("program", ["su", "mount", "umount", "passwd"])
def test_set_uid_program_of_the_host_stays_unprivileged(program: str) -> None:
    path = shutil.which(program)
    need(path and os.stat(path).st_mode & 0o4000, f"a set-uid {program}")
    ran = cellwall.run_code(
        "import os, subprocess\n"
        # Stopped before its main function, so that what the kernel made of it can be read.
        f"child = subprocess.Popen(['/bin/sh', '-c', 'kill -STOP $$; exec {path} --help'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "os.waitpid(child.pid, os.WUNTRACED)\n"
        "os.kill(child.pid, 18)\n"
        "seen = os.wait4(child.pid, 0)\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "[os.stat(" + repr(path) + ").st_mode & 0o4000, os.geteuid(),"
        " [line.split()[1] for line in lines if line.startswith('NoNewPrivs')]]\n"
    )
    assert (ran.status.value, ran.value) == ("ok", [0o4000, 1000, ["1"]])
