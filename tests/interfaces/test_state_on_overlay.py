"""A state folder on an overlay, as in a container: copy-on-write is refused with the hint."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import need

_ON_OVERLAY = """
mkdir lower upper work merged && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged &&
exec "$@"
"""
_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")


@pytest.mark.requirement("ISO-12")
def test_copy_on_write_says_that_the_state_folder_has_to_move(tmp_path):
    need(os.geteuid() == 0, "root, to mount an overlay")
    (tmp_path / "given").mkdir()

    def run(workspace: str) -> subprocess.CompletedProcess[str]:
        scratch = tmp_path / workspace
        scratch.mkdir()
        words = [_PROGRAM, "run", "--workspace", f"{tmp_path}/given:{workspace}", "--", "ls"]
        environ = {**os.environ, "CELLWALL_HOME": str(scratch / "merged/home")}
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", _ON_OVERLAY, "sh", *words],
            cwd=scratch, env=environ, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    assert run("ro").returncode == 0
    refused = run("cow")
    assert refused.returncode == 125
    assert "CW-LAYER-OVERLAY" in refused.stderr
    assert "CELLWALL_HOME" in refused.stderr
