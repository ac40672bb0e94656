"""Bodies are bounded, canonical, and free of credentials before anything is written (AUD-4)."""

from __future__ import annotations

import base64
import json
import time
from enum import StrEnum
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.audit.bodies import MAX_FIELD_BYTES, cut_text, encode_body, without_secrets
from holdfast.audit.log import AuditLog
from holdfast.audit.records import MAX_NAME_BYTES, MAX_RECORD_BYTES, parse_record
from holdfast.core.events import Event, EventKind
from unit.audit.audit_logs import NEVER, event
from unit.audit.test_records import bodies, line_of, texts

MAX = 64


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def bounded(body, max_field_bytes=MAX):
    return json.loads(encode_body(body, max_field_bytes=max_field_bytes))


@given(bodies)
def test_encoded_body_is_strict_unicode_json(body):
    def refuse(name):
        raise AssertionError(name)

    value = json.loads(encode_body(body, max_field_bytes=MAX), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")


plain_texts = st.text(max_size=MAX // 4)  # at most MAX bytes, no surrogates
plain_bodies = st.dictionaries(
    plain_texts,
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_texts
    | st.lists(plain_texts, max_size=5),
    max_size=6,
)


@given(plain_bodies)
def test_body_within_its_bounds_is_kept_whole(body):
    assert bounded(body) == body


@given(plain_bodies)
def test_quick_way_and_slow_way_write_the_same(body):
    slow = encode_body({"a": body, "b": "\ud800"}, max_field_bytes=8192)
    assert slow == '{"a":' + encode_body(body, max_field_bytes=8192) + ',"b":"\\\\ud800"}'


@given(st.text(min_size=MAX + 1))
def test_long_text_keeps_its_start_and_says_length_and_digest(text):
    data = text.encode()
    kept = data[:MAX].decode(errors="ignore")
    marker = f"[cut: {len(data)} bytes, sha256 {digest(text)}]"
    assert bounded({"a": [text]}) == {"a": [kept + marker]}


@given(texts)
def test_only_cut_texts_are_longer_than_the_bound(text):
    written = cut_text(text, max_bytes=MAX)
    was_cut = len(text.encode("utf-8", "backslashreplace")) > MAX
    assert (len(written.encode()) > MAX) is was_cut


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("\ud800x", "\\ud800x"),
        ("\ud83d\ude00", "\\ud83d\\ude00"),
        ("\U0001f600", "\U0001f600"),
        ("\0\n", "\0\n"),
        (b"\xff\x00", {"base64": "/wA="}),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Colour.RED, "red"),
        ((1, 2), [1, 2]),
        (object(), "[cut: object]"),
        ({1, 2}, "[cut: set]"),
    ],
)
def test_values_json_cannot_hold_are_made_safe(value, written):
    assert bounded({"a": value}) == {"a": written}


def test_long_binary_keeps_its_start_and_says_length_and_digest():
    data = bytes(range(256))
    (written,) = bounded({"a": data})["a"].values()
    marker = f"[cut: 256 bytes, sha256 {sha256(data).hexdigest()}]"
    assert written == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4v" + marker


def test_huge_integer_is_bounded():
    number = 1 << 100_000
    assert bounded({"a": number}) == {"a": cut_text(hex(number), max_bytes=MAX)}


def test_deep_and_circular_bodies_are_cut():
    loop = {}
    loop["me"] = loop
    depth, value = 0, bounded(loop)
    while isinstance(value, dict):
        depth, value = depth + 1, value["me"]
    assert (depth, value) == (16, "[cut: dict]")


def test_too_many_entries_are_counted_not_kept():
    kept = bounded({"a": list(range(10_000))})["a"]
    assert kept == [*range(4095), "[cut: 5905 entries]"]


WORST = "\x01" * MAX_FIELD_BYTES  # six characters each once escaped


@pytest.mark.parametrize(
    "body",
    [
        {"a": [WORST] * 1000},
        {WORST + str(n): WORST + str(n) for n in range(1000)},
        {"a" * 127 * 1024: WORST, "b" + WORST: WORST},
        {str(n): "z" * 8192 for n in range(15)} | {WORST: WORST},
        {"a": [[[[[]]]]] * 5000},
        {str(n): "\U0001f600" * 3000 for n in range(1000)},
        {"a": [b"\xff" * 10_000] * 1000},
    ],
)
def test_no_body_bursts_a_record(body):
    encoded = encode_body(body, max_field_bytes=MAX_FIELD_BYTES)
    name = cut_text(WORST, max_bytes=MAX_NAME_BYTES)
    line = line_of(encoded, action_id=name, principal=name, interface=name, session_id=name)
    assert len(line) < MAX_RECORD_BYTES
    assert parse_record(line)["principal"] == name


def test_padding_does_not_hide_the_start_of_an_action():
    body = {"argv": ["curl", "evil.example", *["x" * 4096] * 1000]}
    assert bounded(body, 4096)["argv"][:2] == ["curl", "evil.example"]


# --- secrets

SECRETS = {
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws-session": "ASIA" + "IOSFODNN7EXAMPLE",
    **{f"gh{kind}": f"gh{kind}_" + "a1B2" * 9 for kind in "pousr"},
    "github-pat": "github_pat_" + "11ABCDEFG0" * 8,
    "gitlab": "glpat-" + "abcDEF123_-4567890xy",
    "openai": "sk-" + "proj-abcDEF123_-4567890xyz",
    "stripe": "sk_live_" + "abcDEF1234567890",
    "slack": "xoxb-" + "123456789012-abcdefghij",
    "google": "AIza" + "SyA-1234567890abcdefghijklmnopqrstu",
    "npm": "npm_" + "a1B2" * 9,
    "pypi": "pypi-" + "AgEIcHlwaS5vcmc" * 4,
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP_mB92K27uhbUJU1p1r",
    "pem": "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQ+/" * 40 + "\n-----END PRIVATE KEY-----",
    "rsa-pem": "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpA" * 300 + "\n"
    "-----END RSA PRIVATE KEY-----",
    "openssh": "-----BEGIN OPENSSH PRIVATE KEY-----\r\n" + "b3BlbnNz" * 40 + "\r\n"
    "-----END OPENSSH PRIVATE KEY-----",
}
every_secret = pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)


def core(secret: str) -> str:
    """A part of a secret that nothing else would hold."""
    return secret[len(secret) // 2 :][:8]


def marker(secret: str) -> str:
    return f"[redacted: {len(secret)} characters]"


@pytest.mark.requirement("AUD-4")
@every_secret
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        " {} ",
        "token={}",
        "a\n{}\nb",
        "\t{}\t",
        "\u00e9{}\u00e9",
        '"{}"',
        "'{}'",
        "https://user:{}@example.com/",
        "\x00{}\x00",
        "\\n{}",
    ],
)
def test_credential_is_taken_out_wherever_it_stands(secret, around):
    text = around.format(secret)
    for body in ({"a": text}, {"a": [{"b": text}]}, {"a": text, "z": "\U0001f600"}):
        for max_field_bytes in (4096, MAX_FIELD_BYTES):
            written = encode_body(body, max_field_bytes=max_field_bytes)
            assert core(secret) not in written
            assert marker(secret) in written
    assert without_secrets(text) == around.format(marker(secret))


@pytest.mark.requirement("AUD-4")
@every_secret
def test_credential_as_a_name_or_as_bytes_is_taken_out(secret):
    assert core(secret) not in encode_body({secret: 1}, max_field_bytes=4096)
    written = bounded({"a": f"x {secret}".encode()}, 4096)["a"]["base64"]
    assert base64.b64decode(written).decode() == f"x {marker(secret)}"


@pytest.mark.requirement("AUD-4")
@every_secret
def test_credential_across_the_cut_of_a_long_text_is_taken_out(secret):
    limit = 256
    for before in range(limit - len(secret) - 3, limit + 3):
        if before < 0:
            continue
        for value in ("." * before + secret + "." * 30_000, "." * before + secret):
            written = encode_body({"a": value}, max_field_bytes=limit)
            for at in range(0, len(secret) - 12, 6):
                assert secret[at : at + 12] not in written or secret[at : at + 12] in "." * 12


@pytest.mark.requirement("AUD-4")
def test_secrets_taken_out_do_not_pull_in_others_that_were_not_looked_at():
    """What is removed at the start moves what follows into the part that is kept."""
    block = "-----BEGIN PRIVATE KEY-----\n" + "A" * 6000 + "\n-----END PRIVATE KEY-----\n"
    text = block * 20 + SECRETS["ghp"] + " " + "z" * 100_000
    for value in (text, text.encode()):
        written = encode_body({"a": value}, max_field_bytes=4096)
        if isinstance(value, bytes):
            kept = json.loads(written)["a"]["base64"].partition("[cut")[0]
            written = base64.b64decode(kept + "=" * (-len(kept) % 4)).decode()
        assert "[redacted: 40 characters]" in written
        assert SECRETS["ghp"][:20] not in written


def test_private_key_without_an_end_is_taken_out_to_its_end():
    text = "x -----BEGIN PRIVATE KEY-----\n" + "MIIE" * 100
    assert without_secrets(text).startswith("x [redacted: ")
    assert "MIIE" not in without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "task-aaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "AKIA is how they begin",
        "eyJhbGci.short.x",
        "npm_install",
        "sk-short",
        "holdfast-audit+612fa90c+AXjVvNauRya4OkbOpYgtZa5pYhHd4PnVVrinUvxIxPTQ",
    ],
)
def test_what_is_no_credential_stays(text):
    assert without_secrets(text) == text


def test_no_digest_of_a_secret_is_kept():
    """A weak one could be guessed from it."""
    written = encode_body({"a": SECRETS["ghp"]}, max_field_bytes=4096)
    assert written == '{"a":"[redacted: 40 characters]"}'


@pytest.mark.parametrize(
    "filler",
    ["eyJ-", "eyJaaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "sk-", "ghp_a", "xoxb-", "\\n"],
)
def test_texts_made_to_be_slow_are_not(filler):
    """An agent chooses what is recorded; looking through it must not stop everybody else."""
    began = time.process_time()
    cut_text(filler * (1_000_000 // len(filler)), max_bytes=4096)
    assert time.process_time() - began < 1.0


@pytest.mark.requirement("AUD-4")
def test_no_credential_reaches_any_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TEST_VALUE", "an-environment-value")
    folder = tmp_path / "audit"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number, secret in enumerate(SECRETS.values()):
            log.write(event(number, text=f"x {secret}", env=secret, **{secret: [secret]}))
            log.write(Event(EventKind.DENIAL, secret, secret, secret, {}, session_id=secret))
            log.write(event(number, text="." * 4090 + secret + "." * 20_000))
    written = b"".join(each.read_bytes() for each in folder.iterdir())
    for secret in SECRETS.values():
        assert core(secret).encode() not in written
    assert b"an-environment-value" not in written
