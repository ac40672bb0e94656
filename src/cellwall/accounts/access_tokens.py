"""Access tokens: JWTs signed with Ed25519 (RFC 8725, RFC 9068).

A token is accepted so:
  (1) it is short, and its header is exactly {alg, kid, typ} with our algorithm and type: neither
      `none`, nor a symmetric algorithm with the public key as its secret, nor a key by reference;
  (2) the key id names a key of ours that still verifies;
  (3) the signature is right;
  (4) issuer and audience are ours, it has not expired, and every claim has its type.
Whether it was revoked is decided elsewhere, for each request.
"""

from __future__ import annotations

import functools
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from joserfc import jwt
from joserfc.jwk import OKPKey

from cellwall.accounts import failures
from cellwall.core.types import Json

ALGORITHM = "Ed25519"  # the fully specified name (RFC 9864), not the polymorphic EdDSA
_TYPE = "at+jwt"
_HEADER_NAMES = frozenset({"alg", "kid", "typ"})
MAX_TOKEN_CHARACTERS = 4096
_MAX_SKEW_S = 30.0
_MAX_TIME_S = 2.0**53  # neither infinite nor too large for a float; NaN compares as false
_TEXTS = ("iss", "aud", "sub", "jti", "sid")
_NUMBERS = ("exp", "iat")
_COUNTS = ("gen", "ugen")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessClaims:
    """What an access token says."""

    user_id: str
    family_id: str
    jti: str
    audience: str
    issued_s: float
    expires_s: float
    generation: int
    user_generation: int


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key and how long it counts; None: without end."""

    kid: str
    public: bytes
    verify_until_s: float | None
    parsed: Ed25519PublicKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", Ed25519PublicKey.from_public_bytes(self.public))

    def is_live(self, now_s: float) -> bool:
        return self.verify_until_s is None or now_s < self.verify_until_s

    def to_jwk(self) -> dict[str, Json]:
        """As RFC 8037 writes it."""
        jwk = OKPKey.import_key(self.parsed).as_dict()
        return {**jwk, "kid": self.kid, "alg": ALGORITHM, "use": "sig"}


def sign(claims: AccessClaims, *, issuer: str, kid: str, private: bytes) -> str:
    """The token in its compact form."""
    key = OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(private))
    body: dict[str, Any] = {
        "iss": issuer,
        "aud": claims.audience,
        "sub": claims.user_id,
        "sid": claims.family_id,
        "jti": claims.jti,
        "iat": claims.issued_s,
        "exp": claims.expires_s,
        "gen": claims.generation,
        "ugen": claims.user_generation,
    }
    header = {"alg": ALGORITHM, "kid": kid, "typ": _TYPE}
    return jwt.encode(header, body, key, algorithms=[ALGORITHM])


def key_id(token: str) -> str:
    """The key that a token names; raises `SignInRefused` for what is no token of ours."""
    return _read_header(token)


def verify(
    token: str, keys: Sequence[VerificationKey], *, issuer: str, audience: str, now_s: float
) -> AccessClaims:
    """The claims of a token; raises `SignInRefused`, which does not say why."""
    kid = _read_header(token)  # (1)
    key = next((each for each in keys if each.kid == kid and each.is_live(now_s)), None)
    if key is None:  # (2)
        raise failures.bad_token("unknown or expired key")
    signed, _, signature = token.rpartition(".")
    # Not by joserfc, which chooses algorithm and key by the header: (1) has fixed both, and the
    # choice takes as long as the rest of an authentication.
    try:
        key.parsed.verify(_decode(signature), signed.encode("ascii"))  # (3)
        body = json.loads(_decode(signed.partition(".")[2]))
    except (InvalidSignature, ValueError, RecursionError) as error:
        raise failures.bad_token(f"signature: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise failures.bad_token("claims that are no object")
    return _read_claims(body, issuer=issuer, audience=audience, now_s=now_s)


def _decode(text: str) -> bytes:
    """Base64url without padding (RFC 7515); raises `ValueError` for any other spelling of the
    bytes, so that a token has one spelling."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(data).rstrip(b"=") != text.encode("ascii"):
        raise ValueError("not canonical")
    return data


def _read_header(token: str) -> str:
    if len(token) > MAX_TOKEN_CHARACTERS or token.count(".") != 2 or not token.isascii():
        raise failures.bad_token("not a token")
    return _read_encoded_header(token.partition(".")[0])


@functools.lru_cache(maxsize=64)  # the tokens of one key have the same header
def _read_encoded_header(encoded: str) -> str:
    try:
        header = json.loads(_decode(encoded))
    except (ValueError, RecursionError):
        raise failures.bad_token("unreadable header") from None
    if not isinstance(header, dict) or header.keys() != _HEADER_NAMES:
        raise failures.bad_token("unexpected header")
    if (header["alg"], header["typ"]) != (ALGORITHM, _TYPE) or not isinstance(header["kid"], str):
        raise failures.bad_token("unexpected algorithm or type")
    return str(header["kid"])


def _is_time(value: float) -> bool:
    return not isinstance(value, bool) and 0 <= value < _MAX_TIME_S


def _read_claims(
    body: dict[str, Any], *, issuer: str, audience: str, now_s: float
) -> AccessClaims:  # (4)
    texts = [body.get(name) for name in _TEXTS]
    numbers = [body.get(name) for name in _NUMBERS]
    counts = [body.get(name) for name in _COUNTS]
    is_typed = (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int | float) and _is_time(each) for each in numbers)
        and all(type(each) is int for each in counts)
    )
    if not is_typed:
        raise failures.bad_token("a claim is missing or has another type")
    claims = AccessClaims(
        user_id=body["sub"],
        family_id=body["sid"],
        jti=body["jti"],
        audience=body["aud"],
        issued_s=float(body["iat"]),
        expires_s=float(body["exp"]),
        generation=body["gen"],
        user_generation=body["ugen"],
    )
    if body["iss"] != issuer or claims.audience != audience:
        raise failures.ended_token("another issuer or audience")
    if not claims.issued_s - _MAX_SKEW_S <= now_s < claims.expires_s:
        raise failures.ended_token("expired, or not valid yet")
    return claims
