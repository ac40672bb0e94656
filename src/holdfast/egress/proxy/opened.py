"""TLS that ends here, by the session's own authority, so that requests can be judged (NET-6)."""

from __future__ import annotations

import asyncio
import ssl

from holdfast.core.errors import EgressRefused
from holdfast.egress.protocols.client_hello import INCOMPLETE, server_name
from holdfast.egress.proxy.exchange import Exchange
from holdfast.egress.proxy.session import Session, Target
from holdfast.egress.proxy.visit import Visit, tell_http, tell_nothing, tell_tls
from holdfast.egress.proxy.wire import Lost, TlsWire
from holdfast.egress.reach.names import address_of, host_of

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
    while (name := server_name(data, is_opened=True)) is INCOMPLETE:
        if not (more := await visit.wire.recv(until)):
            raise Lost
        data += more
    check_name(name, target.way.host)
    visit.wire.push_back(data)
    if session.authority is None:
        raise EgressRefused(
            "a rule or a secret needs this connection to be opened, and the sandbox cannot",
            mend="Start a new sandbox with this rule.",
            code="HF-NO-AUTHORITY",
        )
    stream = TlsWire(visit.wire, session.authority.context_for(target.way.host), server_name=None)
    try:
        await stream.handshake(until)
    except ssl.SSLError as error:
        # OpenSSL has sent its alert. Mostly: a program that does not trust the cell's authority.
        visit.tell = tell_nothing
        raise EgressRefused(
            "the TLS connection could not be opened",
            mend="The program must trust /.holdfast/net/ca.pem, which SSL_CERT_FILE names.",
            code="HF-BAD-TLS",
            detail=repr(error),
        ) from None
    visit.stream = stream
    visit.tell = tell_http
    await Exchange(session, visit, fixed=target, is_tls=True).run()


def check_name(name: str | None, host: str) -> None:
    """The name in a client's hello must be that of the host that was asked for."""
    if name is None:
        # An address has no name that a hello could state (RFC 6066).
        if address_of(host) is not None:
            return
        raise EgressRefused(
            "the TLS connection does not say which host it is for",
            mend="Use a client that sends the server's name (SNI).",
            code="HF-SNI",
        )
    if str(host_of(name)) != host:
        raise EgressRefused(
            "the TLS connection is for another host than was asked for",
            mend="Open a connection for each host.",
            code="HF-SNI",
        )
