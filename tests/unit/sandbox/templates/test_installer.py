"""A pip that is confined writes in one directory, whatever it is told to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cellwall.sandbox import languages
from cellwall.sandbox.templates import installer
from unit.sandbox import tiny_template

WORDS = (*installer.PIP_WORDS, "--no-cache-dir", "--no-index", "--no-deps")


@pytest.mark.slow
def test_a_confined_pip_writes_in_its_directory_alone(tmp_path: Path) -> None:
    tiny_template.wheel(tmp_path)
    (inside := tmp_path / "inside").mkdir()
    (inside / "away").symlink_to(tmp_path)
    wheel = str(tmp_path / "tiny-1.0-py3-none-any.whl")
    env = {"TMPDIR": str(inside), "PIP_CONFIG_FILE": "/dev/null", "PATH": "/usr/bin:/bin"}
    found = installer.guarded_pips(languages.python_outside(), WORDS, only_in=str(inside))
    program = installer.find_working_installer(found, env)

    def install(target: Path) -> subprocess.CompletedProcess[str]:
        words = [*program, "--target", str(target), wheel]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    for elsewhere in (tmp_path / "outside", inside / "away" / "outside"):
        done = install(elsewhere)
        assert done.returncode != 0
        assert installer.WRITE_REFUSED in done.stdout + done.stderr
        assert not (tmp_path / "outside").exists()
    done = install(inside / "site")  # the control
    assert done.returncode == 0, done.stderr
    assert (inside / "site" / "tiny" / "__init__.py").exists()
