"""A project's own `.venv/bin` before all else in PATH: none of its programs runs outside (ISO-13)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.requirement("ISO-13")

NAMES = (
    *("bwrap", "systemd-run", "node", "nodejs", "deno", "uv", "git", "shfmt", "sh", "bash"),
    *("python3", "pip", "cat", "unshare", "newuidmap", "cellwall-cell"),
)
_USE = """
import os, sys
import cellwall
from cellwall.sandbox import (doctor, languages)
from cellwall.sandbox.templates import uv_program
from cellwall.secrets.keys import run_key_command
from cellwall.core.errors import CellwallError
print(cellwall.run_code("6 * 7").value, cellwall.run_command("echo inside").stdout.strip())
with cellwall.Sandbox.create() as sandbox:
    print(sandbox.run_code("1 + 1").value)
for language in ("javascript", "typescript", "shell"):
    try: cellwall.run_code("echo 1" if language == "shell" else "1", language=language)
    except CellwallError: pass
doctor.gather(weakened=())
print(cellwall.Policy.load(os.environ["POLICY"]).check("Bash(ls -l)").verdict.name)
print("uv", os.listdir(uv_program.folder(os.environ["CELLWALL_HOME"])))
try: run_key_command(("cat", "/etc/hostname"))
except CellwallError: pass
"""


def test_no_program_of_a_search_path_is_started(tmp_path: Path, state_home: str) -> None:
    folder, mark = tmp_path / "project/.venv/bin", tmp_path / "started"
    folder.mkdir(parents=True)
    for name in NAMES:
        fake = folder / name
        fake.write_text(f"#!/bin/dash\necho {name} >> {mark}\nexit 1\n")
        fake.chmod(0o755)
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\nallow = ["Bash(ls *)"]\n')
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "POLICY": str(policy),
    }
    # The control: by PATH, each of them would be.
    subprocess.run(
        ["/bin/dash", "-c", "; ".join(f"{name} </dev/null" for name in NAMES)],
        env=environment,
        cwd=folder,
        check=False,
    )
    assert mark.read_text().split() == list(NAMES)
    mark.unlink()
    done = subprocess.run(
        [sys.executable, "-c", _USE],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["42 inside", "2", "ALLOW"]
    assert not mark.exists(), mark.read_text()
    assert str(folder) not in done.stdout
