"""ID tokens that somebody forged, replayed or signed for another client (SRV-2, RFC 8725)."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from cellwall.accounts import failures
from cellwall.accounts.oidc.id_tokens import ALGORITHMS, verify
from cellwall.core.errors import SignInRefused

pytestmark = pytest.mark.requirement("SRV-2")
ISSUER, CLIENT, NONCE, NOW_S = "https://login.example", "cellwall", "n" * 43, 1_800_000_000.0
RSA = RSAKey.generate_key(2048, {"kid": "r", "use": "sig"}, private=True)
EC = ECKey.generate_key("P-256", {"kid": "e", "alg": "ES256"}, private=True)
OKP = OKPKey.generate_key("Ed25519", {"kid": "o"}, private=True)
KEYS = [key.as_dict(private=False) for key in (RSA, EC, OKP)]
CLAIMS = {
    "iss": ISSUER,
    "aud": CLIENT,
    "sub": "ann",
    "nonce": NONCE,
    "iat": NOW_S - 5,
    "exp": NOW_S + 60,
}


def sign(claims: dict[str, Any], key: Any = RSA, alg: str = "RS256", **header: Any) -> str:
    full = {"alg": alg, "kid": key.kid, **header}
    known = {name: value for name, value in full.items() if value is not None}
    # By hand: `jwt.encode` refuses some of what an attacker sends.
    return jws.serialize_compact(known, json.dumps(claims).encode(), key, algorithms=[alg])


def check(token: str, keys: Any = KEYS, algorithms: Any = ALGORITHMS) -> dict[str, Any]:
    return verify(
        token,
        keys,
        issuer=ISSUER,
        client_id=CLIENT,
        nonce=NONCE,
        algorithms=algorithms,
        now_s=NOW_S,
    )


def part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("key", "alg"),
    [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (OKP, "Ed25519")],
)
def test_a_genuine_token_is_accepted(key, alg):
    assert check(sign(CLAIMS, key, alg)) == CLAIMS
    assert check(sign({**CLAIMS, "aud": [CLIENT, "b"], "azp": CLIENT}, key, alg))["sub"] == "ann"
    assert check(sign(CLAIMS, key, alg, kid=None))["sub"] == "ann"
    with pytest.raises(SignInRefused):
        check(sign(CLAIMS, key, alg), algorithms=["ES384"])


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.test"}, {"iss": f"{ISSUER}/"}, {"iss": None}, {"iss": [ISSUER]},
        {"aud": "other"}, {"aud": ["other"]}, {"aud": []}, {"aud": None}, {"aud": {CLIENT: 1}},
        {"aud": [CLIENT, "other"]}, {"azp": "other"}, {"aud": [CLIENT, "b"], "azp": "b"},
        {"nonce": "m" * 43}, {"nonce": None}, {"nonce": ""}, {"nonce": [NONCE]}, {"nonce": "é"}, {"nonce": "\ud800"}, {"sub": "\ud800"},
        {"exp": NOW_S - 61}, {"exp": None}, {"exp": "9999999999"}, {"exp": True},
        {"iat": NOW_S + 61}, {"iat": NOW_S - 3601}, {"iat": None}, {"nbf": NOW_S + 61}, {"nbf": "0"},
        {"sub": ""}, {"sub": None}, {"sub": 7}, {"sub": "x" * 256}, {"sub": "a\nb"},
    ],
)  # fmt: skip
def test_a_token_with_other_claims_is_refused(claims):
    with pytest.raises(SignInRefused):
        check(sign({**CLAIMS, **claims}))


def test_no_signature_and_symmetric_signatures_are_refused():
    body = part(CLAIMS)
    for alg in ("none", "None", "NONE", "", None, ["RS256"]):
        for signature in ("", "AA"):
            with pytest.raises(SignInRefused):
                check(f"{part({'alg': alg, 'kid': 'r'})}.{body}.{signature}")
    # HMAC with all forms of the public key as its secret.
    public = RSAKey.import_key(KEYS[0])
    forms = (
        public.as_pem(private=False),
        public.as_der(private=False),
        json.dumps(KEYS[0]).encode(),
    )
    for secret in forms:
        message = f"{part({'alg': 'HS256', 'kid': 'r'})}.{body}"
        digest = hmac.digest(secret, message.encode(), "sha256")  # joserfc itself refuses to
        forged = f"{message}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        for algorithms in (ALGORITHMS, (*ALGORITHMS, "HS256", "none")):
            with pytest.raises(SignInRefused):
                check(forged, algorithms=algorithms)


@pytest.mark.slow
def test_a_key_of_the_attacker_is_refused():
    evil = RSAKey.generate_key(2048, {"kid": "r"}, private=True)
    public = evil.as_dict(private=False)
    for header in (
        {},
        {"jwk": public},
        {"jku": "https://evil.test/keys"},
        {"x5u": "https://evil.test"},
    ):
        full = {"alg": "RS256", "kid": "r", **header}
        message = f"{part(full)}.{part(CLAIMS)}"
        signed = jws.serialize_compact(
            {"alg": "RS256", "kid": "r"}, json.dumps(CLAIMS).encode(), evil, algorithms=["RS256"]
        )
        for token in (signed, f"{message}.{signed.rpartition('.')[2]}"):
            with pytest.raises(SignInRefused):
                check(token)
    with pytest.raises(failures.UnknownKey):
        check(sign(CLAIMS, RSAKey.import_key(evil.as_dict(private=True), {"kid": "new"})))


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_weak_ambiguous_and_broken_keys_are_refused():
    weak = RSAKey.import_key(
        rsa.generate_private_key(public_exponent=65537, key_size=1024), {"kid": "w"}
    )
    token = jws.serialize_compact(
        {"alg": "RS256", "kid": "w"}, json.dumps(CLAIMS).encode(), weak, algorithms=["RS256"]
    )
    for keys in (
        [weak.as_dict(private=False)],
        [{"kty": "RSA", "kid": "w"}],
        [{"kty": "RSA", "kid": "w", "n": 7, "e": "AQAB"}],
    ):
        with pytest.raises(SignInRefused):
            check(token, keys)
    token = sign(CLAIMS)
    for keys in ([KEYS[0], KEYS[0]], [{**KEYS[0], "use": "enc"}], [{**KEYS[0], "alg": "PS256"}]):
        with pytest.raises(SignInRefused):
            check(token, keys)
    with pytest.raises(SignInRefused):
        check(sign(CLAIMS, kid=None), [KEYS[0], {**KEYS[0], "kid": "s"}])


def test_changed_and_malformed_tokens_are_refused():
    token = sign(CLAIMS)
    head, body, signature = token.split(".")
    for bad in (
        "", ".", "..", token + ".", f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{signature}",
        f"{head}.{body}.", f"{head}.{body}.{signature[:-4]}", f"é{token}", token * 100,
        f"{part([])}.{body}.{signature}", f"{part({'alg': 'RS256', 'kid': 'r', 'crit': ['x']})}.{body}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 7})}.{body}.{signature}", f"%%.{body}.{signature}",
    ):  # fmt: skip
        with pytest.raises(SignInRefused):
            check(bad)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 2), st.integers(0, 400))
def test_damage_anywhere_is_a_refusal_and_nothing_else(data, which, at):
    parts = sign(CLAIMS, OKP, "Ed25519").split(".")
    text = urlsafe_b64encode(data).rstrip(b"=").decode() or "A"
    parts[which] = parts[which][:at] + text + parts[which][at:]
    with pytest.raises((SignInRefused, failures.UnknownKey)):
        check(".".join(parts))
