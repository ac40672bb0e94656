"""How the sockets of a cell's way out come out of it.

Init makes them in the cell's own network namespace before any code runs, and sends them over a
line that is only for that. Whoever accepts on such a socket knows whose connections these are:
there is no token to steal, no file to find and no process in between.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cellwall.core.network import NETWORK_INSIDE, PROXY_PORT, TRANSPARENT_NET, CellNetwork
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.linux.plan import Plan

PAGE_ROOM = 64 * 1024  # a page of the largest kind that a kernel has, for each file and folder
_DNS_PORT = 53
# What a socket keeps that no cgroup counts and no list of the kernel's shows (LIM-6). Each is a
# setting of the network namespace since the version named; before, the host's own value holds.
_NETWORK_SETTINGS = (
    # Copies of sent data in the error queue, to be asked when they were sent: a control message
    # orders them, which a filter does not see. Linux 6.18.
    ("/proc/sys/net/core/tstamp_allow_data", "0"),
    # Options, memberships of groups, control messages under way: 128 KiB by default. A message with
    # the most descriptors has 1 KiB of them. Linux 6.8.
    ("/proc/sys/net/core/optmem_max", "4096"),
)


@dataclass(frozen=True, slots=True)
class Opening:
    """The way out of a cell: sockets that init makes inside and hands out over a line."""

    line: int
    """Its number in the cell."""
    ports: tuple[int, ...]
    files: Mapping[str, bytes]


@functools.cache
def network_steps() -> bytes:
    """Settings of the namespace, before anything is opened in it."""
    plan = Plan()
    for path, value in _NETWORK_SETTINGS:
        plan.step("setting", path, value)
    return plan.joined()


def plan_opening(plan: Plan, opening: Opening | None) -> None:
    """Before the capabilities go: ports below 1024 and an address of its own need two of them."""
    if opening is None:
        return
    if opening.files:
        room = sum(map(len, opening.files.values())) + PAGE_ROOM * (1 + len(opening.files))
        plan.step("tmpfs", NETWORK_INSIDE, f"size={room},mode=0755")
        plan.files({f"{NETWORK_INSIDE}/{name}": data for name, data in opening.files.items()})
        plan.step("seal", NETWORK_INSIDE)
    line = opening.line
    plan.step("listen", line, "proxy", "127.0.0.1", PROXY_PORT)
    if opening.ports:
        plan.step("prefix", str(TRANSPARENT_NET.network_address + 1), str(TRANSPARENT_NET.netmask))
        plan.step("datagrams", line, "dns", "127.0.0.1", _DNS_PORT)
        for port in opening.ports:
            # On all addresses: which name was meant is told by the one that was called.
            plan.step("listen", line, f"tcp:{port}", "0.0.0.0", port)  # noqa: S104  # its own namespace
    plan.step("handed", line)


_WITHIN_S = 20.0
_MAX_WORD_BYTES = 64


class WayOut:
    """One for each cell; closed when its sockets were handed over, or it came to nothing."""

    def __init__(self, network: CellNetwork) -> None:
        self._network = network
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.inside = theirs.detach()
        """The other end, to be sent along with a plan."""

    def opening(self, number: int) -> Opening:
        """For the plan of the cell, in which the other end has this number."""
        return Opening(number, self._network.ports, self._network.files)

    def hand_over(self) -> None:
        """Wait for init, then give the sockets away. Blocks for as long as the cell is built.

        A cell that ended before it had made them is found by whoever watches it.
        """
        found: dict[str, socket.socket] = {}
        deadline = time.monotonic() + _WITHIN_S
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                if not ready_to_read(self._ours, timeout_s=left_s):
                    return
                word, sent, _flags, _address = socket.recv_fds(self._ours, _MAX_WORD_BYTES, 1)
                if not word:
                    break
                found[word.decode("ascii", "replace")] = socket.socket(fileno=sent[0])
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
        """It was sent: from now on its end is init's to tell."""
        if self.inside >= 0:
            os.close(self.inside)
            self.inside = -1

    def close(self) -> None:
        self.close_inside()
        self._ours.close()
