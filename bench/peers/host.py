"""The host of one run: an ordinary user, root's daemons where a peer needs them, and their end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from peers import oci
from peers.cellwall_sdk import CellwallRoot, environment
from peers.docker import IMAGE
from peers.job import Place
from peers.resident import BENCH, end_server, start_server
from peers.worker_env import caller_environment

SCRATCH = "/var/tmp/cellwall-peers"
USER = "cellwall-peers"
_DAEMON_WITHIN_S = 30.0
_BRIDGE = "cwpeers0"
_BRIDGE_ADDRESS = "172.31.253.1/24"


@dataclass(frozen=True, slots=True)
class User:
    """Who runs the peers."""

    name: str
    uid: int
    gid: int


@contextmanager
def prepared(*, with_daemons: bool) -> Iterator[tuple[Place, User]]:
    """The user and the daemons; everything that was started or made is removed at the end."""
    with ExitStack() as stack:
        if os.geteuid() != 0:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="cellwall-peers-"))
            place = Place(SCRATCH, home)
            os.makedirs(place.state(), exist_ok=True)
            yield place, User(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid())
            return
        user = stack.enter_context(_account())
        place = Place(SCRATCH, f"/home/{USER}")
        os.makedirs(place.state(), exist_ok=True)
        os.chown(place.state(), user.uid, user.gid)
        stack.callback(_end_processes, user.uid)
        if with_daemons:
            stack.enter_context(_docker(place, user))
            stack.enter_context(_service(place))
        yield place, user


@contextmanager
def _account() -> Iterator[User]:
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        words = ["useradd", "--create-home", "--shell", "/bin/sh", USER]
        subprocess.run(words, check=True, capture_output=True)
        entry = pwd.getpwnam(USER)
    os.chmod(entry.pw_dir, 0o755)  # a container's or a cell's own user passes through
    try:
        yield User(USER, entry.pw_uid, entry.pw_gid)
    finally:
        words = ["userdel", "--remove", USER]
        subprocess.run(words, check=False, capture_output=True)
        shutil.rmtree(entry.pw_dir, ignore_errors=True)


def _end_processes(uid: int) -> None:
    """Whatever the peers left behind: the account is the bench's own, so all its processes are."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    os.kill(int(name), signal.SIGKILL)


@contextmanager
def _service(place: Place) -> Iterator[None]:
    """Cellwall as root's process, with cgroups."""
    path = place.state(f"{CellwallRoot.name}.sock")
    with tempfile.TemporaryDirectory(prefix="cellwall-peers-root-") as home:
        env = {**caller_environment(place), **environment("warm", home), "HOME": home}
        process = start_server(
            [sys.executable, "-m", "peers.cellwall_sdk", path],
            {**env, "PYTHONPATH": BENCH},
            CellwallRoot.name,
        )
        try:
            yield
        finally:
            end_server(process)


@contextmanager
def _docker(place: Place, user: User) -> Iterator[None]:
    """A daemon of its own, with an image of its own; nothing of the host's Docker is touched."""
    program = shutil.which("dockerd", path="/usr/bin:/usr/sbin")
    if program is None:
        yield
        return
    socket = place.state("docker.sock")
    with (
        _bridge(),
        tempfile.TemporaryDirectory(
            prefix="cellwall-peers-docker-", ignore_cleanup_errors=True
        ) as folder,
    ):
        words = [program, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        words += ["--pidfile", f"{folder}/pid", "-H", f"unix://{socket}", "-G", user.name]
        words += ["--iptables=false", "--ip6tables=false", f"--bridge={_BRIDGE}"]
        with open(f"{folder}/log", "wb") as log:
            daemon = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            if _is_answering(socket):
                _import_image(folder, socket)
            yield
        finally:
            daemon.terminate()
            try:
                daemon.wait(_DAEMON_WITHIN_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            with suppress(FileNotFoundError):
                os.unlink(socket)


@contextmanager
def _bridge() -> Iterator[None]:
    """A network for containers, as an installed Docker has; it leads no further than the host."""
    for words in (
        ["link", "add", _BRIDGE, "type", "bridge"],
        ["address", "add", _BRIDGE_ADDRESS, "dev", _BRIDGE],
        ["link", "set", _BRIDGE, "up"],
    ):
        subprocess.run(["ip", *words], check=False, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)


def _is_answering(socket: str) -> bool:
    deadline = time.monotonic() + _DAEMON_WITHIN_S
    while time.monotonic() < deadline:
        words = ["docker", "-H", f"unix://{socket}", "version"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return True
        time.sleep(0.2)
    return False


def _import_image(folder: str, socket: str) -> None:
    """An empty root with `python`; /usr of the host is mounted into it, as for the others."""
    root, archive = f"{folder}/root", f"{folder}/root.tar"
    oci.make_root(root)
    os.makedirs(f"{root}/opt/bin")
    for name in ("python", "python3"):
        os.symlink("/usr/bin/python3", f"{root}/opt/bin/{name}")
    with tarfile.open(archive, "w") as file:
        file.add(root, ".")
    # The first process of a container of llm-sandbox, whose `close` waits until the process ends.
    first = 'CMD ["/bin/sh", "-c", "trap exit TERM; sleep infinity & wait"]'
    changes = ["--change", "ENV PATH=/opt/bin:/usr/bin:/bin", "--change", first]
    words = ["docker", "-H", f"unix://{socket}", "import", *changes, archive, IMAGE]
    subprocess.run(words, check=True, capture_output=True)
