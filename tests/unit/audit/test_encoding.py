"""Bodies are bounded, canonical, and free of credentials before anything is written (AUD-4)."""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit.encoding import (
    MAX_FIELD_BYTES,
    cut_text,
    encode_body,
    encode_bounded,
    encode_simple,
)
from cellwall.audit.log import AuditLog
from cellwall.audit.records import MAX_NAME_BYTES, MAX_RECORD_BYTES, parse_record
from cellwall.audit.redaction import may_hold_secrets, redact_text
from cellwall.core.outcomes import Event, EventKind
from unit.audit.audit_logs import NEVER, event
from unit.audit.test_records import bodies, read_indexed_line, texts

MAX = 64


redact_text(SAMPLE := "ghp_" + "a1B2" * 9)  # rules are made ready once, not within a deadline


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


@pytest.mark.slow
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
    line = read_indexed_line(
        encoded, action_id=name, principal=name, interface=name, session_id=name
    )
    assert len(line) < MAX_RECORD_BYTES
    assert parse_record(line)["principal"] == name


def test_padding_does_not_hide_the_start_of_an_action():
    body = {"argv": ["curl", "evil.example", *["x" * 4096] * 1000]}
    assert bounded(body, 4096)["argv"][:2] == ["curl", "evil.example"]


# --- secrets

SECRETS = {
    "aws": "AKIA" + "Q4B7Z3NEWKEY2TZX",
    "aws-session": "ASIA" + "Q4B7Z3NEWKEY2TZX",
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
    "pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + "lQdGBF+/" * 40 + "\n"
    "-----END PGP PRIVATE KEY BLOCK-----",
    "huggingface": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    **{
        f"stripe-{kind}": kind + "abcDEF1234567890" for kind in ("rk_live_", "sk_test_", "rk_test_")
    },
    "slack-app": "xapp-" + "1-A0123456789-1234567890-abcdef",
    "google-oauth": "GOCSPX-" + "abcDEF123_-4567890xyzabcdefg",
    "google-access": "ya29." + "a0AfH6SMB_abcDEF123-4567890xyz",
    "sendgrid": "SG." + "abcDEF123_-4567890xyzab" + "." + "abcDEF123_-4567890xyzab" * 2,
    "digitalocean": "dop_v1_" + "0123456789abcdef" * 4,
    "age": "AGE-SECRET-KEY-1" + "QYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQY",
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
    assert redact_text(text) == around.format(marker(secret))


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("name", ["openai", "aws", "jwt"])
@pytest.mark.parametrize(
    "before", ["%20", "%3D", "%2f", "\\u0027", "\\u000a", "\\x0A", "\\t", "\\f"]
)
def test_an_escape_before_a_credential_does_not_hide_it(before, name):
    assert redact_text(f"a{before}{SECRETS[name]}") == f"a{before}{marker(SECRETS[name])}"


def test_a_digit_before_a_credential_does_not_hide_it():
    secret = "sk-ant-" + "api03-abcDEF123_-4567890xyz"
    assert redact_text(f"7{secret}") == f"7{marker(secret)}"


AWS_SECRET = "wJ4rXUtnFEMI/K7MDENG/" + "bPxRfiCYzz9fAcdt0Zq"


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize(
    ("around", "secret"),
    [
        ("Bearer {}", "abc123def456ghi7"),
        ("-H 'authorization: bearer {}' x", "short1"),
        ("curl -H Authorization:\\ Bearer%20{}", "abc123def456.ghi7=="),
        ('"Authorization": "Basic {}"', "dXNlcjpwYXNz"),
        ('{{\\"Authorization\\": \\"Basic {}\\"}}', "bm90IGEgcGFpcg=="),
        ("Basic {}", "dXNlcjpwYXNz"),
        ("BASIC {}", "dXNlcjpwYXNzdw=="),
        ("https://user:{}@example.com/a?b", "hunter2"),
        ("git clone https://ann:{}@example.com/x.git", "p@ss:w"),
        ("redis://:{}@localhost:6379/0", "x"),
        ("mongodb+srv://u:{}@h1:1,h2:2/db and a@b", "pass%20word"),
        ("export AWS_SECRET_ACCESS_KEY='{}'", AWS_SECRET),
        ("aws_secret_access_key = {}\nregion = x", AWS_SECRET),
        ('"SecretAccessKey" : "{}"', AWS_SECRET),
        ('{{\\"aws_secret_access_key\\": \\"{}\\"}}', AWS_SECRET),
        ("--secret-access-key {}", AWS_SECRET),
        ("aws_secret_access_key: {}", AWS_SECRET.replace("/", "\\/")),
    ],
)
def test_credential_that_its_surroundings_betray_is_taken_out_alone(around, secret):
    text, clean = around.format(secret), around.format(marker(secret))
    assert redact_text(text) == clean
    assert redact_text(clean) == clean
    assert bounded({"a": text}, 4096) == {"a": clean}
    # Redacted first and cut then, wherever the cut falls.
    for before in range(200, 260):
        (kept,) = bounded({"a": "." * before + text}, 256).values()
        assert kept.startswith(("." * before + clean)[:256])


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize(
    "body",
    [
        {"env": {"AWS_SECRET_ACCESS_KEY": AWS_SECRET}},
        {"SecretAccessKey": AWS_SECRET},
        {"argv": ["aws", "configure", "set", "aws_secret_access_key", AWS_SECRET]},
        {"argv": ["x", "--secret-access-key=", AWS_SECRET]},
        {"argv": ["x", b"--secret-access-key", AWS_SECRET.encode()]},
    ],
)
def test_credential_whose_name_stands_in_a_text_of_its_own_is_taken_out(body):
    written = encode_body(body, max_field_bytes=4096)
    assert AWS_SECRET not in written
    assert base64.b64encode(AWS_SECRET.encode()).decode() not in written


def test_what_stands_after_a_name_and_is_no_secret_stays():
    body = {
        "aws_secret_access_key": "${AWS_SECRET_ACCESS_KEY}",
        "a": ["secret_access_key", "--help"],
    }
    assert bounded(body, 4096) == body


@pytest.mark.requirement("AUD-4")
@every_secret
def test_credential_as_a_name_or_as_bytes_is_taken_out(secret):
    assert core(secret) not in encode_body({secret: 1}, max_field_bytes=4096)
    written = bounded({"a": f"x {secret}".encode()}, 4096)["a"]["base64"]
    assert base64.b64decode(written).decode() == f"x {marker(secret)}"


@pytest.mark.slow
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
    assert redact_text(text).startswith("x [redacted: ")
    assert "MIIE" not in redact_text(text)


LINES = ["MIIEvQIBADANBgkqhkiG9w0BAQEF", "AASCBKcwggSjAgEAAoIBAQC7VJTU", "t9Us8cKj=="]
BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
ALL = [BEGIN, *LINES, END]


def holds_no_line(written: str) -> bool:
    return not any(line[:10] in written for line in LINES)


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize(
    "source",
    [
        'k = ("' + '\\n"\n     "'.join(ALL) + '")\nrun(k)',
        "k = '" + "\\n\\\n".join(ALL) + "'\nrun(k)",
        "k = [" + ", ".join(f'"{line}"' for line in ALL) + "]\nrun(k)",
        json.dumps({"key": "\n".join(ALL)}) + "\nrun(k)",
        json.dumps(json.dumps({"key": "\n".join(ALL)})) + "\nrun(k)",
        "\n".join(f"echo '{line}' >> key" for line in ALL) + "\nrun(k)",
        "k = `" + "` + `".join(ALL).replace("PRIVATE KEY", "RSA PRIVATE KEY") + "`\nrun(k)",
    ],
)
def test_private_key_in_source_code_is_taken_out_whole(source):
    for written in (
        redact_text(source),
        encode_body({"code": source}, max_field_bytes=4096),
        encode_body({"code": source}, max_field_bytes=64),
        encode_body({"argv": ["python", "-c", source]}, max_field_bytes=4096),
    ):
        assert holds_no_line(written)
    assert redact_text(source).endswith("run(k)")
    assert redact_text(source).startswith(source.partition("-----")[0])


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("convert", [str, str.encode])
def test_private_key_as_a_list_of_its_lines_is_taken_out(convert):
    argv = ["printf", "%s", f"x {BEGIN}", *LINES, f"{END} after", "b", 3, BEGIN, LINES[0]]
    written = bounded(
        {"argv": [convert(each) if isinstance(each, str) else each for each in argv]}, 99
    )
    kept = [
        base64.b64decode(each["base64"]).decode() if isinstance(each, dict) else each
        for each in written["argv"]
    ]
    assert kept == [
        *("printf", "%s", f"x {marker(BEGIN)}", *map(marker, LINES), f"{marker(END)} after"),
        *("b", 3, marker(BEGIN), marker(LINES[0])),
    ]


def test_only_the_end_of_the_same_kind_ends_a_private_key():
    other = "-----END RSA PRIVATE KEY-----"
    assert redact_text(f"{BEGIN} {other} x") == marker(f"{BEGIN} {other} x")
    assert bounded({"a": [BEGIN, other, "x", END, "y"]})["a"][-3:] == [
        *(marker("x"), marker(END), "y")
    ]


def test_several_keys_in_one_text_leave_only_the_last_one_open():
    text = f"{BEGIN}{END} {BEGIN}{END}"
    assert bounded({"a": [text, "x", f"{text} {BEGIN}", "x"]})["a"][1::2] == ["x", marker("x")]


def test_header_of_a_key_does_not_hide_more_than_a_key():
    kept = bounded({"a": [BEGIN, *["x"] * 1024, "curl"], "b": "curl"}, 4096)
    assert kept["a"][1:] == [*[marker("x")] * 1024, "curl"]
    assert kept["b"] == "curl"


def test_private_key_longer_than_any_is_taken_out_whole():
    text = f"{BEGIN}{'MIIE' * 10_000}{END} after"
    assert cut_text(text, max_bytes=256) == f"[redacted: {len(text) - 6} characters] after"


@pytest.mark.parametrize(
    "text",
    [
        "task-aaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "task-list-of-things-to-do-today",
        "%20task-list-of-things-to-do-today",
        "the bearer of news",
        "Bearer authentication is a basic understanding",
        "bearer internationalization",
        "Basic information about basic JavaScript programming",
        "shelf_life and dop_v1_ and SG.x.y and ya29.x",
        "https://example.com:8080/a@b",
        "https://example.com/a:b@c",
        "ssh://git@example.com:22/x",
        "mail ann@example.com or see https://example.com",
        "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nmQ\n-----END PGP PUBLIC KEY BLOCK-----",
        "where is the PRIVATE KEY?",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "AKIA is how they begin",
        "eyJhbGci.short.x",
        "npm_install",
        "sk-short",
        "cellwall-audit+612fa90c+AXjVvNauRya4OkbOpYgtZa5pYhHd4PnVVrinUvxIxPTQ",
    ],
)
def test_what_is_no_credential_stays(text):
    assert redact_text(text) == text


def test_no_digest_of_a_secret_is_kept():
    """A weak one could be guessed from it."""
    written = encode_body({"a": SECRETS["ghp"]}, max_field_bytes=4096)
    assert written == '{"a":"[redacted: 40 characters]"}'


# --- names that are no texts


@pytest.mark.parametrize(
    "body",
    [
        {2: "a", 10: "b"},
        {"a": {2: "a", 10: "b"}},
        {"a": [{-1: 1, 1.5: 2, 10: 3}]},
        {"a": {True: 1, False: 2}, "b": {None: 1}},
        {1: "a", "1": "b", b"1": "c"},
        {1 << 20_000: 1, (1, 2): 2, float("nan"): 3},
    ],
)
def test_names_that_are_no_texts_read_back_in_canonical_form(body):
    encoded = encode_body(body, max_field_bytes=4096)
    assert parse_record(read_indexed_line(encoded))["body"] == json.loads(encoded)


def test_names_that_are_no_texts_are_spelled_as_json_does():
    body = {"a": {2: 0, 10: 1, 1.5: 2, True: 3}, "b": {None: 4, "x": 5}}
    assert bounded(body) == {"a": {"2": 0, "10": 1, "1.5": 2, "true": 3}, "b": {"null": 4, "x": 5}}
    assert bounded({"a": {(SECRETS["ghp"],): 1}}) == {"a": {"[cut: tuple]": 1}}


@pytest.mark.requirement("AUD-4")
def test_names_that_become_equal_do_not_hide_each_other():
    assert bounded({1: "a", "1": "b", "1 [2]": "c"}) == {"1": "a", "1 [2]": "b", "1 [2] [2]": "c"}
    tokens = {"ghp_" + f"{number:036}": number for number in range(3)}
    name = "[redacted: 40 characters]"
    assert bounded(tokens) == {name: 0, f"{name} [2]": 1, f"{name} [3]": 2}


def test_name_of_what_was_cut_hides_no_entry():
    kept = bounded({"[cut]": "mine", **{str(number): 0 for number in range(5000)}})
    assert kept["[cut]"] == "mine"
    assert kept["[cut] [2]"] == 5001 - 4096


def test_many_equal_names_are_all_kept():
    body = {"ghp_" + f"{number:036}": 0 for number in range(3000)}
    assert len(bounded(body)) == 3000


@pytest.mark.requirement("AUD-4")
def test_no_credential_reaches_any_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CELLWALL_TEST_VALUE", "an-environment-value")
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


def test_digest_with_letters_of_a_token_needs_no_full_walk_and_changes_nothing():
    # One in forty digests holds such letters: here two kinds.
    digests = [digest(str(number)) for number in range(4000)]
    odd = [each for each in digests if may_hold_secrets(f'"{each}"')]
    assert len(odd) > 20
    for each in odd:
        body = {"code": "print(1)", "code_sha256": each}
        text = encode_simple(body, MAX_FIELD_BYTES)
        assert (
            text == encode_bounded(body, MAX_FIELD_BYTES) == json.dumps(body, separators=(",", ":"))
        )


def test_secret_beside_a_digest_or_in_its_place_is_redacted():
    shown = bounded({"code": f"key = {SAMPLE}", "code_sha256": digest("1")}, 4096)
    assert SAMPLE not in shown["code"]
    assert shown["code_sha256"] == digest("1")
    for hidden in (SAMPLE, f'_sha256":"{SAMPLE}', f'\\"a_sha256\\":\\"{digest("1")}\\" {SAMPLE}'):
        assert SAMPLE not in encode_body({"a_sha256": hidden}, max_field_bytes=4096)
