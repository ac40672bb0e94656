"""A real Podman, as root and as an ordinary user: known for what it is, refused where it lacks a wall."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError, LayerMissing
from cellwall.core.outcomes import Status
from cellwall.sandbox.containers.container_walls import judge_engine
from cellwall.sandbox.containers.engine import Engine
from cellwall.sandbox.linux.layers import NativeSettings
from conftest import need
from unit.sandbox.containers.test_container_conformance import configuration, run

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]
USER = "games"
_START_WITHIN_S = 60.0
_ROOTLESS = """
mount --bind "$1/subids" /etc/subuid && mount --bind "$1/subids" /etc/subgid || exit 1
folder=$1; shift
exec setpriv --reuid=games --regid=games --clear-groups \
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$folder/home" XDG_RUNTIME_DIR="$folder/run" "$@"
"""
IS_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()


@contextmanager
def podman_service(*, is_rootless: bool) -> Iterator[str]:
    """The socket of Podman's API, with state of its own."""
    need(os.geteuid() == 0, "root, to start Podman as another user")
    need(shutil.which("podman") and shutil.which("newuidmap"), "Podman: apt-get install podman")
    need(shutil.which("runc"), "runc: apt-get install runc")
    folder = Path(tempfile.mkdtemp(prefix="cellwall-podman-"))
    folder.chmod(0o711)
    (folder / "subids").write_text(f"{USER}:300000:65536\n")
    for name in ("home", "run"):
        (folder / name).mkdir(mode=0o700)
        if is_rootless:
            os.chown(folder / name, pwd.getpwnam(USER).pw_uid, -1)
    socket = folder / "run" / "s"
    storage = ["--storage-driver=vfs"]
    if not is_rootless:
        storage = ["--storage-driver=overlay", "--root", f"{folder}/home/r", "--runroot", f"{folder}/run/r"]  # fmt: skip
    command = [
        "podman", f"--runtime={shutil.which('runc')}", "--cgroup-manager=cgroupfs", *storage,
        "system", "service", "--time=0", f"unix://{socket}",
    ]  # fmt: skip
    if is_rootless:
        command = ["unshare", "--mount", "sh", "-c", _ROOTLESS, "sh", str(folder), *command]
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(str(socket), service, folder / "log")
        yield str(socket)
    finally:
        service.terminate()
        try:
            service.wait(20)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()
        # A rootless Podman leaves a process that holds its user namespace.
        with suppress(OSError, ValueError):
            holder = int((folder / "run/libpod/tmp/pause.pid").read_text())
            os.kill(holder, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(socket: str, service: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            Engine(socket).facts()
            return
        except CellwallError:
            if service.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-2000:]) from None
            time.sleep(0.05)


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_a_rootless_podman_has_a_user_namespace_and_is_refused_without_limits() -> None:
    with podman_service(is_rootless=True) as socket:
        facts = Engine(socket).facts()
    assert (facts.is_rootless, facts.has_user_namespace, facts.is_podman) == (True, True, True)
    settings = NativeSettings(
        backend="container", uid_base=1, tmp_bytes=1, shm_bytes=1, max_result_bytes=1
    )
    if IS_V2 and facts.has_limits:
        assert judge_engine(settings, facts).has_user_namespace
        return
    with pytest.raises(LayerMissing) as refused:
        judge_engine(settings, facts)
    assert (refused.value.code, "rootless" in refused.value.hint) == ("CW-LAYER-CGROUP", True)


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_a_podman_that_gives_no_cgroup_namespace_is_refused(tmp_path: Path) -> None:
    """On cgroup v1, as Podman 4 does; on v2 the same request runs."""
    with podman_service(is_rootless=False) as socket:
        config = configuration(tmp_path, socket, "dangerously_without_user_namespace = true")
        outcome = run(config, ("true",))
    if IS_V2:
        assert outcome.status is Status.OK
        return
    assert outcome.error is not None
    assert outcome.error.code == "CW-LAYER-NAMESPACE"
