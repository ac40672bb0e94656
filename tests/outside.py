"""A small Internet on loopback: names, web servers, an authority; for the egress tests.

Its addresses are private, so a configuration that is to reach it names them (`config`).
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import trustme

Answers = Sequence[str] | Callable[[], Sequence[str]]


@dataclass(slots=True)
class Seen:
    """One request as a server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Outside:
    """The names it knows, what was asked for, and how to reach it."""

    folder: Path
    authority: trustme.CA
    names: dict[str, Answers] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Names that were asked for, in order."""
    dns_port: int = 0
    servers: list[_Server] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def ca_file(self) -> str:
        return str(self.folder / "outside-ca.pem")

    def config(
        self, extra: str = "", *, addresses: str = "127.0.0.0/8", name: str = "cellwall.toml"
    ) -> str:
        """A configuration file with which sandboxes reach it."""
        path = self.folder / name
        text = f'[egress]\ndns_servers = ["127.0.0.1:{self.dns_port}"]\n'
        text += f'dangerously_allow_addresses = ["{addresses}"]\n'
        path.write_text(text + extra)
        return str(path)

    def web(
        self,
        name: str,
        *,
        tls: bool = False,
        port: int = 0,
        address: str = "127.0.0.1",
        folder: Path | None = None,
        reply: Callable[[Seen], tuple[int, Mapping[str, str], bytes]] | None = None,
    ) -> Site:
        """A server of this name; it serves a folder, or what `reply` says, or tells what it got."""
        site = Site(name, 0, tls=tls)
        handler: Any = partial(_Reflecting, seen=site.seen, reply=reply)
        if folder is not None:
            handler = partial(_Folder, seen=site.seen, directory=str(folder))
        server = _Server((address, port), handler)
        site.port = server.server_address[1]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1"])
            context.sslsocket_class = _Line
            self.authority.issue_cert(name).configure_cert(context)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.names[name] = [address]
        self._serve(server)
        return site

    def is_idle(self, timeout_s: float) -> bool:
        """Wait until no web server has an open connection; False: one still has."""
        deadline = time.monotonic() + timeout_s
        while any(server.open_count for server in self.servers):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _serve(self, server: _Server) -> None:
        self.servers.append(server)
        thread = threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True)
        thread.start()
        self.stack.callback(server.server_close)
        self.stack.callback(server.shutdown)


@dataclass(slots=True)
class Site:
    """A web server, and what it was asked."""

    name: str
    port: int
    tls: bool
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.name}:{self.port}"

    @property
    def rule(self) -> str:
        return f"{self.name}:{self.port}"


@contextmanager
def internet(folder: Path) -> Iterator[Outside]:
    """Up while the block lasts."""
    world = Outside(folder, trustme.CA())
    world.authority.cert_pem.write_to_path(world.ca_file)
    with world.stack as stack:
        line = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        line.bind(("127.0.0.1", 0))
        world.dns_port = line.getsockname()[1]
        thread = threading.Thread(target=_answer_names, args=(line, world), daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(_wake, world.dns_port)
        yield world


def _wake(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.sendto(b"", ("127.0.0.1", port))


def _answer_names(line: socket.socket, world: Outside) -> None:
    while True:
        data, sender = line.recvfrom(4096)
        if not data:
            return
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        found = world.names.get(name)
        if question.rdtype == dns.rdatatype.A:
            world.asked.append(name)
        if found is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        else:
            addresses = found() if callable(found) else found
            kind = "AAAA" if question.rdtype == dns.rdatatype.AAAA else "A"
            fitting = [each for each in addresses if (":" in each) == (kind == "AAAA")]
            if fitting and question.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA):
                reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", kind, *fitting))
        line.sendto(reply.to_wire(), sender)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, *settings: Any) -> None:
        self.open_count = 0
        """Connections that were accepted, and are not closed."""
        self._counting = threading.Lock()
        super().__init__(*settings)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._counting:
            self.open_count += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self.open_count -= 1

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what these tests are about."""


class _Line(ssl.SSLSocket):
    def __del__(self) -> None:
        # One that is reset while it is accepted is forgotten by `ssl`, and would warn.
        self.close()


class _Quiet:
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _Reflecting(_Quiet, BaseHTTPRequestHandler):
    def __init__(self, *args: Any, seen: list[Seen], reply: Any, **kwargs: Any) -> None:
        self._seen, self._reply = seen, reply
        super().__init__(*args, **kwargs)

    def _any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Seen(self.command, self.path, headers, body)
        self._seen.append(request)
        status, more, text = (200, {}, b"hello from outside\n")
        if self._reply is not None:
            status, more, text = self._reply(request)
        self.send_response(status)
        for key, value in more.items():
            self.send_header(key, value)
        if not {key.lower() for key in more} & {"content-length", "transfer-encoding"}:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_REPORT = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _any


class _Folder(_Quiet, SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, seen: list[Seen], **kwargs: Any) -> None:
        self._seen = seen
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self._seen.append(Seen("GET", self.path, headers, b""))
        super().do_GET()

    def end_headers(self) -> None:
        # One answer for each connection: then every client has one of its own on record.
        self.send_header("Connection", "close")
        super().end_headers()


def project_uv() -> str | None:
    """The uv with which this project was installed."""
    root = Path(__file__).parent.parent
    places = [root / ".tools/uv/bin/uv", *(Path(p, "uv") for p in os.get_exec_path())]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)
