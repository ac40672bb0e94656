"""Ways around redaction: cuts, disguises, floods. Each attack first shows that it would work."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cellwall.core.errors import ConfigError
from cellwall.guard.redact import Redactor, load_gitleaks
from cellwall.guard.redact.stream import MAX_HITS

pytestmark = [
    pytest.mark.requirement("GRD-5", "SEC-2"),
    pytest.mark.only_on("cold", reason="no cell takes part: output is cleaned outside of all"),
]

VALUE = b"hunter2-correct-horse-battery"
TOKEN = b"ghp_16C7e42F292c69C2E7C10c838347Ae178B4a"
KNOWN = {"HORSE": VALUE}
REDACTOR = Redactor(known=lambda: KNOWN)
BLIND = Redactor(known=dict)

# Writes each byte by itself, as a program does that wants them to travel alone.
DRIPS = "import os, sys\nfor byte in bytes.fromhex(sys.argv[1]):\n    os.write(1, bytes([byte]))\n"


def dripped(data: bytes) -> Iterator[bytes]:
    """As a real program writes it and a real pipe hands it on."""
    with subprocess.Popen([sys.executable, "-c", DRIPS, data.hex()], stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        while piece := os.read(it.stdout.fileno(), 3):
            yield piece


def shown(redactor: Redactor, pieces: Iterator[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join([*map(stream.feed, pieces), stream.end()])


def test_a_program_that_drips_its_secret_byte_by_byte_shows_nothing_of_it() -> None:
    said = b"here: " + VALUE + b" and " + TOKEN + b"\n"
    assert b"".join(dripped(said)) == said  # the pipe itself hides nothing
    assert shown(REDACTOR, dripped(said)) == (
        b"here: [redacted:secret HORSE] and ghp_[redacted:github-token]\n"
    )


@pytest.mark.parametrize(
    "disguise",
    [
        base64.b64encode(VALUE),
        base64.b64encode(b"ab" + VALUE),
        base64.encodebytes(VALUE * 4),
        VALUE.hex().encode(),
        VALUE.hex(" ").encode(),
        b"".join(b"%%%02X" % byte for byte in VALUE),
        b"".join(b"\\x%02x" % byte for byte in VALUE),
        b"".join(b"&#%d;" % byte for byte in VALUE),
        VALUE[::-1],
        b"[redacted:" + VALUE + b"]",
        b"[redacted:secret " + VALUE + b"]",
        b"example placeholder " + VALUE,
        b"<" + VALUE + b">",
        b"\x1b[31m" + VALUE + b"\x1b[0m",
        b"\0" + VALUE + b"\0",
    ],
)
def test_a_known_value_in_a_disguise_is_still_known(disguise: bytes) -> None:
    assert BLIND.redact(disguise).data == disguise  # no rule sees it: only the vault knows
    told = REDACTOR.redact(disguise)
    assert b"[redacted:secret HORSE]" in told.data
    assert VALUE not in told.data


def test_a_value_at_the_border_of_two_blocks_is_found() -> None:
    for shift in range(0, len(VALUE) + 1, 7):
        data = b"." * (256 * 1024 - shift) + VALUE + b"." * 1000
        assert VALUE in data
        assert REDACTOR.redact(data).data == (
            b"." * (256 * 1024 - shift) + b"[redacted:secret HORSE]" + b"." * 1000
        )


def test_a_known_value_at_the_end_of_an_endless_token_does_not_stick_out() -> None:
    known = {"ODD": b'tail-of-it" and more'}
    redactor = Redactor(known=lambda: known)
    body = base64.b64encode(bytes(range(256)) * 8).decode().replace("=", "").encode()
    data = b'token = "' + body + b'tail-of-it" and more!'
    assert b"and more" in Redactor().redact(data).data  # it would, if it were not known
    for size in (1000, 64, 1):
        stream = redactor.stream()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        told = b"".join([*map(stream.feed, pieces), stream.end()])
        assert told == b'token = "[redacted:named-secret]!'


def test_a_header_of_a_key_alone_hides_nothing_that_follows() -> None:
    source = b"if '-----BEGIN PRIVATE KEY-----' in text:\n    evil()\n"
    assert REDACTOR.redact(source).data == source
    key = b"-----BEGIN PRIVATE KEY-----\n" + base64.encodebytes(bytes(range(200)))
    assert b"[redacted:private-key]" in REDACTOR.redact(key).data  # a real one is found
    after = REDACTOR.redact(key + b"-----END PRIVATE KEY-----\nevil()\n").data
    assert after.endswith(b"\nevil()\n")


@pytest.mark.parametrize(
    "unit",
    [b"ghp_", b"eyJ", b"key=", b"://a:", b"-----BEGIN PRIVATE KEY-----", b"token ", b"sk-", b"$1$"],
)
def test_a_flood_of_beginnings_is_let_through_and_never_piles_up(unit: bytes) -> None:
    flood = unit * (40_000 // len(unit))
    stream = REDACTOR.stream()
    out, max_bytes = b"", 0
    for i in range(0, len(flood), 4096):
        out += stream.feed(flood[i : i + 4096])
        max_bytes = max(max_bytes, stream.kept_bytes)
    assert out + stream.end() == flood
    assert max_bytes < 16 * 1024
    assert b"[redacted:github-token]" in REDACTOR.redact(flood + b" " + TOKEN).data


def test_a_flood_of_secrets_is_taken_out_whole() -> None:
    count = MAX_HITS + 2000
    told = REDACTOR.redact((VALUE + b"\n") * count)
    assert told.data == b"[redacted:secret HORSE]\n" * count
    assert len(told.hits) == MAX_HITS


def test_one_endless_line_leaves_while_it_comes() -> None:
    stream = REDACTOR.stream()
    left = sum(len(stream.feed(b"abc.def;" * 512)) for _ in range(200))
    assert left >= 199 * 8 * 512
    assert stream.feed(b" " + TOKEN + b" ").endswith(b" ghp_[redacted:github-token] ")


def test_a_rule_file_cannot_bring_an_expression_that_backtracks() -> None:
    table = "[[rules]]\nid = 'slow'\nregex = '''{}'''\nkeywords = ['a']\n"
    with pytest.raises(ConfigError):
        load_gitleaks(table.format(r"(a+)+\1$"))
    # In a backtracking engine this one takes longer than the universe has lasted.
    redactor = Redactor(load_gitleaks(table.format("(a+)+b")))
    assert redactor.redact(b"a" * 5000 + b"c").hits == ()
    assert redactor.redact(b"aaab").data == b"[redacted:slow]b"


def test_a_hit_tells_the_rule_and_never_the_value() -> None:
    told = REDACTOR.redact(VALUE + b" " + TOKEN)
    assert VALUE in VALUE + b" " + TOKEN
    assert VALUE.decode() not in repr(told)
    assert TOKEN.decode() not in repr(told)
    assert {hit.rule for hit in told.hits} == {"secret HORSE", "github-token"}


@pytest.mark.parametrize(
    "around",
    [
        (b"[redacted:", b"]"),
        (b"[redacted:x] ", b"[redacted:x]"),
        (b"", b"[redacted:x]"),
        (b"[redacted:github-token]", b"[redacted:github-token]"),
        (b"[redacted:secret HORSE]", b"[redacted:secret HORSE]"),
        (b"see [redacted:secret ", b"]"),
    ],
)
def test_a_mark_that_somebody_else_wrote_protects_nothing(around: tuple[bytes, bytes]) -> None:
    ahead, behind = around
    assert REDACTOR.redact(ahead + behind).data == ahead + behind  # marks themselves stay
    for secret in (TOKEN, b"AKIAQ3EGRT6WXJ5PZ7KD", VALUE):
        data = ahead + secret + behind
        told = REDACTOR.redact(data).data
        assert secret not in told
        assert REDACTOR.redact(told).data == told
        assert shown(REDACTOR, (data[i : i + 3] for i in range(0, len(data), 3))) == told


def test_a_password_with_a_mark_inside_or_behind_it_is_still_one() -> None:
    for data in (
        b'password="Tr0ub4dor&3xyz"',
        b'password="Tr0ub4dor&3xyz"[redacted:x]',
        b'password="Tr0ub4dor&3xyz[redacted:jwt]"',
    ):
        assert b"Tr0ub4dor" not in REDACTOR.redact(data).data


def test_what_looks_like_a_placeholder_of_a_lent_secret_must_be_one() -> None:
    lent = b"hfsecret_token_abcdefghij234567klmnopqrst"
    assert REDACTOR.redact(b"token=" + lent).data == b"token=" + lent
    false = b"hfsecret_token=q8Zk2LmP0xVb7RtY5uWe1NsA"
    assert b"q8Zk2Lm" not in REDACTOR.redact(false).data


def test_a_rule_with_an_optional_group_looks_at_each_match_once() -> None:
    table = "[[rules]]\nid = 'n'\nregex = '''\\b\\d{4}(-x)?\\b'''\n"
    redactor = Redactor(load_gitleaks(table))
    assert redactor.redact(b"1234-x 1234").data == b"1234[redacted:n] [redacted:n]"
    # Each used to search through all that follows: 73 s for this much.
    assert redactor.redact(b"1234 " * 8000).data == b"[redacted:n] " * 8000


@pytest.mark.parametrize(
    "line",
    [
        "entropy = 1" + "0" * 400,
        "entropy = 1" + "0" * 5001,
        "entropy = 0x" + "f" * 5000,
        "entropy = nan",
        "secretGroup = 0x" + "f" * 5000,
        "keywords = ['" + "k" * 40_000 + "']",
        "a" + ".a" * 20_000 + " = 1",
        "b = " + "[" * 100_000,
    ],
)
def test_a_rule_file_that_asks_for_too_much_is_refused(line: str) -> None:
    table = "[[rules]]\nid = 'a'\nregex = 'abc'\n"
    assert Redactor(load_gitleaks(table)).redact(b"abc").data == b"[redacted:a]"
    with pytest.raises(ConfigError) as caught:
        load_gitleaks(table + line)
    assert len(caught.value.message) < 400


def test_rules_that_are_short_to_write_and_large_to_run_are_bounded_together() -> None:
    def table(count: int) -> str:
        large = "[[rules]]\nid = 'a{0}'\nregex = '''{0}(?:\\pL{{500}})'''\n"
        return "".join(large.format(number) for number in range(count))

    assert len(load_gitleaks(table(1)).searches) == 1
    with pytest.raises(ConfigError, match="larger than can be searched"):
        load_gitleaks(table(30))


_SEQUENCES = {
    "colour": b"\x1b[01;31m\x1b[K",
    "link": b"\x1b]8;;http://a.example\x1b\\",
    "long link": b"\x1b]8;;http://a.example/" + b"p" * 2000 + b"\x1b\\",
    "title": b"\x1b]0;a\\b^c\x07",
    "charset": b"\x1b(B",
    "privacy message": b"\x1b^",
    "printed": b"\\x1b[1m",
    "caret": b"^[[1m",
    "c1": b"\xc2\x9b1m",
}


@pytest.mark.parametrize("sequence", _SEQUENCES.values(), ids=_SEQUENCES)
def test_a_sequence_inside_a_value_hides_nothing_wherever_a_chunk_ends(sequence: bytes) -> None:
    """A chunk that ended behind `ESC \\` cut a link apart, and the value around it was shown."""
    for form in (
        VALUE,
        *(base64.b64encode(b"x" * align + VALUE + b"yy") for align in range(3)),
        VALUE.hex().encode(),
        b"".join(b"%%%02X" % byte for byte in VALUE),
    ):
        middle = len(form) // 2
        ahead, behind = b"a " + form[:middle], form[middle:] + b" b"
        data = ahead + sequence + behind
        assert form in BLIND.redact(data).data.replace(sequence, b"")  # the control: not known
        near = [*range(len(ahead) - 1, len(ahead) + min(len(sequence), 40) + 2)]
        for place in (*near, len(data) - len(behind) - 1, len(data) - len(behind)):
            told = shown(REDACTOR, iter((data[:place], data[place:])))
            assert b"[redacted:secret HORSE]" in told, place
            assert not any(form[at : at + 6] in told for at in range(3, len(form) - 12)), place


@pytest.mark.parametrize("size", [1, 2, 5])
def test_values_that_are_prefixes_of_each_other_leave_no_rest(size: int) -> None:
    known = {"SHORT": VALUE[:12], "MIDDLE": VALUE[:21], "LONG": VALUE, "INNER": VALUE[8:21]}
    redactor = Redactor(known=lambda: known)
    for value in known.values():
        for rest in (b"", b"-", b"-batter", b" ", value[:6]):
            data = b"a " + value + b"\x1b[0m" + rest
            assert value in BLIND.redact(data).data
            pieces = (data[at : at + size] for at in range(0, len(data), size))
            told = shown(redactor, pieces)
            assert told == redactor.redact(data).data
            assert all(each not in told.replace(b"\x1b[0m", b"") for each in known.values())
