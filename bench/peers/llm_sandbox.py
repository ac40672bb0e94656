"""llm-sandbox (PyPI): a container of Docker for each session, by its Python interface."""

from __future__ import annotations

import os
import shlex
import sys

from peers.docker import IMAGE, NEEDS_DAEMON, Docker
from peers.job import Job
from peers.resident import ResidentPeer
from peers.resident_server import Reply, Request, reply, serve


class LlmSandbox(ResidentPeer):
    name = "llm-sandbox"
    product = "llm-sandbox"
    module = "llm_sandbox"
    runs_as = NEEDS_DAEMON
    limits = frozenset({"wall_s", "memory_bytes", "processes"})
    settings = (
        'SandboxSession(lang="python", skip_environment_setup=True) with a local image '
        "whose first process ends on SIGTERM (otherwise each session waits 10 s at its end), "
        "one session for each run; no security policy"
    )

    def inside(self, job: Job) -> str:
        del job
        return "/workspace"

    def version(self) -> str:
        Docker(self.place).version()
        return super().version()


class LlmSandboxStrict(LlmSandbox):
    name = "llm-sandbox-strict"
    choice = "strict"
    settings = (
        'the same with runtime_configs: uid of the caller, network_mode "none", cap_drop ALL, '
        "no-new-privileges"
    )


def _run(request: Request) -> Reply:
    # Only in the environment it is installed into.
    import docker  # noqa: PLC0415  # in its own environment
    from llm_sandbox import SandboxSession  # noqa: PLC0415  # in its own environment
    from llm_sandbox.exceptions import SandboxTimeoutError  # noqa: PLC0415  # in its own environment

    limits = request["limits"]
    volumes = ["/usr:/usr:ro", f"{request['workspace']}:/workspace"]
    configs: dict[str, object] = {"volumes": volumes}
    if _IS_STRICT:
        configs |= {
            "user": f"{os.getuid()}:{os.getgid()}",
            "network_mode": "none",
            "cap_drop": ["ALL"],
        }
        configs["security_opt"] = ["no-new-privileges"]
    if "memory_bytes" in limits:
        configs["mem_limit"] = int(limits["memory_bytes"])
    if "processes" in limits:
        configs["pids_limit"] = int(limits["processes"])
    wall_s = limits.get("wall_s", request["timeout_s"])
    client = docker.DockerClient(base_url=f"unix://{_SOCKET}")
    try:
        with SandboxSession(
            client=client,
            image=IMAGE,
            lang="python",
            keep_template=True,
            skip_environment_setup=True,
            runtime_configs=configs,
            workdir="/workspace",
        ) as session:
            if request["python"]:
                done = session.run(request["python"], timeout=wall_s)
            else:
                done = session.execute_command(shlex.join(request["argv"]), workdir="/workspace")
    except SandboxTimeoutError:
        return reply(1, b"", b"", "wall") if "wall_s" in limits else reply(None, b"", b"")
    finally:
        client.close()
    return reply(done.exit_code, done.stdout.encode(), done.stderr.encode())


if __name__ == "__main__":
    _IS_STRICT = sys.argv[2] == "strict"
    _SOCKET = sys.argv[3]
    serve(sys.argv[1], _run)
