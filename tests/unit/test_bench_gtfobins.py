"""The measuring script reads pages of the form that GTFOBins has; the pages here are our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "gtfobins.py"
PAGE = """---
functions:
  shell:
  - code: |-
      frobnicate --exec /bin/sh
    contexts:
      suid:
        code: |-
          frobnicate --exec '/bin/sh -p'
      sudo:
  - code: |-
      frobnicate
      !/bin/sh
  file-write:
  - code: |-
      echo DATA >/path/to/temp-file
      frobnicate /path/to/temp-file -o /path/to/output-file
  file-read:
  - code: |-
      frobnicate /path/to/input-file
  upload:
  - code: frobnicate harmless
...
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, os.fspath(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_snippet_is_judged_and_counted(tmp_path: Path):
    (tmp_path / "_gtfobins").mkdir()
    (tmp_path / "_gtfobins" / "frobnicate").write_text(PAGE)
    done = _run(os.fspath(tmp_path), "--list")
    assert done.returncode == 0, done.stderr
    counts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[:9])
    assert counts["shell"].split() == ["0", "of", "3", "pass"]
    assert counts["file-write"].split() == ["0", "of", "1", "pass"]
    assert counts["file-read"].split() == ["0", "of", "1", "pass"]
    assert counts["upload"].split() == ["1", "of", "1", "pass"]
    assert "frobnicate harmless" in done.stdout


def test_a_missing_checkout_is_told_plainly(tmp_path: Path):
    done = _run(os.fspath(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "is missing; clone GTFOBins/GTFOBins.github.io" in done.stderr
