"""Descriptors that come over a socket must not survive an exec of the embedding program (ISO-9)."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.core.limits import Limits
from cellwall.sandbox.linux.channels import EgressSockets
from cellwall.sandbox.linux.prefork_queue import PreforkQueue
from cellwall.sandbox.linux.template import CellRecipe


@pytest.mark.requirement("ISO-9")
def test_egress_sockets_are_closed_at_exec() -> None:
    adopted: dict[str, socket.socket] = {}
    network: Any = SimpleNamespace(ports=(), files={}, adopt=adopted.update)
    egress = EgressSockets(network)
    with socket.socket() as made_inside:
        sender = socket.socket(fileno=os.dup(egress.inside))
        socket.send_fds(sender, [b"proxy"], [made_inside.fileno()])
        sender.close()
        egress.close_inside()
        egress.hand_over()
    assert [(name, each.get_inheritable()) for name, each in adopted.items()] == [("proxy", False)]
    adopted["proxy"].close()


@pytest.mark.requirement("ISO-9")
def test_the_pipes_of_a_preforked_cell_are_closed_at_exec() -> None:
    ours, shim = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    queue = PreforkQueue.__new__(PreforkQueue)
    queue._socket, queue._groups = ours, {}
    queue._requested = {"cell_1": CellRecipe(Limits())}
    queue._template = SimpleNamespace(group=None)  # type: ignore[assignment]  # all that is used
    status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes = [os.pipe() for _ in range(5)]
    sent = [status[0].fileno(), *(pair[0] for pair in pipes)]
    socket.send_fds(shim, [b"cell cell_1 cell_1"], sent)
    cell = queue.receive()
    assert cell is not None
    ends = cell.channels
    assert ends.channel is not None
    received = [ends.stdout, ends.stderr, ends.stdin, ends.channel.reports, ends.channel.requests]
    flags = [os.get_inheritable(each) for each in received if each is not None]
    assert [*flags, cell.init.socket.get_inheritable()] == [False] * 6
    cell.close()
    for each in (*status, ours, shim):
        each.close()
    for pair in pipes:
        os.close(pair[0])
        os.close(pair[1])
