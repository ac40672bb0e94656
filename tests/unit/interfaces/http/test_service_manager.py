"""What systemd is told, and when nothing is."""

from __future__ import annotations

import os
import socket
import uuid

import pytest

from cellwall.interfaces.http.service_manager import ServiceManager, inherited_sockets

pytestmark = pytest.mark.requirement("SRV-1")


def test_an_abstract_socket_is_used_and_the_variables_are_removed():
    name = f"cellwall-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(f"\0{name}")
        line.settimeout(60)
        environ = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "4000000", "OTHER": "x"}
        manager = ServiceManager(environ)
        assert (environ, manager.ping_every_s) == ({"OTHER": "x"}, 2.0)
        manager.ping()
        assert line.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/no/such/socket"},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "@" + "x" * 500},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_manager_messages_go_nowhere(environ):
    manager = ServiceManager(environ)
    assert manager.ping_every_s is None
    manager.ready("x")
    manager.ping()
    manager.stopping(within_s=1.0)


@pytest.mark.parametrize("pid", ["", "1", "x", f" {os.getpid()}"])
def test_sockets_of_another_process_are_none(pid):
    environ = {"LISTEN_PID": pid, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a"}
    assert (inherited_sockets(environ), environ) == ([], {})
