"""`./dev`, started from anywhere and under any name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

DEV = Path(__file__).parents[2] / "dev"


@pytest.mark.parametrize("command", [[], ["help"], ["no-such-command"]])
def test_help_is_shown_from_another_directory_and_through_a_link(tmp_path, command):
    link = tmp_path / "my 'dev"
    link.symlink_to(DEV)
    for name in (os.path.relpath(DEV, tmp_path), "./my 'dev", str(DEV)):
        done = subprocess.run(
            ["sh", name, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == (2 if command == ["no-such-command"] else 0)
        assert (done.stderr, "./dev run [ARGS…]" in done.stdout) == ("", True)
