"""How the sockets of a cell's way out come out of it.

Init makes them in the cell's own network namespace before any code runs, and sends them over a
line that is only for that. Whoever accepts on such a socket knows whose connections these are:
there is no token to steal, no file to find and no process in between.
"""

from __future__ import annotations

import os
import socket
import time

from cellwall.core.network import CellNetwork
from cellwall.sandbox.linux.networkplan import Opening
from cellwall.sandbox.linux.waiting import ready_to_read

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
