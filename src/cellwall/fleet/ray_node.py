"""Ray's processes on this machine: one node, started by Ray's own program and ended with ours.

A program that can call Ray can run code on every host. So nodes recognise each other by TLS, with
certificates of the fleet's authority on both ends, and by a token (`RAY_AUTH_MODE=token`). Ray
notices within six seconds that a node does not answer; its lease ends before (`leasing`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from glob import glob

from cellwall.core.errors import CellwallError

LABEL = "cellwall-host"
"""The label of a node, with the id of the host that runs on it."""
COORDINATOR_LABEL = "cellwall-coordinator"
"""The label of the first node, with its id: it names the cluster, also after a restart."""
_STORE_NAME = "fleet-store"
_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 40.0
_AGENT_PORTS = (
    "metrics-export-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
)
_LOOK_EVERY_S = 0.2
_STARTED = b"Ray runtime started."
_MAX_LOG_BYTES = 1024 * 1024
_NOTICED_BY_RAY = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    # Hosts outlive the first node for so long, and find it again when it is back.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
_MAX_INLINE_BYTES = 128 * 1024 * 1024
_WITHIN_CALLS = {
    # What a call carries goes from process to process by TLS. Ray's object store would keep it in
    # memory that all processes of a machine can map, and on the disk where it is full: a body may
    # be a secret that is stored. Only larger files, where `max_file_bytes` admits them, go there.
    "RAY_max_direct_call_object_size": str(_MAX_INLINE_BYTES),
    "RAY_task_rpc_inlined_bytes_limit": str(_MAX_INLINE_BYTES),
}
_QUIET = {
    # A call of Ray by a process that is not connected, such as one that ends, would start a
    # cluster of its own, without token and TLS.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to Ray's makers
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",  # a host is the service, not a job in the background
    "RAY_agent_register_timeout_ms": "120000",  # a busy machine is no failure
    "RAY_DEDUP_LOGS": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTrust:
    """The files with which Ray's processes prove themselves to each other."""

    token_file: str
    authority: str = ""
    certificate: str = ""
    """Empty: without TLS (`dangerously_without_tls`), or as the environment says."""
    key: str = ""

    def environment(self) -> dict[str, str]:
        found = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self.token_file}
        if self.certificate:
            found |= {
                "RAY_USE_TLS": "1",
                "RAY_TLS_CA_CERT": self.authority,
                "RAY_TLS_SERVER_CERT": self.certificate,
                "RAY_TLS_SERVER_KEY": self.key,
            }
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How a node of Ray is started."""

    address: str
    """Of the head, HOST:PORT; the head itself listens there."""
    is_head: bool
    node_ip: str
    """Under which the other nodes reach this one."""
    host_id: str
    trust: RayTrust
    log_file: str
    object_store_bytes: int = 128 * 1024 * 1024
    """Bodies beyond `_MAX_INLINE_BYTES` cross by it."""
    preloads: str = ""
    """A module that the host needs. The process that becomes the host starts with the node, and
    imports it meanwhile."""


def ray_environment(trust: RayTrust) -> dict[str, str]:
    """The variables of every process that speaks to Ray, ours included."""
    return {**_NOTICED_BY_RAY, **_WITHIN_CALLS, **_QUIET, **trust.environment()}


class RayNode:
    """The processes of one node."""

    def __init__(self, options: NodeOptions, environ: Mapping[str, str]) -> None:
        self._options, self._environ = options, environ
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins_at = 0
        self._folder, self._node_id = "", ""

    def start(self) -> None:
        """Start Ray's program; it runs until `stop`."""
        # Ray makes its folders writable for everybody, and who can replace a socket in them can
        # run code on every host: they are below one of mode 0700. A short name, for the sockets.
        self._folder = self._folder or tempfile.mkdtemp(prefix="cw-ray-")
        self._node_id = secrets.token_hex(28)
        host, _, port = self._options.address.rpartition(":")
        labels = {LABEL: self._options.host_id}
        if self._options.is_head:
            labels[COORDINATOR_LABEL] = self._options.host_id
        words = [
            "--num-cpus=1", f"--node-ip-address={self._options.node_ip}",
            f"--object-store-memory={self._options.object_store_bytes}",
            f"--labels={','.join(f'{name}={value}' for name, value in labels.items())}",
            "--disable-usage-stats", "--block",
            "--include-log-monitor=false",  # logs of workers stay where they are
            f"--temp-dir={self._folder}/ray",
        ]  # fmt: skip
        # With given ports a node waits for one of its agents only (`_release`).
        ports = _free_ports(self._options.node_ip, len(_AGENT_PORTS))
        words += [f"--{name}={port}" for name, port in zip(_AGENT_PORTS, ports, strict=True)]
        if self._options.is_head:
            words += ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
        else:
            words += [f"--address={host}:{port}"]
        program = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "ray")
        with open(self._options.log_file, "ab", opener=_private) as log:
            self._log_begins_at = log.tell()
            self._process = subprocess.Popen(
                [program, "start", *words],
                env={
                    **self._environ,
                    **ray_environment(self._options.trust),
                    **self._store(),
                    "RAY_preload_python_modules": self._options.preloads,
                    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": self._node_id,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a signal of the terminal is for us: we drain first
            )

    def _store(self) -> dict[str, str]:
        """Where the first node keeps which actors and nodes there are, so that its restart loses
        none of them; as the environment says where that names another store."""
        if not self._options.is_head or "RAY_REDIS_ADDRESS" in self._environ:
            return {}
        path = os.path.join(os.path.dirname(self._options.log_file), _STORE_NAME)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": path}

    def wait_until_up(self) -> None:
        """Until the node is part of the cluster; one that ends before is started again."""
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while not self._has_started():
            self._release()
            if time.monotonic() > deadline:
                self.check()
                raise _unreachable(self._options.address)
            if self._has_ended():
                self.start()
            time.sleep(_LOOK_EVERY_S)

    def _release(self) -> None:
        """Ray's node waits for the port of an agent that serves Ray's dashboard, for fifteen
        seconds, and ends if the agent is slower, as on a busy machine. There is no dashboard: the
        file says, as the agent would, that the port is not used."""
        for session in glob(f"{self._folder}/ray/session_*_*"):
            with (
                suppress(FileExistsError),
                open(
                    f"{session}/dashboard_agent_listen_port_{self._node_id}", "x", encoding="ascii"
                ) as file,
            ):
                file.write("-1")

    def _has_started(self) -> bool:
        with open(self._options.log_file, "rb") as log:
            log.seek(self._log_begins_at)
            return _STARTED in log.read(_MAX_LOG_BYTES)

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def check(self) -> None:
        """Raise if Ray's program has ended."""
        if self._has_ended():
            raise CellwallError(
                "Ray ended on this machine",
                hint=f"Its last lines are in {self._options.log_file}.",
                code="CW-FLEET-NODE",
            )

    def stop(self) -> None:
        """End all processes of the node."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _unreachable(address: str) -> CellwallError:
    return CellwallError(
        f"the first host of the fleet does not answer at {address[:80]}",
        hint="Check the address, and that `cellwall fleet up` runs there.",
        code="CW-FLEET-NODE",
    )


def _free_ports(address: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as opened:  # all at once, so that they differ
        found = [
            opened.enter_context(socket.create_server((address, 0), family=family))
            for _ in range(count)
        ]
        return [each.getsockname()[1] for each in found]
