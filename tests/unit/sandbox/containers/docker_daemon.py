"""A real Docker daemon for one test module, with state of its own, in a mount namespace of its own.

Nothing of the host's is changed: /etc/subuid and /etc/subgid, from which the daemon takes the ids of
containers, are replaced in that namespace alone.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cellwall.core.errors import CellwallError
from cellwall.sandbox.containers.engine import Engine
from conftest import need

_OPTIONS = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=overlay2")
_SCRIPT = """
mount --bind "$1/subids" /etc/subuid && mount --bind "$1/subids" /etc/subgid || exit 1
shift
exec "$@"
"""
_START_WITHIN_S = 60.0


@contextmanager
def docker_daemon(
    *options: str, runsc: str = "runsc --network=none --host-uds=open"
) -> Iterator[str]:
    """The socket of a daemon; `runsc` is the command of the runtime with this name."""
    need(os.geteuid() == 0, "root, to start a Docker daemon")
    need(
        shutil.which("dockerd") and shutil.which("containerd"), "Docker: apt-get install docker.io"
    )
    folder = Path(tempfile.mkdtemp(prefix="cellwall-docker-"))
    folder.chmod(0o711)  # root of a container is another uid there, and reaches its data
    socket = folder / "s"
    (folder / "subids").write_text("nobody:300000:65536\nnogroup:300000:65536\n")
    runtime = folder / "runsc"
    runtime.write_text(f'#!/bin/sh\nexec {runsc} "$@"\n')
    runtime.chmod(0o755)
    command = [
        "unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(folder),
        "dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
        "--pidfile", str(folder / "pid"), "--host", f"unix://{socket}", *_OPTIONS, *options,
        f"--add-runtime=runsc={runtime}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(Engine(str(socket)), daemon, folder / "log")
        yield str(socket)
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(engine: Engine, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            engine.facts()
            return
        except (CellwallError, OSError, http.client.HTTPException):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-2000:]) from None
            time.sleep(0.05)
