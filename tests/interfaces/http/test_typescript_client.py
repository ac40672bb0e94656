"""The TypeScript client of `clients/typescript`, run by Node against a running service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clients.typescript import generate

from conftest import need
from interfaces.http.running_service import RunningService

MODULES = generate.HERE / "node_modules"


def need_packages() -> None:
    ready = shutil.which("node") is not None and (MODULES / ".bin/tsc").exists()
    need(ready and generate.PROGRAM.exists(), "the npm packages of the TypeScript client (./dev test installs them)")  # fmt: skip


def compile_client(*options: str) -> None:
    command = [str(MODULES / ".bin/tsc"), "--project", str(generate.HERE), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.requirement("INT-1")
def test_client_uses_a_sandbox(service: RunningService, tmp_path: Path):
    need_packages()
    package = tmp_path / "node_modules/@cellwall/client"
    compile_client("--noCheck", "--declaration", "false", "--outDir", str(package / "dist"))
    shutil.copy(generate.HERE / "package.json", package)
    (tmp_path / "node_modules/openapi-fetch").symlink_to(MODULES / "openapi-fetch")
    program = tmp_path / "client.mjs"  # beside the packages: Node resolves imports from there
    shutil.copy(Path(__file__).with_name("typescript_client.mjs"), program)
    environ = {
        **os.environ,
        "CELLWALL_URL": f"{service.url}/",
        "CELLWALL_TOKEN": service.tokens["user"],
    }
    done = subprocess.run(
        ["node", str(program)], env=environ, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr
    refused = [True, "string", "string"]  # message, hint, the id of the record, which may be ""
    assert json.loads(done.stdout) == {
        "value": 21,
        "failed": "failed",
        "command": ["failed", 3, "out\n", "err\n"],
        "list": "a b $HOME\n",
        "streamed": {"stdout": "one\nzwölf\n", "names": ["outcome"], "status": "ok"},
        "streamedCode": ["stdout", "outcome"],
        "bytes": [0, 255, 10, 128],
        "text": "grüße",
        "root": [["data", "dir"]],
        "entries": ["ü ?#%.bin"],
        "same": True,
        "parent": ["CW-PATH-INVALID", 400, *refused],
        "missing": ["CW-NOT-FOUND", 404, *refused],
        "restored": ["kept", 20],
        "forked": "kept",
        "snapshots": 1,
        "connected": 20,
        "aborted": "TimeoutError",
        "listed": True,
        "killed": ["CW-NOT-FOUND", 404, *refused],
        "badId": ["CW-BAD-INPUT", 0, *refused],
        "badOption": ["CW-BAD-INPUT", 400, *refused],
        "badToken": ["CW-SIGN-IN-TOKEN", 401, *refused],
        "badStream": ["CW-NOT-FOUND", 404, *refused],
        "unreachable": ["CW-UNREACHABLE", 0, *refused],
        "api": 200,
    }


@pytest.mark.long
def test_client_has_the_types_of_the_api_and_no_type_errors():
    """openapi-typescript and strict tsc, which take seconds of a processor."""
    need_packages()
    assert generate.types() == generate.SCHEMA.read_text("utf-8")
    compile_client("--noEmit")
