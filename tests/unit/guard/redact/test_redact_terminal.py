"""Colours and other signs for a terminal hide no secret, and stay where they were (GRD-5)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from cellwall.guard.redact import Redactor, SecretHit, SecretRules, shipped
from cellwall.parsing.credentials.shape_rules import ShapeRule

pytestmark = pytest.mark.requirement("GRD-5")

VALUE = b"hunter2-correct-horse-battery"
TOKEN = b"ghp_16C7e42F292c69C2E7C10c838347Ae178B4a"
REDACTOR = Redactor(known=lambda: {"HORSE": VALUE})
PLAIN = Redactor()
BLANK = Redactor(SecretRules())

COLOURS: dict[str, Callable[[bytes], bytes]] = {
    "sgr": lambda text: b"\x1b[31m" + text + b"\x1b[0m",
    "bold": lambda text: b"\x1b[1;32m" + text + b"\x1b[m",
    "grep": lambda text: b"\x1b[01;31m\x1b[K" + text + b"\x1b[m\x1b[K",
    "link": lambda text: b"\x1b]8;;file:///a\x1b\\" + text + b"\x1b]8;;\x07",
    "tput": lambda text: b"\x1b[4m" + text + b"\x1b(B\x1b[m",
    "shown": lambda text: b"\\x1b[31m" + text + b"\\x1b[0m",
    "json": lambda text: b"\\u001b[31m" + text + b"\\u001b[0m",
    "octal": lambda text: b"\\033[31m" + text + b"\\033[0m",
    "caret": lambda text: b"^[[31m" + text + b"^[[0m",
    "c1": lambda text: b"\xc2\x9b31m" + text + b"\xc2\x9b0m",
    "reset": lambda text: b"\x1bc" + text + b"\x1b%G",
}


LEADS = [
    *(b"\x1bc", b"\x1bM", b"\x1bH", b"\x1bN", b"\x1bO", b"\x1bX", b"\x1b#8", b"\x1b%G", b"\x1b="),
    *(b"\x9b31m", b"\xc2\x9b31m", b"#033[31m", b"#012", b"#011", b"ESC[31m"),
    *("\u241b[31m".encode(), b"\\u{1b}[31m", b"%1B[31m", b"%1B%5B31m", b"&#27;[31m", b"&#x1b;[31m"),
    *(b"\\0", b"\\012", b"=3D", b"%253D"),
]


@pytest.mark.parametrize("lead", LEADS)
def test_what_stands_before_a_token_does_not_hide_it(lead: bytes) -> None:
    data = b"tok " + lead + TOKEN + b" ok"
    told = b"tok " + lead + b"ghp_[redacted:github-token] ok"
    assert PLAIN.redact(data).data == told
    for size in (1, 5):
        stream = PLAIN.stream()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join([*map(stream.feed, pieces), stream.end()]) == told
    # The control: as a part of a word it is none.
    assert PLAIN.redact(b"tok x" + TOKEN).hits == ()


def without(data: bytes, colour: Callable[[bytes], bytes]) -> bytes:
    for part in colour(b"|").split(b"|"):
        data = data.replace(part, b"")
    return data


@pytest.mark.parametrize("rule", shipped().shapes, ids=lambda rule: rule.id)
def test_every_shape_is_known_in_colour_too(rule: ShapeRule) -> None:
    for text in rule.match:
        plain = PLAIN.redact(b"see " + text.encode() + b" ok").data
        assert b"[redacted:" in plain  # without colour it is found
        for colour in COLOURS.values():
            told = PLAIN.redact(b"see " + colour(text.encode()) + b" ok").data
            assert b"[redacted:" in told
            assert without(told, colour) == plain


@pytest.mark.parametrize("name", COLOURS)
def test_a_colour_in_the_middle_or_behind_the_name_hides_nothing(name: str) -> None:
    colour = COLOURS[name]
    assert PLAIN.redact(colour(b"ghp_") + b"16C7e4").hits == ()  # a colour alone is no secret
    for data in (
        colour(b"ghp_") + TOKEN[4:],
        b"password=" + colour(b"Tr0ub4dor3xyzQ9"),
        colour(b"api_key") + b"=" + colour(b"q8Zk2LmP0xVb7RtY5uWe1NsA"),
        b"-----BEGIN RSA PRIVATE KEY-----\n"
        + colour(b"MIIEpAIBAAKCAQEA7abcdefg")
        + b"\n-----END RSA PRIVATE KEY-----",
        colour(VALUE[:9]) + VALUE[9:],
    ):
        told = REDACTOR.redact(data)
        assert [hit.rule for hit in told.hits] != []
        bare = without(told.data, colour)
        for secret in (TOKEN[4:], b"Tr0ub4dor3", b"q8Zk2Lm", b"MIIEpAI", VALUE):
            assert secret not in bare


def test_a_title_is_no_hiding_place_and_a_sequence_swallows_no_letter() -> None:
    title = b"\x1b]0;" + TOKEN + b"\x07 " + b"\x1b]2;" + VALUE + b"\x1b\\"
    assert BLANK.redact(title).data == title  # nobody would see it, if no rule looked
    assert REDACTOR.redact(title).data == (
        b"\x1b]0;ghp_[redacted:github-token]\x07 \x1b]2;[redacted:secret HORSE]\x1b\\"
    )
    # `ESC[h` is a sequence, and would take the first letter of the value with it.
    assert VALUE not in REDACTOR.redact(b"\x1b[" + VALUE).data
    assert TOKEN[4:] not in REDACTOR.redact(b"x\x1b[31m" + TOKEN).data


def test_sequences_stay_where_they_were_and_places_are_those_of_the_input() -> None:
    data = b"a \x1b[31m" + TOKEN + b"\x1b[0m b \x1b[1m" + VALUE[:5] + b"\x1b[2m" + VALUE[5:] + b" c"
    told = REDACTOR.redact(data)
    assert told.data == (
        b"a \x1b[31mghp_[redacted:github-token]\x1b[0m b \x1b[1m[redacted:secret HORSE]\x1b[2m c"
    )
    second = data.index(VALUE[:5])
    assert told.hits == (
        SecretHit("github-token", 11, 47),
        SecretHit("secret HORSE", second, second + len(VALUE) + 4),
    )


@pytest.mark.slow
def test_coloured_output_is_cleaned_the_same_however_it_is_cut() -> None:
    chance = Random(4)
    parts = [
        VALUE,
        VALUE[:6],
        VALUE[6:],
        TOKEN,
        TOKEN[:9],
        TOKEN[9:],
        b"password=",
        b"Tr0ub4dor3xyzQ9",
    ]
    signs = [
        b"\x1b[31m",
        b"\x1b[0m",
        b"\x1b",
        b"]8;;",
        b"\x07",
        b"\x1b\\",
        b"\\x1b[1m",
        b"^[",
        b" ",
        b"\n",
    ]
    cleaned = 0
    for _ in range(300):
        data = b"".join(chance.choices(parts + signs, k=chance.randrange(1, 10)))
        whole = REDACTOR.redact(data).data
        cleaned += whole != data
        stream, place, told = REDACTOR.stream(), 0, b""
        while place < len(data):
            size = chance.choice((1, 2, 3, 7, 30))
            told += stream.feed(data[place : place + size])
            place += size
        assert told + stream.end() == whole
        assert REDACTOR.redact(whole).data == whole
    assert cleaned > 50


def test_an_endless_title_is_not_held() -> None:
    stream = PLAIN.stream()
    flood = b"\x1b]0;" + b"a" * 100_000
    out, max_bytes = b"", 0
    for start in range(0, len(flood), 1000):
        out += stream.feed(flood[start : start + 1000])
        max_bytes = max(max_bytes, stream.kept_bytes)
    assert out + stream.end() == flood
    assert max_bytes < 16 * 1024
