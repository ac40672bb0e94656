"""Cellwall itself, by its Python interface, cold and warm; as the user, and as root's service.

An ordinary user gets cgroups from systemd. Where there is none, Cellwall refuses to run unless the
configuration has `dangerously_without_cgroup`; limits are then rlimits, or sampled. The process of
root has cgroups.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import ClassVar

import cellwall
from peers.job import Job
from peers.peer import LIMIT_NAMES, Peer, PeerMissing
from peers.resident import ResidentPeer
from peers.resident_server import Reply, Request, reply, serve


class CellwallCold(ResidentPeer):
    name = "cellwall-cold"
    product = "cellwall"
    module = "cellwall_sdk"
    limits = frozenset(LIMIT_NAMES)
    settings = (
        "run_command and run_code; default profile, dangerously_without_cgroup; work and limits in "
        "a private workspace, which is the default, attacks on files in a directory given as `:rw`"
    )
    path: ClassVar[str] = "cold"

    def inside(self, job: Job) -> str:
        del job
        return "/workspace"

    def python(self) -> str:
        return sys.executable

    def version(self) -> str:
        return f"cellwall {cellwall.__version__}"

    def open(self, env: Mapping[str, str]) -> None:
        home = self.place.state(self.name)
        os.makedirs(home, mode=0o700, exist_ok=True)
        config = os.path.join(home, "config.toml")
        with open(config, "w", encoding="utf-8", opener=_private) as file:
            file.write("[sandbox]\ndangerously_without_cgroup = true\n")
        super().open({**env, **environment(self.path, home), "CELLWALL_CONFIG": config})


class CellwallWarm(CellwallCold):
    name = "cellwall-warm"
    path = "warm"


class CellwallDirectory(CellwallWarm):
    name = "cellwall-directory"
    settings = "the same, warm, and everything in a directory of the host given as `:rw`"
    is_in_directory = True


class CellwallRoot(CellwallCold):
    """The same as root, with cgroups; started by the bench, since the worker is another user."""

    name = "cellwall-root"
    runs_as = "root's process; code runs as an unprivileged user of its own"
    settings = "the same, warm, with cgroups"

    def version(self) -> str:
        if not os.path.exists(self.place.state(f"{self.name}.sock")):
            raise PeerMissing("no service was started: it needs root")
        return super().version()

    def open(self, env: Mapping[str, str]) -> None:
        Peer.open(self, env)
        self.connect_to(self.place.state(f"{self.name}.sock"))

    def close(self) -> None:
        """The bench ends what it started."""


def environment(path: str, home: str) -> dict[str, str]:
    return {"CELLWALL_HOME": home, "CELLWALL_PATH": path, "CELLWALL_SUPERVISOR": "off"}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _run(request: Request) -> Reply:
    workspace = f"{request['workspace']}:rw" if request["needs_workspace"] else None
    limits = {"wall_s": request["timeout_s"], **request["limits"]}
    options = {"workspace": workspace, "limits": limits}
    if request["python"]:
        done = cellwall.run_code(request["python"], **options)
    else:
        done = cellwall.run_command(request["argv"], **options)
    if done.limit == "wall" and "wall_s" not in request["limits"]:
        return reply(None, b"", b"")  # the time of the bench, not a limit that was asked for
    code = done.exit_code if done.exit_code is not None else 1
    failed = done.error is not None and code == 0
    text = f"{done.stderr}{done.error or ''}"
    out = done.outcome.stdout_bytes or done.stdout.encode()
    return reply(1 if failed else code, out, text.encode(), done.limit or "")


if __name__ == "__main__":
    serve(sys.argv[1], _run)
