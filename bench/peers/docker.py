"""Docker: `docker run` as most people type it, and with the options for untrusted code.

The daemon is root's; a user who may talk to it has root's rights over the host.
"""

from __future__ import annotations

import os
import uuid

from peers.job import Ended, Job
from peers.peer import CommandPeer, PeerMissing
from peers.processes import run_bounded

IMAGE = "peers:local"
NEEDS_DAEMON = "ordinary user with access to the daemon, which is root's"
_ULIMITS = {"cpu_s": "cpu", "file_size_bytes": "fsize", "open_files": "nofile"}
_REMOVE_WITHIN_S = 20.0


class Docker(CommandPeer):
    name = "docker"
    product = "docker"
    program = "docker"
    runs_as = NEEDS_DAEMON
    limits = frozenset({*_ULIMITS, "memory_bytes", "processes"})
    settings = (
        "docker run --rm -v WORKSPACE:/workspace, user root in the container, default seccomp"
    )

    def inside(self, job: Job) -> str:
        del job
        return "/workspace"

    def version(self) -> str:
        if not os.path.exists(self.place.state("docker.sock")):
            raise PeerMissing("no Docker daemon was started: it needs root")
        return super().version()

    def options(self, job: Job) -> list[str]:
        del job
        return []

    def command(self, job: Job) -> list[str]:
        return self.words(job, f"peer-{uuid.uuid4().hex}")

    def words(self, job: Job, name: str) -> list[str]:
        limits = [
            f"--ulimit={option}={int(job.limits[key])}"
            for key, option in _ULIMITS.items()
            if key in job.limits
        ]
        if "memory_bytes" in job.limits:
            limits += [f"--memory={int(job.limits['memory_bytes'])}", "--memory-swappiness=0"]
        if "processes" in job.limits:
            limits += [f"--pids-limit={int(job.limits['processes'])}"]
        return [
            *(self.find(), "-H", f"unix://{self.place.state('docker.sock')}", "run", "--rm"),
            *("--name", name, "-v", "/usr:/usr:ro", "-v", f"{job.workspace}:/workspace"),
            *("-w", "/workspace", *self.options(job), *limits, IMAGE),
            *job.command("/workspace"),
        ]

    def run(self, job: Job, timeout_s: float) -> Ended:
        name = f"peer-{uuid.uuid4().hex}"
        ended = run_bounded(
            self.words(job, name), env=self.env, cwd=job.workspace, timeout_s=timeout_s
        )
        if ended.code is None:  # the client was stopped, its container not
            socket = f"unix://{self.place.state('docker.sock')}"
            words = [self.find(), "-H", socket, "rm", "--force", name]
            run_bounded(words, env=self.env, cwd="/", timeout_s=_REMOVE_WITHIN_S)
        return ended


class DockerStrict(Docker):
    name = "docker-strict"
    limits = frozenset({*Docker.limits, "tmp_bytes"})
    settings = (
        "--network none --read-only --cap-drop ALL --security-opt no-new-privileges "
        "--user UID:GID --tmpfs /tmp --ipc private"
    )

    def options(self, job: Job) -> list[str]:
        size = int(job.limits.get("tmp_bytes", 64 << 20))
        return [
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--ipc", "private"),
            *("--security-opt", "no-new-privileges", "--user", f"{os.getuid()}:{os.getgid()}"),
            *("--tmpfs", f"/tmp:size={size},mode=1777"),
        ]
