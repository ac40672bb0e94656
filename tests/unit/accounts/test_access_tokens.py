"""Access tokens: only our algorithm, our key, our issuer and audience, in time (SRV-2)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cellwall.accounts.access_tokens import AccessClaims, VerificationKey, sign, verify
from cellwall.core.errors import SignInRefused

pytestmark = pytest.mark.requirement("SRV-2")

NOW_S = 1_800_000_000.25
ISSUER, AUDIENCE = "https://cellwall.example", "https://cellwall.example/v1"
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
KEY = VerificationKey("kid_1", PUBLIC, None)
CLAIMS = AccessClaims(
    user_id="usr_1",
    family_id="fam_1",
    jti="jti_1",
    audience=AUDIENCE,
    issued_s=NOW_S,
    expires_s=NOW_S + 600,
    generation=1,
    user_generation=2,
)
BODY = {
    "iss": ISSUER,
    "aud": AUDIENCE,
    "sub": "usr_1",
    "sid": "fam_1",
    "jti": "jti_1",
    "iat": NOW_S,
    "exp": NOW_S + 600,
    "gen": 1,
    "ugen": 2,
}
HEADER = {"alg": "Ed25519", "kid": "kid_1", "typ": "at+jwt"}
GOOD = sign(CLAIMS, issuer=ISSUER, kid="kid_1", private=PRIVATE.private_bytes_raw())


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forge(header: object = HEADER, body: object = BODY, key=PRIVATE) -> str:
    """A token with a right signature over what is given."""
    text = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(body).encode())}"
    return f"{text}.{encode(key.sign(text.encode()))}"


def check(token: str, keys=(KEY,), now_s: float = NOW_S) -> AccessClaims:
    return verify(token, keys, issuer=ISSUER, audience=AUDIENCE, now_s=now_s)


def reason(token: str, **more) -> str:
    with pytest.raises(SignInRefused) as caught:
        check(token, **more)
    assert caught.value.detail not in str(caught.value)
    assert caught.value.code == "CW-SIGN-IN-TOKEN"
    return caught.value.detail


def test_a_token_says_what_was_signed():
    assert check(GOOD) == CLAIMS
    assert check(forge()) == CLAIMS  # the control of all forgeries below
    header = json.loads(base64.urlsafe_b64decode(GOOD.split(".")[0] + "=="))
    assert header == HEADER


def test_none_is_no_algorithm():
    for name in ("none", "None", "NONE", "nOnE", ""):
        header = encode(json.dumps({**HEADER, "alg": name}).encode())
        for signature in ("", encode(b""), GOOD.rsplit(".", 1)[1]):
            token = f"{header}.{encode(json.dumps(BODY).encode())}.{signature}"
            assert reason(token) == "unexpected algorithm or type"


@pytest.mark.parametrize("name", ["HS256", "HS512", "EdDSA", "Ed448", "RS256", "ES256", "ed25519"])
def test_another_algorithm_is_refused_also_with_the_public_key_as_its_secret(name):
    text = ".".join(encode(json.dumps(each).encode()) for each in ({**HEADER, "alg": name}, BODY))
    for secret in (PUBLIC, encode(PUBLIC).encode(), json.dumps(KEY.to_jwk()).encode()):
        signature = hmac.digest(secret, text.encode(), hashlib.sha256)
        assert reason(f"{text}.{encode(signature)}") == "unexpected algorithm or type"
    assert reason(forge({**HEADER, "alg": name})) == "unexpected algorithm or type"


@pytest.mark.parametrize(
    "more",
    [
        {"jwk": KEY.to_jwk()},
        {"jku": "https://evil.example/jwks.json"},
        {"x5u": "https://evil.example/cert"},
        {"crit": ["exp"]},
        {"b64": False, "crit": ["b64"]},
        {"cty": "JWT"},
    ],
    ids=lambda each: "+".join(each),
)
def test_a_key_by_reference_or_an_extension_is_refused(more):
    assert reason(forge({**HEADER, **more})) == "unexpected header"


@pytest.mark.parametrize("missing", HEADER)
def test_every_part_of_the_header_is_needed(missing):
    header = {name: value for name, value in HEADER.items() if name != missing}
    assert reason(forge(header)) == "unexpected header"


@pytest.mark.parametrize("kind", ["JWT", "at+JWT", "application/at+jwt", None, 7])
def test_a_token_of_another_kind_is_no_access_token(kind):
    assert reason(forge({**HEADER, "typ": kind})) == "unexpected algorithm or type"


def test_a_key_that_is_unknown_expired_or_anothers_does_not_verify():
    assert reason(forge({**HEADER, "kid": "kid_2"})) == "unknown or expired key"
    assert reason(forge({**HEADER, "kid": "../kid_1"})) == "unknown or expired key"
    assert reason(forge(key=OTHER)) == "signature: InvalidSignature"
    old = replace(KEY, verify_until_s=NOW_S + 60)
    assert check(GOOD, keys=(old,)) == CLAIMS
    assert reason(GOOD, keys=(old,), now_s=NOW_S + 60) == "unknown or expired key"
    assert reason(GOOD, keys=()) == "unknown or expired key"


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("iss", "https://evil.example"),
        ("aud", "https://other.example"),
        ("aud", AUDIENCE + "/"),
    ],
)
def test_another_issuer_or_audience_is_refused(claim, value):
    assert reason(forge(body={**BODY, claim: value})) == "another issuer or audience"


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        *[(name, None) for name in BODY],
        ("aud", [AUDIENCE]),
        ("sub", 7),
        ("sub", ["usr_1"]),
        ("exp", "9999999999"),
        ("exp", True),
        ("gen", 1.0),
        ("gen", True),
        ("ugen", "2"),
    ],
)
def test_a_claim_of_another_type_is_refused(claim, value):
    assert reason(forge(body={**BODY, claim: value})) == "a claim is missing or has another type"


def test_a_token_is_valid_from_its_issue_until_its_expiry():
    assert check(GOOD, now_s=NOW_S + 599.9) == CLAIMS
    assert reason(GOOD, now_s=NOW_S + 600) == "expired, or not valid yet"
    assert check(GOOD, now_s=NOW_S - 30) == CLAIMS  # clocks of two machines differ
    assert reason(GOOD, now_s=NOW_S - 31) == "expired, or not valid yet"
    for odd in (float("nan"), float("inf"), 10**400):
        text = json.dumps({**BODY, "exp": 1}).replace('"exp": 1', f'"exp": {odd}')
        text = text.replace("inf", "Infinity").replace("nan", "NaN")
        head = encode(json.dumps(HEADER).encode())
        signed = f"{head}.{encode(text.encode())}"
        token = f"{signed}.{encode(PRIVATE.sign(signed.encode()))}"
        with pytest.raises(SignInRefused):
            check(token)


@given(st.integers(0, len(GOOD) - 1), st.sampled_from("ABCxyz019-_.=+/ "))
def test_a_token_with_one_other_character_is_refused(place, letter):
    """Also in the spare bits of a last character: a token has one spelling."""
    changed = GOOD[:place] + letter + GOOD[place + 1 :]
    if changed == GOOD:
        assert check(changed) == CLAIMS
    else:
        assert reason(changed)


@pytest.mark.parametrize("odd", ["{}=", "{}==", "{}\n", " {}", "{}!", "{}A"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_another_spelling_of_a_part_is_refused(odd, part):
    parts = GOOD.split(".")
    parts[part] = odd.format(parts[part])
    assert reason(".".join(parts))


@given(st.one_of(st.text(max_size=200), st.text("abc._-=", max_size=200), st.binary().map(str)))
def test_any_text_is_refused_without_another_error(text):
    with pytest.raises(SignInRefused):
        check(text)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é.é.é", GOOD + "." + GOOD, "." * 5000])
def test_what_is_no_token_is_refused(token):
    assert reason(token)


@pytest.mark.parametrize("header", [[], "x", 7, None, {"alg": ["Ed25519"]}, [["alg", "Ed25519"]]])
def test_a_header_of_another_shape_is_refused(header):
    assert reason(forge(header))


def test_a_body_of_another_shape_is_refused():
    for body in ([], "x", 7, None):
        with pytest.raises(SignInRefused):
            check(forge(body=body))
