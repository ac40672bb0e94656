"""TLS towards a server that was allowed: verified, with the name that was asked for."""

from __future__ import annotations

import ssl

from cellwall.core.errors import EgressRefused
from cellwall.egress.proxy.streams import Lost, TlsWire, Wire

HTTP_1 = "http/1.1"
HTTP_2 = "h2"


async def secured(
    wire: Wire,
    tls: ssl.SSLContext,
    host: str,
    until: float,
    *,
    protocols: tuple[str, ...] = (HTTP_1,),
) -> TlsWire:
    """The same connection with TLS on it; `EgressRefused` if the server is not who it should be.

    `protocols` are what it may speak inside, the best one first.
    """
    # OpenSSL copies them into the connection that is made next, which is this one.
    tls.set_alpn_protocols(list(protocols))
    stream = TlsWire(wire, tls, server_name=host)
    try:
        await stream.handshake(until)
    except ssl.SSLCertVerificationError as error:
        raise EgressRefused(
            f"the certificate of {host} is not good: {error.verify_message}",
            hint="Look whether the name is right; this host must trust the server's authority.",
            code="CW-UPSTREAM-TLS",
        ) from None
    except (ssl.SSLError, Lost) as error:
        raise EgressRefused(
            f"{host} does not speak TLS as it should",
            hint="Look whether this port is served with TLS 1.2 or newer.",
            code="CW-UPSTREAM-TLS",
            detail=repr(error),
        ) from None
    return stream
