"""A server inside a sandbox gets no token of the service (ISO-3, SEC-1)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cellwall.accounts.access_tokens import AccessClaims, sign
from cellwall.interfaces.previews.exchange import request_headers


def other_jwt(body: object) -> bytes:
    parts = ({"alg": "HS256", "typ": "at+jwt"}, body)
    encoded = [urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts]
    return b".".join((*encoded, b"c2lnbmF0dXJl"))


def access_token() -> bytes:
    claims = AccessClaims(
        audience="http://127.0.0.1/v1",
        user_id="usr_1",
        family_id="fam_1",
        jti="tok_1",
        issued_s=1,
        expires_s=2,
        generation=0,
        user_generation=0,
    )
    private = Ed25519PrivateKey.generate().private_bytes_raw()
    return sign(claims, issuer="http://127.0.0.1", kid="key_1", private=private).encode()


@pytest.mark.requirement("SEC-1")
@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_a_token_of_the_service_stays_outside(name):
    for token in (access_token(), b"cwk_" + b"a" * 40):
        for value in (b"Bearer " + token, token, b"Basic x, Bearer " + token):
            assert request_headers([(name, value)], keeps_authorization=True) == []


@pytest.mark.parametrize(
    "token",
    [
        other_jwt({"iss": "http://127.0.0.1", "aud": "a", "sub": "b", "jti": "c"}),
        other_jwt(["iss", "aud", "sub", "sid", "jti", "gen", "ugen"]),
        b"eyJ.\xff.x",
        b"eyJhbGciOiJub25lIn0." + b"W" * 60_000 + b".x",
        b"opaque",
    ],
)
def test_a_token_for_the_server_inside_reaches_it(token):
    header = (b"authorization", b"Bearer " + token)
    assert request_headers([header], keeps_authorization=True) == [header]
