"""Everything at once: many writers, kills, a full disk, new segments (AUD-1, AUD-2, AUD-3)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need
from unit.audit import disk_storm


@pytest.mark.requirement("AUD-1", "AUD-2", "AUD-3")
@pytest.mark.slow
def test_killed_writers_on_a_full_disk_lose_and_fork_nothing(tmp_path: Path) -> None:
    need(shutil.which("unshare") and shutil.which("mount"), "unshare and mount")
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    disk = 'mount -t tmpfs -o size=24m,mode=0700 none "$1"'
    shell = ["unshare", *flags, "sh", "-c"]
    probe = subprocess.call([*shell, disk, "sh", str(tmp_path)], stderr=subprocess.DEVNULL)
    need(probe == 0, "a small disk of one's own")
    ended = subprocess.run(
        [
            *(*shell, disk + ' && exec "$2" "$3" "$1"'),
            *("sh", str(tmp_path), sys.executable, disk_storm.__file__),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])
    assert seen.pop("written") > 100, seen
    assert seen.pop("refused") > 0, "the disk was never full"
    assert seen.pop("max_descriptors") < 32
    assert seen == {
        "verified": True,
        "reason": "",
        "in_order": True,
        "lost": [],
        "refused_but_there": 0,
        "twice": [],
        "has_recovered": True,
    }
