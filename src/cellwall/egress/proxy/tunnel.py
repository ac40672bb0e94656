"""A connection to a named host and port, however it was asked for: CONNECT, SOCKS, transparent.

What may go through it, by what its port promises:
- 80: HTTP, read and judged request by request.
- a host whose rules or secrets need it: TLS that is opened here, or HTTP where the port is its own.
- 443: TLS whose hello names the host that was asked for. Anything else is refused (NET-6).
- any other port, which somebody has allowed by its number: anything; but TLS must name the host,
  and what is not TLS is searched for secrets as it goes (NET-5).
"""

from __future__ import annotations

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.inspection.body_filters import BodyScan
from cellwall.egress.protocols.tls_client_hello import INCOMPLETE, server_name
from cellwall.egress.proxy.client_connection import Visit, tell_nothing, tell_tls
from cellwall.egress.proxy.opened import check_name, serve_http, serve_opened
from cellwall.egress.proxy.relay import Relay
from cellwall.egress.proxy.session import Session, Target
from cellwall.egress.proxy.streams import Lost, reset

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
