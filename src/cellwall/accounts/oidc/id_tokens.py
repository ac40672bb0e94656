"""Verifies ID tokens (OpenID Connect Core 3.1.3.7, RFC 8725). Pure.

(1) short, three parts, an asymmetric algorithm that is allowed: neither `none` nor HMAC, whose
    key an attacker could replace by our public one;
(2) a key of the provider's key set, by its id, of the type of that algorithm; keys and addresses
    of keys in the header are never used;
(3) the signature;
(4) issuer, audience, authorised party, expiry, age, nonce and subject.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from cellwall.accounts import failures

_MAX_TOKEN_CHARACTERS = 32_768
_MAX_SKEW_S = 60.0
_MAX_AGE_S = 3600.0
_MIN_RSA_BITS = 2048
_MAX_SUBJECT_CHARACTERS = 255  # OpenID Connect Core 2
_TYPES: Mapping[str, tuple[str, str]] = {
    "RS256": ("RSA", ""),
    "PS256": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "Ed25519": ("OKP", "Ed25519"),
}
ALGORITHMS = tuple(_TYPES)
_KeyClass = type[RSAKey] | type[ECKey] | type[OKPKey]
_CLASSES: Mapping[str, _KeyClass] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


def verify(
    token: str,
    keys: Sequence[Mapping[str, Any]],
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    algorithms: Sequence[str],
    now_s: float,
) -> dict[str, Any]:
    """The claims of a token; raises `SignInRefused`, and `UnknownKey` for a new key id."""
    algorithm, kid = _read_header(token, algorithms)  # (1)
    key = _find_key(keys, algorithm, kid)  # (2)
    try:
        decoded = jwt.decode(token, key, algorithms=[algorithm])  # (3)
    except (JoseError, ValueError, TypeError) as error:
        raise failures.bad_identity(f"signature: {type(error).__name__}") from None
    claims: dict[str, Any] = decoded.claims
    _check_claims(claims, issuer=issuer, client_id=client_id, now_s=now_s)  # (4)
    found = claims.get("nonce")
    told = found.encode("utf-8", "surrogatepass") if isinstance(found, str) else b""
    if not hmac.compare_digest(told, nonce.encode()):
        raise failures.bad_identity("another nonce")
    return claims


def _read_header(token: str, algorithms: Sequence[str]) -> tuple[str, str | None]:
    if len(token) > _MAX_TOKEN_CHARACTERS or token.count(".") != 2 or not token.isascii():
        raise failures.bad_identity("not a token")
    encoded = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        raise failures.bad_identity("unreadable header") from None
    if not isinstance(header, dict) or "crit" in header:
        raise failures.bad_identity("unexpected header")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(kid, str | None):
        raise failures.bad_identity("unexpected header")
    if algorithm not in _TYPES or algorithm not in algorithms:
        raise failures.bad_identity("the algorithm is not allowed")
    return algorithm, kid


def _find_key(
    keys: Sequence[Mapping[str, Any]], algorithm: str, kid: str | None
) -> RSAKey | ECKey | OKPKey:
    kind, curve = _TYPES[algorithm]
    fitting = [
        key
        for key in keys
        if key.get("kty") == kind
        and (not curve or key.get("crv") == curve)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (kid is None or key.get("kid") == kid)
    ]
    if len(fitting) != 1:
        if kid is not None and not any(key.get("kid") == kid for key in keys):
            raise failures.UnknownKey
        raise failures.bad_identity("no single key fits")
    try:
        key = _CLASSES[kind].import_key(dict(fitting[0]))
    except (JoseError, ValueError, TypeError) as error:
        raise failures.bad_identity(f"key: {type(error).__name__}") from None
    if isinstance(key, RSAKey) and key.public_key.key_size < _MIN_RSA_BITS:
        raise failures.bad_identity("the key is too short")
    return key


def _check_claims(claims: Mapping[str, Any], *, issuer: str, client_id: str, now_s: float) -> None:
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or client_id not in audiences:
        raise failures.bad_identity("another audience")
    is_shared = len(audiences) > 1 or "azp" in claims
    if claims.get("iss") != issuer or (is_shared and claims.get("azp") != client_id):
        raise failures.bad_identity("another issuer or authorised party")
    times = [claims.get("exp"), claims.get("iat"), claims.get("nbf", 0)]
    if not all(type(each) in {int, float} for each in times):
        raise failures.bad_identity("a time is missing")
    try:
        expires_s, issued_s, from_s = map(float, times)  # NaN compares as false below
    except OverflowError:  # an integer above 1e308
        raise failures.bad_identity("a time that no clock shows") from None
    is_now = now_s - _MAX_SKEW_S < expires_s and from_s <= now_s + _MAX_SKEW_S
    if not is_now or not -_MAX_SKEW_S <= now_s - issued_s <= _MAX_AGE_S:
        raise failures.bad_identity("expired, old, or not valid yet")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_CHARACTERS:
        raise failures.bad_identity("no subject")
    if not subject.isprintable():
        raise failures.bad_identity("no subject")
