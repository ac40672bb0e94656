"""TLS that ends here, by the session's own authority, so that requests can be judged (NET-6)."""

from __future__ import annotations

import asyncio
import ssl

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.destinations.hostnames import address_of, host_of
from cellwall.egress.protocols.tls_client_hello import Hello, Incomplete, read_hello
from cellwall.egress.proxy.client_connection import Visit, tell_http, tell_nothing, tell_tls
from cellwall.egress.proxy.connections import ServerEnd
from cellwall.egress.proxy.h2_proxy import Pair
from cellwall.egress.proxy.http1_exchange import Exchange
from cellwall.egress.proxy.session import Session, Target
from cellwall.egress.proxy.streams import Lost, TlsWire
from cellwall.egress.proxy.upstream_tls import HTTP_1, HTTP_2

_TLS_PORT = 443
_TLS_RECORD = b"\x16"


async def serve_http(session: Session, visit: Visit, target: Target) -> None:
    """HTTP without TLS to one host."""
    visit.tell = tell_http
    await Exchange(session, visit, fixed=target, is_tls=False).run()


async def serve_opened(session: Session, visit: Visit, target: Target) -> None:
    """HTTP in TLS to one host; without TLS only where the port was allowed by its number."""
    visit.tell = tell_nothing
    until = asyncio.get_running_loop().time() + session.settings.head_timeout_s
    data = await visit.wire.recv(until)
    if not data:
        raise Lost
    if data[:1] != _TLS_RECORD and target.way.port != _TLS_PORT:
        visit.wire.push_back(data)
        await serve_http(session, visit, target)
        return
    visit.tell = tell_tls if data[:1] == _TLS_RECORD else tell_nothing
    while isinstance(hello := read_hello(data, is_opened=True), Incomplete):
        if not (more := await visit.wire.recv(until)):
            raise Lost
        data += more
    check_name(hello.name, target.way.host)
    visit.wire.push_back(data)
    if session.authority is None:
        raise _no_authority()
    ready = await _reached(session, visit, target, hello)
    protocol = ready.protocol if isinstance(ready, ServerEnd) else HTTP_1
    try:
        stream = await _opened(session, visit, target.way.host, protocol)
    except BaseException:
        if isinstance(ready, ServerEnd):
            ready.drop()
        raise
    visit.stream = stream
    if isinstance(ready, ServerEnd) and protocol == HTTP_2:
        await Pair(session, visit, ready).run()
        return
    visit.tell = tell_http
    await Exchange(session, visit, fixed=target, is_tls=True, ready=ready).run()


async def _reached(
    session: Session, visit: Visit, target: Target, hello: Hello
) -> ServerEnd | CellwallError | None:
    """A connection to the server, where it has to say whether it speaks HTTP/2 as the client does.

    If there is none, the client is told so when it asks for something. Where there is nothing to
    choose, the connection waits for a request that is allowed.
    """
    way = target.way
    if HTTP_2.encode() not in hello.protocols or session.is_of_http_1(way):
        return None
    try:
        protocols = HTTP_2, HTTP_1
        server = await ServerEnd.connect(
            session, target, is_tls=True, via=visit.via, protocols=protocols
        )
    except CellwallError as error:
        return error
    if server.protocol == HTTP_1:
        session.found_http_1(way)
    return server


async def _opened(session: Session, visit: Visit, host: str, protocol: str) -> TlsWire:
    if session.authority is None:
        raise _no_authority()
    stream = TlsWire(visit.wire, session.authority.context_for(host, protocol), server_name=None)
    try:
        await stream.handshake(asyncio.get_running_loop().time() + session.settings.head_timeout_s)
    except ssl.SSLError as error:
        # OpenSSL has sent its alert. Mostly: a program that does not trust the cell's authority.
        visit.tell = tell_nothing
        raise EgressRefused(
            "the TLS connection could not be opened",
            hint="The program must trust /.cellwall/net/ca.pem, which SSL_CERT_FILE names.",
            code="CW-BAD-TLS",
            detail=repr(error),
        ) from None
    return stream


def _no_authority() -> EgressRefused:
    return EgressRefused(
        "a rule or a secret needs this connection to be opened, and the sandbox cannot",
        hint="Start a new sandbox with this rule.",
        code="CW-NO-AUTHORITY",
    )


def check_name(name: str | None, host: str) -> None:
    """The name in a client's hello must be that of the host that was asked for."""
    if name is None:
        # An address has no name that a hello could state (RFC 6066).
        if address_of(host) is not None:
            return
        raise EgressRefused(
            "the TLS connection does not say which host it is for",
            hint="Use a client that sends the server's name (SNI).",
            code="CW-SNI",
        )
    if str(host_of(name)) != host:
        raise EgressRefused(
            "the TLS connection is for another host than was asked for",
            hint="Open a connection for each host.",
            code="CW-SNI",
        )
