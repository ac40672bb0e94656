"""Two builds of the same sources are the same bytes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_two_builds_in_different_folders_are_the_same_bytes(tmp_path: Path) -> None:
    need(shutil.which("git"), "git")
    need((ROOT / ".tools/uv/bin/uv").exists() or shutil.which("uv"), "uv")
    made = []
    for name in ("one", "two"):
        clone = tmp_path / name / "longer-path-of-the-second-clone"[: 8 * len(made) + 5]
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        if (ROOT / ".tools").exists():
            (clone / ".tools").symlink_to(ROOT / ".tools")
        out = tmp_path / f"dist-{name}"
        options = ["--out", out, "--platform", f"manylinux_2_28_{platform.machine()}"]
        subprocess.run(
            [sys.executable, "-m", "release.build", "--dry-run", "--no-smoke", *options],
            cwd=clone,
            check=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=550,
        )
        made.append((out / "SHA256SUMS").read_text("ascii"))
    assert made[0] == made[1]
    assert len(made[0].splitlines()) == 3
