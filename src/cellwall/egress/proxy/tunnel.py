"""A connection to a named host and port, by CONNECT, SOCKS or transparently.

The port decides what may pass:
- 80: HTTP, parsed and authorized request by request.
- a host whose rules or secrets need it: TLS that is intercepted here with the session's own
  authority, or HTTP on a port that a rule names (NET-6).
- 443: TLS whose SNI is the requested host. Anything else is refused (NET-6).
- any other port that a rule names: any protocol; but TLS must name the host, and bytes other than
  TLS are scanned for secrets (NET-5).
"""

from __future__ import annotations

import asyncio
import ssl

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.destinations.hostnames import address_of, host_of
from cellwall.egress.inspection.body_filters import BodyScan
from cellwall.egress.protocols.tls_client_hello import Hello, read_hello
from cellwall.egress.proxy.client_connection import (
    ClientConnection,
    http_refusal,
    no_refusal,
    tls_alert,
)
from cellwall.egress.proxy.connections import HTTP_1, HTTP_2, UpstreamConnection
from cellwall.egress.proxy.h2_proxy import Http2Proxy
from cellwall.egress.proxy.http1_exchange import Http1Exchange
from cellwall.egress.proxy.relay import SocketRelay
from cellwall.egress.proxy.session import EgressSession, ResolvedDestination
from cellwall.egress.proxy.streams import PeerClosed, TlsStream, reset

_HTTP_PORT = 80
_TLS_PORT = 443
_TLS_RECORD = 0x16


async def tunnel(
    session: EgressSession,
    connection: ClientConnection,
    target: ResolvedDestination,
    *,
    accept: bytes,
) -> None:
    """`accept` is sent to the client when it may continue."""
    if target.destination.port == _HTTP_PORT:
        await connection.send(accept, session.settings)
        await serve_http(session, connection, target)
    elif target.destination.intercepts_tls:
        await connection.send(accept, session.settings)
        await serve_intercepted(session, connection, target)
    else:
        await _pass_through(session, connection, target, accept=accept)


async def _pass_through(
    session: EgressSession,
    connection: ClientConnection,
    target: ResolvedDestination,
    *,
    accept: bytes,
) -> None:
    settings = session.settings
    known = session.shared.known.index()
    leak_reporter = session.leak_reporter(
        target.destination.host, target.destination.port, via=connection.via
    )
    scan = BodyScan((), known, leak_reporter=leak_reporter, share=session.share)
    upstream, connection_record = await session.connect(target, via=connection.via)
    try:
        await connection.send(accept, settings)
    except BaseException:
        reset(upstream)
        connection_record.write_closed()
        raise
    is_tls_port = target.destination.port == _TLS_PORT
    connection.encode_refusal = no_refusal
    client, first_up = connection.transport.release()

    def let(data: bytes) -> bool:
        if data[0] != _TLS_RECORD and not is_tls_port:
            relay.look_at(scan.look)
            return True
        return _has_matching_sni(connection, data, target.destination.host)

    relay = SocketRelay(
        client,
        upstream,
        pipes=session.shared.pipes,
        budget=session.budget,
        idle_timeout_s=settings.idle_timeout_s,
        first_up=first_up,
        guard=let,
        guard_timeout_s=settings.head_timeout_s if is_tls_port else None,
    )
    error: CellwallError | None = None
    try:
        await relay.run()
    except PeerClosed:
        pass  # one side was reset; the relay has reset the other
    except EgressRefused as refusal:
        error = refusal
        raise
    finally:
        up_bytes, down_bytes = relay.received_bytes
        connection_record.write_closed(up_bytes=up_bytes, down_bytes=down_bytes, error=error)


def _has_matching_sni(connection: ClientConnection, data: bytes, host: str) -> bool:
    if data[0] == _TLS_RECORD:
        connection.encode_refusal = tls_alert
    hello = read_hello(data)
    if hello is None:
        return False
    check_name(hello.name, host)
    return True


async def serve_http(
    session: EgressSession, connection: ClientConnection, target: ResolvedDestination
) -> None:
    """Serve HTTP without TLS to one host."""
    connection.encode_refusal = http_refusal
    await Http1Exchange(session, connection, fixed=target, is_tls=False).run()


async def serve_intercepted(
    session: EgressSession, connection: ClientConnection, target: ResolvedDestination
) -> None:
    """Serve HTTP in TLS to one host; without TLS only on a port that a rule names."""
    connection.encode_refusal = no_refusal
    until = asyncio.get_running_loop().time() + session.settings.head_timeout_s
    data = await connection.transport.recv(until)
    if not data:
        raise PeerClosed
    if data[0] != _TLS_RECORD and target.destination.port != _TLS_PORT:
        connection.transport.push_back(data)
        await serve_http(session, connection, target)
        return
    connection.encode_refusal = tls_alert if data[0] == _TLS_RECORD else no_refusal
    while (hello := read_hello(data, is_intercepted=True)) is None:
        if not (more := await connection.transport.recv(until)):
            raise PeerClosed
        data += more
    check_name(hello.name, target.destination.host)
    connection.transport.push_back(data)
    if session.authority is None:
        raise EgressRefused(
            "a rule or a secret needs this connection to be intercepted, and the sandbox cannot",
            hint="Start a new sandbox with this rule.",
            code="CW-NO-AUTHORITY",
        )
    ready = await _connect_upstream(session, connection, target, hello)
    protocol = ready.protocol if isinstance(ready, UpstreamConnection) else HTTP_1
    try:
        context = session.authority.context_for(target.destination.host, protocol)
        stream = await _intercept(session, connection, context)
    except BaseException:
        if isinstance(ready, UpstreamConnection):
            ready.drop()
        raise
    connection.stream = stream
    if isinstance(ready, UpstreamConnection) and protocol == HTTP_2:
        await Http2Proxy(session, connection, ready).run()
        return
    connection.encode_refusal = http_refusal
    await Http1Exchange(session, connection, fixed=target, is_tls=True, ready=ready).run()


async def _connect_upstream(
    session: EgressSession, connection: ClientConnection, target: ResolvedDestination, hello: Hello
) -> UpstreamConnection | CellwallError | None:
    """Connect to the server first if the client offers HTTP/2, to learn if the server does.

    An error is sent to the client with its first request. If the client offers only HTTP/1.1, the
    connection is made for its first allowed request.
    """
    destination = target.destination
    is_service = destination.service is not None  # which answers HTTP/1.1
    offers_http2 = HTTP_2.encode() in hello.protocols
    if is_service or not offers_http2 or session.is_http1_only(destination):
        return None
    try:
        protocols = HTTP_2, HTTP_1
        server = await UpstreamConnection.connect(
            session, target, is_tls=True, via=connection.via, protocols=protocols
        )
    except CellwallError as error:
        return error
    if server.protocol == HTTP_1:
        session.note_http1_only(destination)
    return server


async def _intercept(
    session: EgressSession, connection: ClientConnection, context: ssl.SSLContext
) -> TlsStream:
    stream = TlsStream(connection.transport, context, server_name=None)
    try:
        await stream.handshake(asyncio.get_running_loop().time() + session.settings.head_timeout_s)
    except ssl.SSLError as error:
        # OpenSSL has sent its alert. Mostly the program does not trust the session's authority.
        connection.encode_refusal = no_refusal
        raise EgressRefused(
            "the TLS handshake failed",
            hint="The program must trust /.cellwall/net/ca.pem (see SSL_CERT_FILE).",
            code="CW-BAD-TLS",
            detail=repr(error),
        ) from None
    return stream


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
