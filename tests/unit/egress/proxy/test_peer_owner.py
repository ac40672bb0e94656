"""The kernel names the user at the other end of a connection on this host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from cellwall.egress.proxy.peer_owner import owner_of_peer

OTHER_UID = 61_234
_AS_OTHER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
sock = socket.create_connection((sys.argv[2], int(sys.argv[3])))
sock.sendall(b"x")
if sys.argv[4] == "stays":
    sock.recv(1)
"""


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_own_process_is_known_until_it_closes(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        with listener.accept()[0] as accepted:
            assert owner_of_peer(accepted) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert owner_of_peer(accepted) == os.geteuid()
            client.close()
            assert owner_of_peer(accepted) is None


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(("after", "owner"), [("stays", OTHER_UID), ("leaves", None)])
def test_process_of_another_user_is_never_taken_for_ours(after: str, owner: int | None) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        words = [sys.executable, "-I", "-S", "-c", _AS_OTHER, str(OTHER_UID), host, str(port)]
        process = subprocess.Popen([*words, after])
        with listener.accept()[0] as accepted:
            assert accepted.recv(1) == b"x"
            if after == "leaves":
                process.wait(60)
            assert owner_of_peer(accepted) == owner
        process.wait(60)


def test_other_kinds_of_sockets_have_no_owner() -> None:
    near, far = socket.socketpair()
    with near, far, socket.socket() as alone:
        assert owner_of_peer(near) is None
        assert owner_of_peer(alone) is None
