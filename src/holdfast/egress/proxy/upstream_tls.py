"""TLS towards a server that was allowed: verified, with the name that was asked for."""

from __future__ import annotations

import ssl

from holdfast.core.errors import EgressRefused
from holdfast.egress.proxy.wire import Lost, TlsWire, Wire


async def secured(wire: Wire, tls: ssl.SSLContext, host: str, until: float) -> TlsWire:
    """The same connection with TLS on it; `EgressRefused` if the server is not who it should be."""
    stream = TlsWire(wire, tls, server_name=host)
    try:
        await stream.handshake(until)
    except ssl.SSLCertVerificationError as error:
        raise EgressRefused(
            f"the certificate of {host} is not good: {error.verify_message}",
            mend="Look whether the name is right; this host must trust the server's authority.",
            code="HF-UPSTREAM-TLS",
        ) from None
    except (ssl.SSLError, Lost) as error:
        raise EgressRefused(
            f"{host} does not speak TLS as it should",
            mend="Look whether this port is served with TLS 1.2 or newer.",
            code="HF-UPSTREAM-TLS",
            detail=repr(error),
        ) from None
    return stream
