"""Recognises tokens of the service, so that no server inside a sandbox gets one."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode

# Service tokens, tokens of links and those of E2B's SDK: programs send them with each request.
_SERVICE_TOKEN = re.compile(rb"\bcw[a-z]_[A-Za-z0-9_-]{20}")
_JWT = re.compile(rb"\beyJ[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
_CLAIMS = frozenset(("iss", "aud", "sub", "sid", "jti", "gen", "ugen"))
"""Every access token of the service has them; a JWT of a server inside may have some."""


def is_own_credential(value: bytes) -> bool:
    """Whether the value of a header contains a token of the service, of any service of Cellwall."""
    if _SERVICE_TOKEN.search(value):
        return True
    return any(_has_our_claims(each.group(1)) for each in _JWT.finditer(value))


def _has_our_claims(payload: bytes) -> bool:
    try:
        body = json.loads(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.keys() >= _CLAIMS
