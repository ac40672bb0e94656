"""The egress of a cell: plan steps for its network namespace, and the sockets that lead out of it.

Init makes the sockets in the cell's own network namespace before any code runs, and sends them over
a socket pair used for nothing else. A proxy that accepts on such a socket knows which cell
connects: there is no token to steal, no file to find and no process in between.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from cellwall.core.network import NETWORK_INSIDE, PROXY_PORT, TRANSPARENT_NET, CellNetwork
from cellwall.sandbox.linux.channels import ready_to_read, receive_descriptors
from cellwall.sandbox.linux.plan import Plan

PAGE_ROOM = 64 * 1024  # the largest page size of a kernel, for each file and directory
_DNS_PORT = 53
_HAND_OVER_WITHIN_S = 20.0
_MAX_NAME_BYTES = 64
# Socket memory that no cgroup counts and no list of the kernel shows (LIM-6). Each is a setting of
# the network namespace since the Linux version named; older kernels use the host's value.
_NETWORK_SETTINGS = (
    # Copies of sent data in the error queue, for transmit time stamps: requested by a control
    # message, which a seccomp filter cannot see. Linux 6.18.
    ("/proc/sys/net/core/tstamp_allow_data", "0"),
    # Options, multicast memberships and control messages in flight: 128 KiB by default. A message
    # with the maximum number of descriptors needs 1 KiB. Linux 6.8.
    ("/proc/sys/net/core/optmem_max", "4096"),
)


@dataclass(frozen=True, slots=True)
class EgressPlan:
    """The sockets that init makes inside the cell and sends out."""

    socket_number: int
    """The number, in the cell, of the socket over which init sends them."""
    ports: tuple[int, ...]
    files: Mapping[str, bytes]


@functools.cache
def network_steps() -> bytes:
    """Settings of the network namespace, written before any socket is opened in it."""
    plan = Plan()
    for path, value in _NETWORK_SETTINGS:
        plan.step("setting", path, value)
    return plan.joined()


def plan_egress(plan: Plan, egress: EgressPlan | None) -> None:
    """Before capabilities are dropped: ports below 1024 and an own address need two of them."""
    if egress is None:
        return
    if egress.files:
        room = sum(map(len, egress.files.values())) + PAGE_ROOM * (1 + len(egress.files))
        plan.step("tmpfs", NETWORK_INSIDE, f"size={room},mode=0755")
        plan.files({f"{NETWORK_INSIDE}/{name}": data for name, data in egress.files.items()})
        plan.step("seal", NETWORK_INSIDE)
    line = egress.socket_number
    plan.step("listen", line, "proxy", "127.0.0.1", PROXY_PORT)
    if egress.ports:
        plan.step("prefix", str(TRANSPARENT_NET.network_address + 1), str(TRANSPARENT_NET.netmask))
        plan.step("datagrams", line, "dns", "127.0.0.1", _DNS_PORT)
        for port in egress.ports:
            # On all addresses: the destination address identifies the requested host name.
            plan.step("listen", line, f"tcp:{port}", "0.0.0.0", port)  # noqa: S104  # its own namespace
    plan.step("handed", line)


class EgressSockets:
    """Receives the sockets of one cell; closed once they were handed over, or the cell failed."""

    def __init__(self, network: CellNetwork) -> None:
        self._network = network
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.inside = theirs.detach()
        """The cell's end, to be sent with the plan."""

    @classmethod
    def open(cls, network: CellNetwork | None, stack: ExitStack) -> EgressSockets | None:
        """None for a cell without egress; `stack` closes the rest."""
        if network is None:
            return None
        sockets = cls(network)
        stack.callback(sockets.close)
        return sockets

    def plan(self, number: int) -> EgressPlan:
        """For the plan of a cell in which `inside` has this number."""
        return EgressPlan(number, self._network.ports, self._network.files)

    def hand_over(self) -> None:
        """Wait for init, then pass the sockets to the network. Blocks while the cell is built.

        If the cell ends before it has made them, its monitor reports that.
        """
        found: dict[str, socket.socket] = {}
        deadline = time.monotonic() + _HAND_OVER_WITHIN_S
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                if not ready_to_read(self._ours, timeout_s=left_s):
                    return
                name, sent, _flags = receive_descriptors(self._ours, _MAX_NAME_BYTES, 1)
                if not name:
                    break
                found[name.decode("ascii", "replace")] = socket.socket(fileno=sent[0])
            if found.keys() == self._names():
                taken, found = found, {}
                self._network.adopt(taken)
        finally:
            for each in found.values():
                each.close()
            self.close()

    def _names(self) -> set[str]:
        ports = self._network.ports
        return {"proxy", *(("dns", *(f"tcp:{port}" for port in ports)) if ports else ())}

    def close_inside(self) -> None:
        """After it was sent: only init holds that end, so its end of file is init's."""
        if self.inside >= 0:
            os.close(self.inside)
            self.inside = -1

    def close(self) -> None:
        self.close_inside()
        self._ours.close()
