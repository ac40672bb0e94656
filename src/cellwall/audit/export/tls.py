"""TLS to a receiver, which is verified unless the operator forbids it in so many words."""

from __future__ import annotations

import ssl

from cellwall.audit.export.address import unfit
from cellwall.audit.export.target import TlsSettings


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer; name, validity and authority are checked (RFC 5425, 5.2)."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError:  # ssl.SSLError is one
        raise unfit("the CA file cannot be used", "Give a readable file of PEM.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.client_cert_file is not None:
        try:
            # An empty password: else OpenSSL would ask for one at the terminal, and cron has none.
            context.load_cert_chain(
                settings.client_cert_file, settings.client_key_file, password=b""
            )
        except (OSError, ValueError):
            raise unfit(
                "the client certificate cannot be used",
                "Give readable files of PEM that belong together, the key not encrypted.",
            ) from None
    if settings.dangerously_accept_any_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
