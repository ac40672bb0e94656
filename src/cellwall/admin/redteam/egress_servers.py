"""A few names and web servers of this run, which a cell may reach or must not.

All stand on loopback. The configuration of the attacked cell lets allowed names lead to the one
address `GOOD`; the usual loopback address stands for every address that stays blocked, such as that
of a metadata service.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Self

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from cellwall.egress.proxy.certificate_authority import Authority

# Of this process alone: ports 80 and 443 may be wanted by several runs at once.
GOOD = f"127.78.{os.getpid() >> 7 & 255}.{(os.getpid() & 127) + 1}"
_TRAP = "127.0.0.1"
ALLOWED = ("good.example", "loopback.example", "zero.example", "mapped.example", "both.example")
_NAMES = {
    "good.example": (GOOD,),
    "trap.example": (GOOD,),
    "leak.trap.example": (GOOD,),
    "loopback.example": (_TRAP,),
    "zero.example": ("0.0.0.0",),  # noqa: S104  # an answer, no server
    "mapped.example": (f"::ffff:{_TRAP}",),
    "both.example": (GOOD, _TRAP),
}
_HOST = re.compile(rb"\r\nhost: *([^\r\n]*)", re.IGNORECASE)
_REDIRECT = re.compile(rb"GET /to/(\S+) ")
_WITHIN_S = 20.0
_TRIES = 20


class _TlsLine(ssl.SSLSocket):
    """Closed also where `wrap_socket` raises because its client has reset the connection: CPython
    leaves the socket to the collector then, which warns of it."""

    def __del__(self) -> None:
        self.close()


class EgressServers:
    """`contacts` names each server that was reached, `asked` each name of a question."""

    def __init__(self) -> None:
        self.contacts: list[str] = []
        self.asked: set[str] = set()
        self.ports: dict[str, int] = {}
        self.dns_port = 0
        self._server_name: str | None = None
        """Of the latest TLS connection; they are served one after the other."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._listen_on_one_port(stack)
            self._listen(stack, "trap", GOOD, 0, "other")
            # An ordinary user may not listen there; then the attacks on these ports lack a target.
            with suppress(OSError):
                self._listen(stack, "good", GOOD, 80, "http")
            with suppress(OSError):
                self._listen(stack, "good", GOOD, 443, "https", tls=self._tls_context())
            questions = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            questions.bind((_TRAP, 0))
            self.dns_port = questions.getsockname()[1]
            self._serve(stack, self._answer_questions, questions)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def facts(self) -> dict[str, Any]:
        """For the program that attacks, and for its control."""
        return {"ports": self.ports, "good": GOOD, "names": {n: a[-1] for n, a in _NAMES.items()}}

    @property
    def rules(self) -> tuple[str, ...]:
        """The allowlist of the attacked cell."""
        numbers = [self.ports[name] for name in ("good", "http", "https") if name in self.ports]
        named = [f"{name}:{number}" for name in ALLOWED for number in numbers]
        return (*named, f"{_TRAP}:{self.ports['good']}")

    def _listen_on_one_port(self, stack: ExitStack) -> None:
        """The same port on both addresses, so that only the address tells them apart."""
        for _ in range(_TRIES):
            with ExitStack() as tried:
                self._listen(tried, "good", GOOD, 0, "good")
                port = self.ports["good"]
                try:
                    self._listen(tried, "trap", _TRAP, port)
                except OSError:
                    continue
                with suppress(OSError):  # a host without IPv6
                    self._listen(tried, "trap", "::1", port)
                stack.enter_context(tried.pop_all())
                return
        raise OSError("no port is free on two addresses")

    def _listen(
        self,
        stack: ExitStack,
        name: str,
        address: str,
        port: int,
        key: str = "",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = stack.enter_context(socket.create_server((address, port), family=family))
        if key:
            self.ports[key] = server.getsockname()[1]
        self._serve(stack, lambda line: self._greet(line, name, tls), server)

    def _tls_context(self) -> ssl.SSLContext:
        """Answers under any name, and notes which one was asked for."""
        context = Authority().context_for("good.example")
        context.sslsocket_class = _TlsLine

        def note(_line: object, name: str | None, _context: object) -> None:
            self._server_name = name

        context.sni_callback = note
        return context

    def _serve(
        self, stack: ExitStack, work: Callable[[socket.socket], None], server: socket.socket
    ) -> None:
        thread = threading.Thread(target=work, args=(server,), daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(_wake, server)

    def _greet(self, server: socket.socket, name: str, tls: ssl.SSLContext | None) -> None:
        """Tell each client which server it has reached, and by which names."""
        with suppress(OSError):
            while True:
                line, _ = server.accept()
                line.settimeout(_WITHIN_S)
                with suppress(OSError), line:
                    self._answer(line, name, tls)

    def _answer(self, line: socket.socket, name: str, tls: ssl.SSLContext | None) -> None:
        if tls is None:
            self._reply_to(line, name, None)
            return
        with tls.wrap_socket(line, server_side=True) as wrapped:
            self._reply_to(wrapped, name, self._server_name)

    def _reply_to(self, line: socket.socket, name: str, server_name: str | None) -> None:
        self.contacts.append(name)
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 8192:
            piece = line.recv(4096)
            if not piece:
                return
            head += piece
        host = _HOST.search(head)
        text = f"{name} host={host[1].decode('latin-1') if host else ''} sni={server_name}"
        status, more = "200 OK", ""
        if (to := _REDIRECT.match(head)) is not None:
            status, more = "302 Found", f"Location: http://{to[1].decode('ascii', 'replace')}/\r\n"
        line.sendall(
            f"HTTP/1.1 {status}\r\n{more}Content-Type: text/plain\r\nConnection: close\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode("latin-1")
        )

    def _answer_questions(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                data, sender = server.recvfrom(2048)
                if not data:  # shut down
                    return
                with suppress(dns.exception.DNSException, ValueError):
                    server.sendto(self._reply(data), sender)

    def _reply(self, data: bytes) -> bytes:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        self.asked.add(name)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name not in _NAMES:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        kinds = {dns.rdatatype.A: "A", dns.rdatatype.AAAA: "AAAA"}
        kind = kinds.get(question.rdtype, "")
        fitting = [a for a in _NAMES.get(name, ()) if (":" in a) == (kind == "AAAA")]
        if kind and fitting:
            reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", kind, *fitting))
        return reply.to_wire()


def _wake(server: socket.socket) -> None:
    """Closing alone leaves a thread waiting in the kernel."""
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
