"""The structures that authenticators write (WebAuthn Level 3, section 6), before a library decodes
all of CBOR in them. Each raises `ValueError`."""

from __future__ import annotations

from collections.abc import Mapping

from webauthn.helpers import parse_cbor
from webauthn.helpers.exceptions import InvalidCBORData

from cellwall.parsing.cbor import plain_end

_FLAGS_AT, _MIN_BYTES = 32, 37
_ATTESTED = 0x40
_AAGUID_BYTES = 16
_FORMATS = frozenset({"none", "packed"})
"""Attestation is not asked for; some authenticators sign their own all the same."""


def check_attestation(data: bytes) -> None:
    """Of an attestation object, and of the authenticator data in it. Other formats than the two
    are never parsed: they bring certificates, structures of TPMs and signed JSON."""
    if plain_end(data) != len(data):
        raise ValueError("data behind the attestation")
    try:
        found = parse_cbor(data)
    except InvalidCBORData:  # a key twice, or text that is not UTF-8
        raise ValueError("not CBOR") from None
    inner = found.get("authData") if isinstance(found, Mapping) else None
    name = found.get("fmt") if isinstance(found, Mapping) else None
    if not isinstance(inner, bytes) or not isinstance(name, str) or name not in _FORMATS:
        raise ValueError("another format of attestation")
    check_authenticator_data(inner)


def check_authenticator_data(data: bytes) -> None:
    """The key and the extensions are plain, wherever one ends and the other begins."""
    if len(data) < _MIN_BYTES:
        raise ValueError("too short")
    at = _MIN_BYTES
    if data[_FLAGS_AT] & _ATTESTED:
        at += _AAGUID_BYTES
        at += 2 + int.from_bytes(data[at : at + 2], "big")
    while at < len(data):
        at = plain_end(data, at)
