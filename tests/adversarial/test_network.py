"""No network at all by default (NET-1): the host's servers are there, and out of reach."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import WHO, Verdicts, attack_names, inside, judge, outside

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]


def _addresses() -> list[str]:
    """IPv4 addresses of the host's other interfaces, as the kernel tells them (SIOCGIFADDR)."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(line, 0x8915, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _greet(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            line, _ = server.accept()
            with closing(line):
                line.sendall(b"hello")


def _answer(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            _, sender = server.recvfrom(512)
            if sender is None:  # shut down
                return
            server.sendto(b"hello", sender)


def _wake(server: socket.socket) -> None:
    """Closing alone leaves a thread waiting in the kernel."""
    with suppress(OSError):  # a datagram socket wakes, but says that it has no peer
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, object]]:
    """TCP and UDP on every address of the host, and two abstract unix sockets."""
    mark = f"\0cellwall-test-{os.getpid()}"
    with ExitStack() as stack:
        tcp = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        )
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("0.0.0.0", 0))
        port = tcp.getsockname()[1]
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(mark)
        abstract.listen()
        datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(mark + "-datagram")
        for server, work in ((tcp, _greet), (abstract, _greet), (udp, _answer)):
            threading.Thread(target=work, args=(server,), daemon=True).start()
            stack.callback(_wake, server)
        yield {
            "ports": {"tcp": port, "udp": udp.getsockname()[1]},
            "addresses": _addresses(),
            "abstract": mark,
        }


@pytest.mark.requirement("NET-1", "ISO-5")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("network"))
@pytest.mark.table("name")
def test_no_network_is_reachable(
    name: str, who: str, path: str, servers: dict[str, object], remember: Remember
) -> None:
    control = remember("network", lambda: outside("network", control=True, **servers))
    verdicts = remember(
        ("network", who, path), lambda: inside("network", who=who, options={}, **servers)
    )
    judge(name, control, verdicts)


@pytest.mark.requirement("NET-1", "ISO-2", "ISO-5")
@pytest.mark.parametrize("mode", ["ro", "rw", "cow"])
def test_unix_socket_of_a_host_process_in_the_workspace_is_out_of_reach(
    mode: str, tmp_path: Path
) -> None:
    """A given directory may hold a socket (an agent's, a database's): a socket is egress."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as control:
        server.bind(str(tmp_path / "agent.sock"))
        server.listen()
        control.connect(str(tmp_path / "agent.sock"))
        ran = cellwall.run_code(
            "import socket\n"
            "try:\n"
            "    socket.socket(socket.AF_UNIX).connect('/workspace/agent.sock')\n"
            "    reached = True\n"
            "except OSError:\n"
            "    reached = False\n"
            "reached\n",
            workspace=f"{tmp_path}:{mode}",
        )
    assert (ran.status.value, ran.value) == ("ok", False)


@pytest.mark.requirement("NET-1")
def test_loopback_of_the_cell_itself_works() -> None:
    """Programs that talk to themselves are not what the wall is for."""
    ran = cellwall.run_code(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "line = socket.create_connection(server.getsockname())\n"
        "line.sendall(b'x')\n"
        "server.accept()[0].recv(1).decode()\n"
    )
    assert (ran.status.value, ran.value) == ("ok", "x")
