"""The unmodified E2B SDK of npm, run by Node against a running service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import need
from interfaces.http.running_service import RunningService

PLACE = Path(__file__).parents[3] / ".tools/e2b"


@pytest.mark.requirement("INT-2")
def test_node_sdk_uses_a_sandbox(service: RunningService, tmp_path: Path):
    node = shutil.which("node")
    need(node is not None and (PLACE / "node_modules/@e2b").exists(), "the E2B SDK for Node (./dev test installs it)")  # fmt: skip
    (tmp_path / "node_modules").symlink_to(PLACE / "node_modules")
    program = tmp_path / "client.mjs"  # beside the packages: Node resolves imports from there
    program.write_text(Path(__file__).with_name("node_client.mjs").read_text())
    url = f"{service.url}/e2b"
    environ = {
        **os.environ,
        "E2B_API_KEY": service.tokens["user"],
        "E2B_API_URL": url,
        "E2B_SANDBOX_URL": url,
    }
    done = subprocess.run(
        [str(node), str(program)], env=environ, capture_output=True, text=True, timeout=55, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "code": "21",
        "error": "ZeroDivisionError",
        "command": ["out\n", "err\n", 0],
        "exit": "CommandExitError",
        "read": "hello",
        "missing": "FileNotFoundError",
        "paths": ["/workspace/a.txt"],
        "changed": "b",
        "stdin": "typed\n",
        "terminal": True,
        "contexts": 1,
        "listed": 1,
        "killed": True,
        "isRunning": False,
        "wrongKey": "AuthenticationError",
    }
