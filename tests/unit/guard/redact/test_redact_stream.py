"""A stream: nothing of a secret leaves, and nothing else waits."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from random import Random

import pytest

from cellwall.core.errors import VaultError
from cellwall.guard.redact import Redactor, SecretHit, load_gitleaks, shipped

TOKEN = b"ghp_16C7e42F292c69C2E7C10c838347Ae178B4a"
VALUE = b"hunter2-correct-horse"
KNOWN: Mapping[str, bytes] = {"HORSE": VALUE, "SHORT": b"qwe-12"}
BODY = base64.encodebytes(bytes(range(256)) * 6)
KEY = b"-----BEGIN RSA PRIVATE KEY-----\n" + BODY + b"-----END RSA PRIVATE KEY-----\n"

REDACTOR = Redactor()
KNOWING = Redactor(known=lambda: KNOWN)


def fed(redactor: Redactor, pieces: Iterable[bytes]) -> list[bytes]:
    stream = redactor.stream()
    return [*(stream.feed(piece) for piece in pieces), stream.end()]


def single(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


@pytest.mark.requirement("GRD-5")
def test_prompts_typed_letters_and_progress_leave_at_once() -> None:
    pieces = [
        b"Name: ",
        b"Password: ",
        b"API key: ",
        b"[sudo] password for joe: ",
        b"Continue? (y/n) ",
        b"$ ",
        *single(b"ls -la\r\n"),
        b"\r 10% [#     ]",
        b"\r 20% [##    ]",
        b"\x1b[32mok\x1b[0m",
        b">>> ",
    ]
    assert fed(KNOWING, pieces) == [*pieces, b""]


@pytest.mark.requirement("GRD-5")
def test_a_secret_waits_until_it_is_clear_what_it_is() -> None:
    pieces = [b"a ghp_", TOKEN[4:20], TOKEN[20:], b" b"]
    assert fed(REDACTOR, pieces) == [b"a ghp_", b"", b"", b"[redacted:github-token] b", b""]


@pytest.mark.requirement("GRD-5")
def test_what_turns_out_to_be_none_leaves_as_it_is() -> None:
    assert fed(REDACTOR, [b"token=", b"ab", b"c\n"]) == [b"token=", b"", b"abc\n", b""]
    assert fed(REDACTOR, [b"token=", b"abc"]) == [b"token=", b"", b"abc"]


@pytest.mark.requirement("GRD-5", "SEC-2")
def test_only_what_may_begin_a_known_value_waits() -> None:
    told = fed(KNOWING, [b"see hun", b"ger ", b"hunter2-", b"correct-horse", b"!"])
    assert told == [b"see ", b"hunger ", b"", b"[redacted:secret HORSE]", b"!", b""]
    assert fed(KNOWING, [b"hunter2-correct-hors"]) == [b"", b"hunter2-correct-hors"]


@pytest.mark.requirement("GRD-5", "SEC-2")
@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"pw is prod-app-Zx81kdQ02 ok", b"pw is [redacted:secret LONG] ok"),
        (b"pw is prod-app-Zx81 ok", b"pw is [redacted:secret SHORT]Zx81 ok"),
        (b"xxxxprod-app-Zx81kdQ02", b"[redacted:secret BEFORE]"),
        (b"xxxxprod-app-qq", b"[redacted:secret BEFORE]qq"),
        (b"xxxxprod-app-endsend2tail more", b"[redacted:secret BEFORE] more"),
        (b"70726f642d6170702d5a7838316b64513032", b"[redacted:secret LONG]"),
        (b"cHJvZC1hcHAtWng4MWtkUTAy ok", b"[redacted:secret LONG] ok"),
    ],
)
def test_nothing_is_left_of_values_that_overlap(text: bytes, shown: bytes) -> None:
    values = {
        "SHORT": b"prod-app-",
        "LONG": b"prod-app-Zx81kdQ02",
        "BEFORE": b"xxxxprod-app-",
        "AFTER": b"p-endsend2tail",
    }
    redactor = Redactor(known=lambda: values)
    assert redactor.redact(text).data == shown
    for size in (1, 2, 3, 5, 11):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        told = b"".join(fed(redactor, pieces))
        # Forms other than the value itself are known by their third byte.
        assert told in (shown, text[:1] + shown, text[:2] + shown)


def test_a_short_value_goes_where_it_is_a_word() -> None:
    assert b"".join(fed(KNOWING, single(b"qwe-12 xqwe-12 qwe-123 (qwe-12)"))) == (
        b"[redacted:secret SHORT] xqwe-12 qwe-123 ([redacted:secret SHORT])"
    )


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_private_key_goes_whole_and_what_follows_stays(size: int) -> None:
    data = b"a\n" + KEY + b"b\n"
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert b"".join(fed(REDACTOR, pieces)) == (
        b"a\n-----BEGIN RSA PRIVATE KEY-----[redacted:private-key]\nb\n"
    )


@pytest.mark.requirement("GRD-5")
def test_a_key_longer_than_anything_is_not_held_but_swallowed() -> None:
    stream = REDACTOR.stream()
    told = stream.feed(b"-----BEGIN PRIVATE KEY-----\n")
    held_bytes = 0
    for _ in range(300):
        told += stream.feed(BODY)
        held_bytes = max(held_bytes, stream.kept_bytes)
    told += stream.feed(b"-----END PRIVATE KEY-----\nafter") + stream.end()
    assert told == b"-----BEGIN PRIVATE KEY-----[redacted:private-key]\nafter"
    assert held_bytes < 16 * 1024


def test_an_endless_value_is_swallowed_up_to_its_end() -> None:
    value = bytes(Random(1).choices(b"ABCDEFabcdefXYZ0123456789", k=1_200_000))
    data = b"token=" + value + b" after"
    pieces = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    assert b"".join(fed(REDACTOR, pieces)) == b"token=[redacted:named-secret] after"
    assert REDACTOR.redact(data).data == b"token=[redacted:named-secret] after"


@pytest.mark.slow
@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize("size", [1, 600, 1100, 4096])
def test_a_token_that_begins_in_a_longer_secret_goes_to_its_own_end(size: int) -> None:
    chance = Random(2)
    long, first, second = (
        bytes(chance.choices(b"ABCDEFabcdefXYZ0123456789", k=count)) for count in (140, 1500, 1500)
    )
    data = b"ABSK" + long + b"==eyJ" + first + b"." + second + b".x after"
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert b"".join(fed(REDACTOR, pieces)) == b"ABSK[redacted:aws-bedrock-key] after"
    assert REDACTOR.redact(data).data == b"ABSK[redacted:aws-bedrock-key] after"


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize("size", [1, 1300, 4096])
def test_where_two_rules_see_one_secret_the_longer_one_goes(size: int) -> None:
    chance = Random(3)
    first, second = (bytes(chance.choices(b"ABCDEFabcdefXYZ0123456789", k=1500)) for _ in range(2))
    data = b"AWS_SESSION_TOKEN=" + first + b"." + second + b".x after"
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    told = b"AWS_SESSION_TOKEN=[redacted:aws-session-token] after"
    assert b"".join(fed(REDACTOR, pieces)) == told
    assert REDACTOR.redact(data).data == told


def test_places_of_hits_are_those_of_the_stream() -> None:
    stream = REDACTOR.stream()
    stream.feed(b"x" * 5000 + b" " + TOKEN + b" ")
    stream.feed(b"y" * 300_000 + b" " + TOKEN)
    stream.end()
    second = 5000 + 1 + 40 + 1 + 300_000 + 1
    assert list(stream.hits) == [
        SecretHit("github-token", 5005, 5041),
        SecretHit("github-token", second + 4, second + 40),
    ]


def test_values_that_come_to_be_known_are_found_from_then_on() -> None:
    known: dict[str, bytes] = {}
    stream = Redactor(known=lambda: known).stream()
    assert stream.feed(b"first-value-of-it ") == b"first-value-of-it "
    known["LATE"] = b"first-value-of-it"
    assert stream.feed(b"first-value-of-it ") + stream.end() == b"[redacted:secret LATE] "


@pytest.mark.requirement("GRD-5", "ERR-1")
def test_nothing_leaves_while_known_values_cannot_be_read() -> None:
    is_broken = True

    def known() -> Mapping[str, bytes]:
        if is_broken:
            raise OSError("/secret/place")
        return KNOWN

    redactor = Redactor(known=known)
    stream = redactor.stream()
    for call in (
        lambda: stream.feed(VALUE),
        lambda: redactor.redact(VALUE),
        lambda: redactor.redact_text("a"),
        lambda: redactor.redact_json({}),
    ):
        with pytest.raises(VaultError) as caught:
            call()
        assert "/secret/place" not in str(caught.value)
    is_broken = False
    assert stream.feed(VALUE) + stream.end() == b"[redacted:secret HORSE]"


def test_with_rules_of_users_an_unfinished_word_waits() -> None:
    rules = load_gitleaks(
        "[[rules]]\nid = 'acme'\nregex = '''[a-z]{4}-acme-[0-9]{6}'''\nkeywords = ['acme']\n"
    )
    redactor = Redactor(shipped().with_rules(rules))
    assert fed(redactor, [b"go on ", b"abcd", b"-acme-123456", b"\n\n\n", b"x "]) == [
        b"go on ",
        b"",
        b"",
        b"[redacted:acme]\n\n\n",
        b"x ",
        b"",
    ]
