"""A cell in a container: the engine has built its outer wall, init builds the inner ones.

(1) a socket in a directory of its own, which the container sees; (2) the shim, whose child holds
the container's life line; (3) create and start the container; (4) init connects; (5) check from
outside what the engine has built; (6) send init its descriptors, and remove the socket; (7) init
waits for its plan, as in a native cell.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import anyio

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.limits import LimitName, Limits
from cellwall.core.types import Json
from cellwall.sandbox.containers.container_request import JOIN_SOCKET
from cellwall.sandbox.containers.engine import Engine
from cellwall.sandbox.containers.root_image import CELL_INSIDE
from cellwall.sandbox.linux import cgroups, run_cgroup
from cellwall.sandbox.linux.channels import EgressSockets, ready_to_read
from cellwall.sandbox.linux.outside_processes import FIRST_SENT_FD
from cellwall.sandbox.linux.plan import Plan
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_cgroup import read_text
from cellwall.sandbox.linux.run_io import RunIO

CONTAINER_PREFIX = "cellwall-"
_JOIN_WITHIN_S = 20.0
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_LIMIT_FILES = {
    1: (("memory", "memory.limit_in_bytes"), ("pids", "pids.max"), ("cpu", "cpu.cfs_quota_us")),
    2: (("memory", "memory.max"), ("pids", "pids.max"), ("cpu", "cpu.max")),
}
_UNLIMITED = ("max", "-1")
_HUGE = 1 << 60  # v1 writes the largest number instead of a word


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The numbers, in the cell, of the descriptors that init was sent."""

    program: Mapping[int, int]
    """number of the program -> number in the cell."""
    life: int


class ContainerCell(PreparedCell):
    """One container, with our ends of its pipes and sockets."""

    def __init__(
        self,
        shape: CellShape,
        name: str,
        engine: Engine,
        directory: str,
        *,
        may_share: frozenset[str],
        is_gvisor: bool,
    ) -> None:
        """`may_share`: the namespaces of the host that the configuration accepts."""
        super().__init__(shape, name)
        self._engine = engine
        self._may_share, self._is_gvisor = may_share, is_gvisor
        self._container: str | None = None
        self._words: list[str] | None = None
        self._join_directory = os.path.join(directory, self._entry.id)
        self._stack.callback(self._remove)

    @property
    def join_directory(self) -> str:
        return self._join_directory

    def start(self, request: Mapping[str, Json], egress: EgressSockets | None) -> Descriptors:
        """Blocks until init has joined."""
        self._shape.ledger.stop_flag.check()
        with ExitStack() as stack:
            # (1) Only the container sees the directory: the one above it is closed to others.
            listener = self._listen(stack)
            # (2)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            stack.callback(ours.close)
            self._begin_attending(theirs)
            theirs.close()
            # (3)
            name = f"{CONTAINER_PREFIX}{self._entry.id}"
            self._container = self._engine.create(name, request)
            self._engine.start(self._container)
            # (4)
            if not ready_to_read(listener, timeout_s=_JOIN_WITHIN_S):
                raise self.failure("container-join")
            line, _address = listener.accept()
            with line:
                # (5)
                pid, uid, _gid = struct.unpack(
                    "iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                )
                # Of gVisor, the peer is its file server, not a process of the container.
                if self._is_gvisor:
                    check_own_kernel(pid)
                else:
                    check_identity(pid, uid, self._may_share)
                self.meter = self.group_of(pid)
                # (6)
                return self._send(line, ours, egress)

    def _listen(self, stack: ExitStack) -> socket.socket:
        os.mkdir(self._join_directory, 0o755)
        os.chmod(self._join_directory, 0o755)  # noqa: S103  # whatever the umask: init has another uid
        path = os.path.join(self._join_directory, JOIN_SOCKET)
        stack.callback(self._remove_socket, path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(listener.close)
        # By a descriptor: the path of a state folder may be longer than an address may be.
        folder = os.open(self._join_directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{JOIN_SOCKET}")
        finally:
            os.close(folder)
        os.chmod(path, 0o666)  # noqa: S103  # see above
        listener.listen(1)
        return listener

    def _remove_socket(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(path)
        with suppress(OSError):
            os.rmdir(self._join_directory)

    def _begin_attending(self, life: socket.socket) -> None:
        plan = Plan()
        plan.step("pass", FIRST_SENT_FD)
        plan.step("exec", cell_program(), "attend", str(FIRST_SENT_FD))
        self.shim.begin(plan.encode(), [life.fileno()])

    def _send(
        self, line: socket.socket, life: socket.socket, egress: EgressSockets | None
    ) -> Descriptors:
        inside = self.pipes.inside
        sent = [self._plan_fd, self.pipes.status.inside, *inside.values(), life.fileno()]
        if egress is not None:
            sent.append(egress.inside)
        numbers = {descriptor: FIRST_SENT_FD + index for index, descriptor in enumerate(sent)}
        try:
            socket.send_fds(line, [b"join"], sent)
        except OSError as error:
            raise self.failure("container-send") from error
        self.pipes.close_inside()
        self.pipes.status.close_inside()
        if egress is not None:
            self.egress_number = numbers[egress.inside]
            egress.close_inside()
        program = {number: numbers[descriptor] for number, descriptor in inside.items()}
        return Descriptors(program, numbers[life.fileno()])

    def group_of(self, pid: int) -> run_cgroup.RunCgroup:
        """The cgroup that the engine has made; refused if it does not limit what it must."""
        text = read_text(f"/proc/{pid}/cgroup")
        group = engine_group(text, read_text("/proc/self/mountinfo"))
        if group is None:
            raise _no_limits("the engine's cgroup is not visible here")
        return group

    # --- as a monitored run

    def status_fd(self) -> int:
        return self.pipes.status.fileno()

    def handle_message(self) -> bool:
        """Init exits only after it was released, so the end of its socket is a death."""
        words = self.pipes.status.receive()
        if words is not None and (not words or words[0] in ("exit", "noexec", "fail")):
            self._words = words
        return self._words is None

    def is_ended(self, run_io: RunIO) -> bool:
        return self._words is not None and run_io.is_over

    def kill(self, limit: LimitName | None = None) -> None:  # noqa: ARG002  # every limit ends the whole cell
        # The shim kills the holder of the life line; init sees it, and ends every process.
        self.shim.kill()

    async def wait_gone(self) -> None:
        self.pipes.status.shutdown_write()
        if self._container is not None:
            container, self._container = self._container, None
            try:
                await anyio.to_thread.run_sync(self._engine.wait_removed, container)
            except SandboxFailed:
                # The processes are what counts: the engine removes the rest once it answers, or
                # the next start does. The outcome of code that ran is not lost to a slow engine.
                if self.pids():
                    raise
        await super().wait_gone()

    async def abandon(self) -> None:
        self.pipes.status.shutdown_write()
        await anyio.to_thread.run_sync(self._remove)
        await super().abandon()

    def exit_words(self) -> list[str]:
        return self._words or []

    def _remove(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            with suppress(CellwallError, OSError):
                self._engine.remove(container)

    def limit(self, limits: Limits, *, io_device: str | None) -> None:
        """The limits are part of the engine's request."""


def check_identity(pid: int, uid: int, may_share: frozenset[str]) -> None:
    """Refuse an init that is root of this host, or shares a namespace with us, as far as we may
    look."""
    if uid == 0:
        raise _not_built("code would run as root of this host", "user")
    for name in NAMESPACES:
        try:
            shared = os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
        except OSError:  # another user's process; then the conformance suite is the proof
            continue
        if shared and name not in may_share:
            raise _not_built(f"the engine gave the container no {name} namespace of its own", name)


def check_own_kernel(pid: int) -> None:
    """Refuse a runtime that is called gVisor's and starts a process of the host's kernel: then
    `cellwall-cell` itself is the peer, and no process of another kernel."""
    program = read_text(f"/proc/{pid}/cmdline").split("\0")[0]
    if program in ("", CELL_INSIDE):
        raise LayerMissing(
            "the engine's runtime has started code on the host's own kernel",
            hint="Check which program the engine's configuration names for this runtime; see "
            "docs/guides/backends.md.",
            code="CW-LAYER-KERNEL",
        )


def _not_built(why: str, namespace: str) -> LayerMissing:
    hint = "Use a host with cgroup v2, on which engines give a cgroup namespace to each container."
    if namespace != "cgroup":
        hint = "Check the engine's settings with `cellwall doctor`; see docs/guides/backends.md."
    return LayerMissing(why, hint=hint, code="CW-LAYER-NAMESPACE")


def engine_group(membership: str, mountinfo: str) -> run_cgroup.RunCgroup | None:
    """The group of a process, from its /proc/PID/cgroup, by the hierarchies that are mounted."""
    mounts, paths = cgroups.parse_mounts(mountinfo), cgroups.parse_membership(membership)
    v1 = {
        name: cgroups.directory_of(mount, paths[name])
        for mount in mounts
        if mount.version == 1
        for name in mount.controllers
        if name in paths
    }
    if v1.keys() >= cgroups.NEEDED:
        return _limited(run_cgroup.RunCgroup(1, v1), 1, v1)
    unified = next((mount for mount in mounts if mount.version == 2), None)
    if unified is None or "" not in paths:
        return None
    directory = cgroups.directory_of(unified, paths[""])
    v2 = dict.fromkeys(read_text(f"{directory}/cgroup.controllers").split(), directory)
    if not v2.keys() >= cgroups.NEEDED:
        return None
    return _limited(run_cgroup.RunCgroup(2, v2), 2, v2)


def _limited(
    group: run_cgroup.RunCgroup, version: int, directories: Mapping[str, str]
) -> run_cgroup.RunCgroup:
    """Refused if a limit was not applied: an engine without the rights only warns."""
    for controller, file in _LIMIT_FILES[version]:
        value = read_text(f"{directories[controller]}/{file}").split()[:1]
        if not value or value[0] in _UNLIMITED or (value[0].isdigit() and int(value[0]) > _HUGE):
            raise _no_limits(f"the engine did not apply the {controller} limit")
    return group


def _no_limits(why: str) -> LayerMissing:
    return LayerMissing(
        why,
        hint="Give the engine the memory, pids and cpu controllers: for a rootless engine, "
        "cgroup v2 with delegation (systemctl edit user@.service: Delegate=memory pids cpu).",
        code="CW-LAYER-CGROUP",
    )


def kernel_version(release: str) -> tuple[int, int]:
    """(major, minor) of `uname -r`."""
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise SandboxFailed(f"the kernel's version is unreadable: {release[:40]!r}")
    return int(match[1]), int(match[2])
