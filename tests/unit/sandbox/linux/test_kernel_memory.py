"""The kernel's lists of sockets, read: what waits in them that no cgroup counts (LIM-6)."""

from __future__ import annotations

import os
import socket

import pytest

from cellwall.sandbox.linux import kernel_memory

_HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(state: str, sent: int, received: int, inode: int) -> bytes:
    return (
        f"   0: 0100007F:D934 0100007F:8BA8 {state} {sent:08X}:{received:08X} 00:00000000 00000000"
        f"  1000        0 {inode} 2 000000002652a3b6 0\n"
    ).encode()


@pytest.mark.requirement("LIM-6")
def test_datagrams_that_are_sent_and_received_are_told_apart() -> None:
    text = _HEAD + line("07", 61440, 0, 5) + line("01", 0, 8000, 6) + line("01", 1, 2, 7)
    assert kernel_memory.datagram_bytes(text) == (61441, 8002)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize(
    ("state", "inode", "counts"),
    [
        pytest.param("08", 0, True, id="closed by the other side, not accepted"),
        pytest.param("01", 0, True, id="connected, not accepted"),
        pytest.param("01", 77, False, id="accepted"),
        pytest.param("0A", 0, False, id="listening: a number of connections, no bytes"),
        pytest.param("06", 0, False, id="TIME_WAIT"),
        pytest.param("03", 0, False, id="SYN_RECV"),
    ],
)
def test_connections_count_until_a_process_has_accepted_them(
    state: str, inode: int, counts: bool
) -> None:
    found = kernel_memory.unaccepted_bytes(_HEAD + line(state, 0, 50_000, inode))
    assert found == (4096 + 50_000 if counts else 0)


@pytest.mark.requirement("LIM-6")
def test_netlink_queues_are_summed_and_the_kernels_own_sockets_not_numbered() -> None:
    text = (
        b"sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
        b"0000000000000000 0   0          00000000 0        0        0     2        0        7\n"
        b"0000000000000000 0   1184       00000000 4096     512      0     2        0        8\n"
    )
    assert kernel_memory.netlink_bytes(text) == (4608, 1)


@pytest.mark.requirement("LIM-6")
def test_our_own_namespace_is_nobodys_cell() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0), socket.socket():
        found = kernel_memory.uncharged_bytes([os.getpid(), 2**22 + 1], memory_bytes=1, most=1)
    assert found == 0
