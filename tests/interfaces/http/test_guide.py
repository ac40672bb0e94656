"""The examples of docs/guides/http.md run as they are written, with curl and with httpx."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need
from interfaces.http.running_service import DEADLINE_S, RunningService

pytestmark = pytest.mark.requirement("SRV-1")
GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/http.md"


def example(language: str) -> str:
    """The first example of the section about sandboxes in this language."""
    section = GUIDE.read_text(encoding="utf-8").partition("## Sandboxes")[2]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def run(service: RunningService, folder: Path, *command: str) -> str:
    own = {"URL": service.url, "TOKEN": service.tokens["user"], "PATH": os.environ["PATH"]}
    done = subprocess.run(
        command, cwd=folder, env=own, capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def test_the_lines_with_curl(service: RunningService, tmp_path: Path) -> None:
    need(shutil.which("curl"), "curl")
    (tmp_path / "data.csv").write_text("a,b\n")
    # -f: an error of HTTP is one of curl.
    lines = example("sh").replace("curl -s", "curl -fsS")
    said = run(service, tmp_path, "sh", "-ec", lines)
    code, end = json.JSONDecoder().raw_decode(said)  # curl puts nothing between the answers
    command, _ = json.JSONDecoder().raw_decode(said, end)
    assert (code["status"], code["value"]) == ("ok", 21)
    assert command["status"] == "ok"


def test_the_program_with_httpx(service: RunningService, tmp_path: Path) -> None:
    said = run(service, tmp_path, sys.executable, "-c", example("python"))
    first, *events = said.splitlines()
    assert first == "ok 21"
    assert "event: stdout" in events
    assert events[-2].startswith('data: {"status":"ok"')
