"""The host check inside a container with the default settings of a real Docker: the exact cause."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.sandbox.containers.docker_daemon import docker_daemon

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[4]
IMAGE = "cellwall-host-test"
UID = 1000


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with docker_daemon() as path:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as image:
            for name in ("tmp", "proc", "sys", "dev", "etc"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                image.addfile(entry)
            for name in ("bin", "sbin", "lib", "lib64"):
                if os.path.islink(f"/{name}"):
                    entry = tarfile.TarInfo(name)
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                    image.addfile(entry)
            users = f"root:x:0:0::/root:/bin/sh\nagent:x:{UID}:{UID}::/state:/bin/sh\n".encode()
            entry = tarfile.TarInfo("etc/passwd")
            entry.size = len(users)
            image.addfile(entry, io.BytesIO(users))
        command = ["docker", "--host", f"unix://{path}", "import", "-", IMAGE]
        subprocess.run(command, input=archive.getvalue(), check=True, capture_output=True)
        yield path


def found(socket: str, *options: str) -> dict[str, dict[str, str]]:
    """The checks of `cellwall doctor` in a container."""
    state = f"/state:mode=700,uid={UID}"
    command = [
        "docker", "--host", f"unix://{socket}", "run", "--rm", "--network", "none",
        "--volume", "/usr:/usr:ro", "--volume", f"{ROOT}:{ROOT}:ro", "--volume", f"{sys.prefix}:{sys.prefix}:ro",
        "--volume", "/etc/ld.so.cache:/etc/ld.so.cache:ro", "--user", str(UID), "--tmpfs", state,
        "--env", "CELLWALL_HOME=/state", "--env", "HOME=/state", *options, IMAGE,
        f"{sys.prefix}/bin/cellwall", "doctor", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=False, timeout=200)
    assert done.stdout, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert "checks" in report, report.get("error")
    return {check["name"]: check for check in report["checks"]}


@pytest.mark.requirement("ISO-12", "ISO-4")
def test_each_option_of_docker_that_is_missing_is_named_in_turn(socket: str) -> None:
    option, seccomp, paths = "--security-opt", "seccomp=unconfined", "systempaths=unconfined"
    default = found(socket)
    assert default["user namespaces"]["status"] == "missing"
    assert "the seccomp filter of this container" in default["user namespaces"]["found"]
    assert f"{option} {seccomp}" in default["user namespaces"]["hint"]
    assert default["cgroup"]["found"] == "a container gives an ordinary user no cgroup of its own"
    assert "dangerously_without_cgroup" in default["cgroup"]["hint"]
    masked = found(socket, option, seccomp)["user namespaces"]
    assert "parts of /proc are masked in this container" in masked["found"]
    assert f"{option} {paths}" in masked["hint"]
    opened = found(socket, option, seccomp, option, paths, option, "apparmor=unconfined")
    assert opened["user namespaces"]["status"] == "ok"
