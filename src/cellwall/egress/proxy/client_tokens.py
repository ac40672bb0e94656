"""The credentials of programs outside of any sandbox: a name and a token (NET-8). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.http1_framing import Fields, Headers, bad_request

_FIELD = b"proxy-authorization"
_MAX_BYTES = 512


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request presents; the token only as its digest."""

    name: str
    """Empty for Bearer, which carries none."""
    token_sha256: bytes = field(repr=False)

    def belong_to(self, name: str, token_sha256: bytes) -> bool:
        """Whether these are the credentials of that client; in constant time for the token."""
        is_token = hmac.compare_digest(self.token_sha256, token_sha256)
        return is_token and self.name in ("", name)


def read_credentials(headers: Headers) -> Credentials | None:
    """The credentials of a request to the proxy; None without any, or for an unknown scheme.

    Two headers are ambiguous: another proxy in between may have authenticated the other one.
    """
    values = [value for name, value in headers if name == _FIELD]
    if len(values) > 1:
        raise bad_request("it has more than one Proxy-Authorization header")
    if not values or len(values[0]) > _MAX_BYTES:
        return None
    scheme, _, rest = values[0].partition(b" ")
    match scheme.lower():
        case b"basic":
            return _read_basic(rest.strip())
        case b"bearer":
            return Credentials("", hashlib.sha256(rest.strip()).digest())
        case _:
            return None


def _read_basic(encoded: bytes) -> Credentials | None:
    try:
        name, colon, token = base64.b64decode(encoded, validate=True).partition(b":")
        text = name.decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not (text and colon):
        return None  # without a name it would be a second way to write Bearer
    return Credentials(text, hashlib.sha256(token).digest())


def without_credentials(headers: Headers) -> Fields:
    """The headers that are inspected and forwarded."""
    return [pair for pair in headers if pair[0] != _FIELD]


def token_refused(detail: str = "") -> EgressRefused:
    """One error for no, a malformed, an unknown and another client's token: no oracle."""
    return EgressRefused(
        "the proxy does not know this client",
        hint="Set HTTPS_PROXY to the URL that `cellwall proxy` printed for this client; a token "
        "ends with the proxy that printed it.",
        code="CW-PROXY-TOKEN",
        detail=detail,
    )
