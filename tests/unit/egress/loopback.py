"""Real servers on loopback for the egress tests: DNS, HTTP, TLS, and a cell's side of it."""

from __future__ import annotations

import contextlib
import functools
import json
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import anyio.from_thread
import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset

from cellwall.core.network import EgressContext, SecretUse
from cellwall.core.types import Action, Json, Principal, RunCommand
from cellwall.egress.limits import EgressSettings
from cellwall.egress.proxy.cell_network import ProxyNetwork
from cellwall.egress.service import EgressService

WAIT_S = 20.0
"""Long enough for a machine under load; nothing waits for it that works."""


class Zone(socketserver.ThreadingUDPServer):
    """A DNS server: `names` maps a name to its addresses, or to a function that gives them."""

    daemon_threads = True

    def __init__(self) -> None:
        self.names: dict[str, Sequence[str] | Callable[[], Sequence[str]]] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _ZoneHandler)

    @property
    def address(self) -> tuple[str, int]:
        return self.server_address[0], self.server_address[1]  # type: ignore[return-value]  # AF_INET


class _ZoneHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        zone = self.server
        assert isinstance(zone, Zone)
        data, sock = self.request
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if question.rdtype == dns.rdatatype.A:
            zone.asked.append(name)
            entry = zone.names.get(name, ())
            found = entry() if callable(entry) else entry
            if found:
                reply.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", *found))
        sock.sendto(reply.to_wire(), self.client_address)


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


@functools.cache
def system_trust() -> ssl.SSLContext:
    """As a service makes one by itself, but once: to read the system's authorities takes 40 ms."""
    return ssl.create_default_context()


Talk = Callable[[socket.socket], None]


class Server(socketserver.ThreadingTCPServer):
    """Does `talk` with every connection; keeps count of them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, talk: Talk, *, tls: ssl.SSLContext | None = None) -> None:
        self.talk = talk
        self.tls = tls
        self._count = 0
        self._probes: dict[tuple[str, int], threading.Event] = {}
        super().__init__(("127.0.0.1", 0), _TalkHandler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def connections(self) -> int:
        """How many were made until now: one more is made that queues up behind all of them."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            seen = self._probes[probe.getsockname()] = threading.Event()
            probe.connect(("127.0.0.1", self.port))
            assert seen.wait(WAIT_S)
        return self._count

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Called for one connection after the other, in their order."""
        if client_address in self._probes:
            self._probes[client_address].set()
            return False
        self._count += 1
        return True


class _TalkHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        sock: socket.socket = self.request
        sock.settimeout(WAIT_S)
        with contextlib.suppress(OSError):
            if server.tls is not None:
                sock = server.tls.wrap_socket(sock, server_side=True)
            with sock:
                server.talk(sock)


@dataclass
class Record:
    """What was put on record; `fails` makes the next write fail."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    travellers: list[EgressContext] = field(default_factory=list)
    fails: bool = False

    async def __call__(self, body: dict[str, Json], context: EgressContext) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self.bodies.append(body)
        self.travellers.append(context)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [body for body in self.bodies if body["event"] == event]


class NoValues:
    def values(self) -> dict[str, bytes]:
        return {}


class Known:
    def __init__(self, **values: bytes) -> None:
        self._values = values

    def values(self) -> dict[str, bytes]:
        return self._values


def action(
    *domains: str, session_id: str | None = None, registries: tuple[str, ...] = ()
) -> Action:
    return Action(
        registries=registries,
        principal=Principal("somebody", "test"),
        operation=RunCommand(("true",)),
        allow_domains=domains,
        session_id=session_id,
    )


class Cell:
    """What a cell sees of its egress, without the cell: plain loopback sockets as listeners."""

    def __init__(self, network: ProxyNetwork, record: Record, service: EgressService) -> None:
        self.network = network
        self.record = record
        self.service = service
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.proxy = listener.getsockname()[:2]
        network.adopt({"proxy": listener})

    def trust(self) -> ssl.SSLContext:
        """Of a client inside, in the authority of the session, which is the last one of ca.pem.

        To read those of the host before it would take 40 ms for each connection.
        """
        _, begin, own = self.network.files["ca.pem"].rpartition(b"-----BEGIN CERTIFICATE-----")
        return ssl.create_default_context(cadata=(begin + own).decode())

    def connect(self) -> socket.socket:
        return socket.create_connection(self.proxy, timeout=WAIT_S)

    def tunnel(self, host: str, port: int) -> socket.socket:
        """By CONNECT; AssertionError with the answer if it is refused."""
        sock = self.connect()
        sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = head_of(sock)
        if not answer.startswith(b"HTTP/1.1 200 "):
            sock.close()
            raise AssertionError(answer)
        return sock

    def ask(self, data: bytes) -> bytes:
        """Everything that is said until the end of the connection."""
        with self.connect() as sock:
            sock.sendall(data)
            return everything(sock)


@dataclass
class House:
    """One DNS zone, one service, and any number of servers."""

    zone: Zone
    stack: contextlib.ExitStack
    record: Record = field(default_factory=Record)

    def server(
        self, talk: Talk, *names: str, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
    ) -> Server:
        server = Server(talk, tls=tls)
        self.stack.enter_context(served(server))
        for name in names:
            self.zone.names[name] = [address]
        return server

    def service(
        self, *, known: Any = None, upstream_tls: Any = None, services: Any = None, **changes: Any
    ) -> EgressService:
        settings: dict[str, Any] = {
            "dns_servers": (self.zone.address,),
            "dangerously_allow_addresses": (ip_network("127.0.0.0/8"),),
            "connect_timeout_s": WAIT_S,
            "head_timeout_s": WAIT_S,
            "idle_timeout_s": WAIT_S,
            **changes,
        }
        service = EgressService(
            EgressSettings(**settings),
            record=self.record,
            known=known or NoValues(),
            upstream_tls=upstream_tls or system_trust(),
            services=services,
        )
        self.stack.callback(service.close)
        return service

    def cell(self, *domains: str, secrets: Sequence[SecretUse] = (), **changes: Any) -> Cell:
        service = self.service(**changes)
        registries = tuple(changes.get("services", ()))
        portal = self.stack.enter_context(anyio.from_thread.start_blocking_portal())
        network = self.stack.enter_context(
            portal.wrap_async_context_manager(
                service.session(action(*domains, registries=registries), secrets)
            )
        )
        assert isinstance(network, ProxyNetwork)
        return Cell(network, self.record, service)


@contextmanager
def house() -> Iterator[House]:
    with contextlib.ExitStack() as stack:
        zone = Zone()
        stack.enter_context(served(zone))
        yield House(zone, stack)


def get(url: str, *headers: str, method: str = "GET") -> bytes:
    """A request to a proxy, after which the connection ends."""
    host = url.split("/")[2]
    lines = (f"{method} {url} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", "")
    return "\r\n".join(lines).encode("latin-1")


def refusal_of(answer: bytes) -> tuple[int, str]:
    """Status and code of an answer that refuses."""
    head, _, body = answer.partition(b"\r\n\r\n")
    code = str(json.loads(body)["error"]["code"])
    assert f"\r\nX-Cellwall-Refused: {code}\r\n".encode() in head + b"\r\n", head
    return int(head.split()[1]), code


def head_of(sock: socket.socket) -> bytes:
    """An HTTP head, and not one byte more."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        if isinstance(sock, ssl.SSLSocket):  # cannot look ahead
            piece = sock.recv(1)
            if not piece:
                break
            data += piece
            continue
        seen = sock.recv(65536, socket.MSG_PEEK)
        end = (data[-3:] + seen).find(b"\r\n\r\n")
        size = len(seen) if end < 0 else end + 4 - len(data[-3:])
        piece = sock.recv(size)
        if not piece:
            break
        data += piece
    return data


def everything(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def final_bytes(sock: socket.socket) -> bytes:
    """Everything until the end, be it a reset."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    return data


def request_of(sock: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of a request that has a Content-Length, or none."""
    head = head_of(sock)
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body = b""
    while len(body) < length:
        piece = sock.recv(length - len(body))
        if not piece:
            break
        body += piece
    return head, body


def answer(body: bytes, *, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), extra, body)


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def repeat_requests(sock: socket.socket) -> None:
    """An HTTP server whose answer is the request."""
    while True:
        head, body = request_of(sock)
        if not head.endswith(b"\r\n\r\n"):
            return
        sock.sendall(answer(head + body))


def is_ended(sock: socket.socket) -> bool:
    """Whether the other side ends the connection, by a reset or in order, with nothing said."""
    readable, _, _ = select.select([sock], [], [], WAIT_S)
    if not readable:
        return False
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
