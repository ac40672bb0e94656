"""Files and servers of the host that only a control may reach, and what happened to them."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
import threading
from contextlib import ExitStack, suppress
from typing import Any, Self

from cellwall.redteam.outside import new_mark

_SIOCGIFADDR = 0x8915


class HostFiles:
    """A secret of the host, links to it in a workspace, and a listening socket beside it."""

    def __init__(self, folder: str) -> None:
        self.workspace = os.path.join(folder, "workspace")
        self.socket_path = os.path.join(folder, "docker.sock")
        self._folder = folder
        self._mark = new_mark()
        self._secret = os.path.join(folder, "secret")
        self._server = socket.socket(socket.AF_UNIX)

    @property
    def facts(self) -> dict[str, Any]:
        return {"mark": self._mark, "secret": self._secret, "socket": self.socket_path}

    def __enter__(self) -> Self:
        os.mkdir(self.workspace, 0o755)
        for path in (self._secret, f"{self._secret}.spare"):
            with open(path, "x", opener=_private, encoding="ascii") as file:
                file.write(self._mark)
        os.symlink(self._secret, os.path.join(self.workspace, "link"))
        self._server.bind(self.socket_path)
        self._server.listen()
        self._server.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def effects(self) -> list[str]:
        """What is not as it was made."""
        found = []
        names = sorted(os.listdir(self._folder))
        if names != ["docker.sock", "secret", "secret.spare", "workspace"]:
            found.append("the folder of the host has other files")
        with suppress(FileNotFoundError):  # found above
            if os.stat(self._secret).st_nlink != 1:
                found.append("the secret has a second name")
        for path in _files_below(self.workspace):
            with suppress(OSError), open(path, "rb") as file:
                if self._mark.encode() in file.read(4096):
                    found.append("the secret lies in the workspace")
        with suppress(BlockingIOError):
            self._server.accept()[0].close()
            found.append("a socket of the host was reached")
        return found


def _files_below(folder: str) -> list[str]:
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.join(place, name) for name in names]
    return [path for path in found if not os.path.islink(path)]


class HostServers:
    """TCP and UDP on every address of the host, and abstract Unix sockets; counts contacts."""

    def __init__(self) -> None:
        self.contacts = 0
        self._stack = ExitStack()
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        mark = f"\0cellwall-redteam-{secrets.token_hex(8)}"
        tcp = self._stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        )
        udp = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("0.0.0.0", 0))  # noqa: S104  # every address of the host is a target
        abstract = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(mark)
        abstract.listen()
        datagram = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(f"{mark}-datagram")
        for server in (tcp, abstract):
            self._serve(self._greet, server)
        for server in (udp, datagram):
            self._serve(self._answer, server)
        self.facts = {
            "ports": {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]},
            "addresses": _addresses(),
            "abstract": mark,
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _serve(self, work: Any, server: socket.socket) -> None:  # noqa: ANN401  # a method below
        thread = threading.Thread(target=work, args=(server,), daemon=True)
        thread.start()
        self._stack.callback(thread.join, 5)
        self._stack.callback(_wake, server)

    def _greet(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                line, _ = server.accept()
                self.contacts += 1
                with line:
                    line.sendall(b"hello")

    def _answer(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                data, sender = server.recvfrom(512)
                if not data:  # shut down
                    return
                self.contacts += 1
                if sender is not None:
                    server.sendto(b"hello", sender)


def _wake(server: socket.socket) -> None:
    """Closing alone leaves a thread waiting in the kernel."""
    with suppress(OSError):  # a datagram socket wakes, but reports that it has no peer
        server.shutdown(socket.SHUT_RDWR)


def _addresses() -> list[str]:
    """IPv4 addresses of the host's other interfaces, as the kernel reports them."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(line, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
