"""A connection to a named host and port, however it was asked for: CONNECT, SOCKS, transparent.

What may go through it, by what its port promises:
- 80: HTTP, read and judged request by request.
- a host whose rules or secrets need it: TLS that is opened here, or HTTP where the port is its own.
- 443: TLS whose hello names the host that was asked for. Anything else is refused (NET-6).
- any other port, which somebody has allowed by its number: anything; but TLS must name the host,
  and what is not TLS is searched for secrets as it goes (NET-5).
"""

from __future__ import annotations

import asyncio
import ssl

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.destinations.hostnames import address_of, host_of
from cellwall.egress.inspection.body_filters import BodyScan
from cellwall.egress.protocols.tls_client_hello import (
    INCOMPLETE,
    Hello,
    Incomplete,
    read_hello,
    server_name,
)
from cellwall.egress.proxy.client_connection import Visit, tell_http, tell_nothing, tell_tls
from cellwall.egress.proxy.connections import HTTP_1, HTTP_2, ServerEnd
from cellwall.egress.proxy.h2_proxy import Pair
from cellwall.egress.proxy.http1_exchange import Exchange
from cellwall.egress.proxy.relay import Relay
from cellwall.egress.proxy.session import Session, Target
from cellwall.egress.proxy.streams import Lost, TlsWire, reset

_HTTP_PORT = 80
_TLS_PORT = 443
_TLS_RECORD = 0x16


async def tunnel(session: Session, visit: Visit, target: Target, *, accept: bytes) -> None:
    """`accept` is what the client is told when it may go on."""
    if target.way.port == _HTTP_PORT:
        await visit.send(accept, session.settings)
        await serve_http(session, visit, target)
    elif target.way.open_tls:
        await visit.send(accept, session.settings)
        await serve_opened(session, visit, target)
    else:
        await _pass_through(session, visit, target, accept=accept)


async def _pass_through(session: Session, visit: Visit, target: Target, *, accept: bytes) -> None:
    settings = session.settings
    known = session.outside.known.index()
    lookout = session.lookout(target.way.host, target.way.port, via=visit.via)
    scan = BodyScan((), known, lookout=lookout, share=session.share)
    upstream, journey = await session.connect(target, via=visit.via)
    try:
        await visit.send(accept, settings)
    except BaseException:
        reset(upstream)
        journey.ended()
        raise
    is_tls_port = target.way.port == _TLS_PORT
    visit.tell = tell_nothing
    client, first_up = visit.wire.release()

    def let(data: bytes) -> bool:
        if data[0] != _TLS_RECORD and not is_tls_port:
            relay.look_at(scan.check)
            return True
        return _is_named(visit, data, target.way.host)

    relay = Relay(
        client,
        upstream,
        pipes=session.outside.pipes,
        budget=session.budget,
        idle_timeout_s=settings.idle_timeout_s,
        first_up=first_up,
        guard=let,
        guard_timeout_s=settings.head_timeout_s if is_tls_port else None,
    )
    error: CellwallError | None = None
    try:
        await relay.run()
    except Lost:
        pass  # one side was reset, and so is the other now
    except EgressRefused as refusal:
        error = refusal
        raise
    finally:
        carried = relay.carried
        journey.ended(up_bytes=carried.up_bytes, down_bytes=carried.down_bytes, error=error)


def _is_named(visit: Visit, data: bytes, host: str) -> bool:
    if data[0] == _TLS_RECORD:
        visit.tell = tell_tls
    name = server_name(data)
    if name is INCOMPLETE:
        return False
    check_name(name, host)
    return True


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
    if data[0] != _TLS_RECORD and target.way.port != _TLS_PORT:
        visit.wire.push_back(data)
        await serve_http(session, visit, target)
        return
    visit.tell = tell_tls if data[0] == _TLS_RECORD else tell_nothing
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
