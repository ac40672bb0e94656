"""What leaves is searched for secrets: those the vault knows and what is shaped like one."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from urllib.parse import quote, quote_plus

import pytest

from cellwall.egress.inspection.decompression import DecompressionBudget, Decompressor
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakHit, LeakScan, Patterns, scan_head
from cellwall.parsing.credentials.known_forms import forms, max_bytes
from cellwall.parsing.credentials.known_values import AnchorIndex
from cellwall.parsing.credentials.rule_set import shipped

VALUE = b'correct/horse+"battery" staple'
KNOWN = KnownIndex({"DB_PASSWORD": VALUE})
SHIPPED = Patterns.shipped()
NO_PATTERNS = Patterns()
RULES = {rule.id: rule for rule in SHIPPED.rules.shapes}
EXAMPLES = [(rule.id, text.encode()) for rule in RULES.values() for text in rule.match]


def scanned(
    *parts: bytes, known: KnownIndex = KNOWN, patterns: Patterns = NO_PATTERNS
) -> LeakHit | None:
    scan = LeakScan(known, patterns)
    return [None, *map(scan.feed, parts)][-1]


def wrapped(data: bytes, columns: int) -> bytes:
    """As `base64` and `xxd -p` print it."""
    return b"\n".join(data[at : at + columns] for at in range(0, len(data), columns)) + b"\n"


ONE_LINERS = {
    "raw": (b"password=" + VALUE, "raw"),
    "rev": (VALUE[::-1], "reversed"),
    "curl --data-urlencode": (quote(VALUE, safe="").encode(), "url"),
    "a form": (b"password=" + quote_plus(VALUE).encode() + b"&x=1", "url"),
    "every byte escaped": (b"".join(b"%%%02x" % byte for byte in VALUE), "url"),
    "json": (json.dumps({"password": VALUE.decode()}).encode(), "json"),
    "json of another library": (b'"correct\\/horse\\u002B\\"battery\\" staple"', "json"),
    "repr": (rb'b"correct\x2fhorse+\"battery\" staple"', "escaped"),
    "html": (b"correct/horse+&quot;battery&#34; staple", "html"),
    "base64": (wrapped(base64.b64encode(b"PASSWORD=" + VALUE + b"\nUSER=x\n"), 76), "base64"),
    "base64 in the middle": (base64.b64encode(b"x" * 100 + VALUE + b"y" * 100), "base64"),
    "base64 for a URL": (base64.urlsafe_b64encode(b"ab" + VALUE), "base64"),
    "base64 in a form": (quote(base64.b64encode(b"\xff\xfe" + VALUE)).encode(), "base64"),
    "base64 in json": (
        json.dumps({"content": wrapped(base64.b64encode(VALUE * 4)[20:], 60).decode()}).encode(),
        "base64",
    ),
    "xxd -p": (wrapped((b"some text" + VALUE).hex().encode(), 60), "hex"),
    "od": (VALUE.hex(" ").encode(), "hex"),
    "a C array": (b", ".join(b"0x%02X" % byte for byte in VALUE), "hex"),
}


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("name", ONE_LINERS)
def test_a_known_value_is_found_in_the_usual_forms(name: str) -> None:
    body, encoding = ONE_LINERS[name]
    found = LeakHit("DB_PASSWORD", "known", encoding)
    assert scanned(b"a" * 1000 + body + b"b" * 1000) == found
    assert scanned(*(body[at : at + 1] for at in range(len(body)))) == found
    other = KnownIndex({"DB_PASSWORD": b"another/value+of the+same"})
    assert scanned(body, known=other) is None


@pytest.mark.requirement("NET-5")
def test_a_value_inside_a_packed_body_is_found() -> None:
    scan = LeakScan(KNOWN, NO_PATTERNS)
    packed = gzip.compress(b"x" * 200_000 + VALUE + b"x" * 200_000)
    assert scan.feed(packed) is None
    for piece in Decompressor("gzip", DecompressionBudget(1 << 20)).feed(packed):
        scan.feed(piece)
    assert scan.feed(b"") == LeakHit("DB_PASSWORD", "known", "raw")


def test_the_first_hit_stays_and_nothing_after_it_is_looked_at() -> None:
    scan = LeakScan(KnownIndex({"A": b"first-value", "B": b"second-value"}), NO_PATTERNS)
    assert [
        scan.feed(b"first-val"),
        scan.feed(b"ue"),
        scan.feed(b"second-value"),
        scan.feed(b""),
    ] == [
        None,
        LeakHit("A", "known", "raw"),
        LeakHit("A", "known", "raw"),
        LeakHit("A", "known", "raw"),
    ]


@pytest.mark.parametrize("count", [1, 20, 200])
def test_each_of_many_values_is_found(count: int) -> None:
    source = random.Random(count)
    values = {
        f"KEY{number}": base64.urlsafe_b64encode(source.randbytes(6 + number % 30))
        for number in range(count)
    }
    values["KEY0"] = source.randbytes(20)
    known = KnownIndex(values)
    noise = base64.b64encode(source.randbytes(1000)) + source.randbytes(1000)
    assert scanned(noise, known=known) is None
    for name, value in [*values.items()][:: count // 7 or 1]:
        for form in forms(value):
            written = b"".join(unit[-1] for unit in form.units)
            hit = scanned(noise + written + noise, known=known)
            assert hit is not None
            assert hit.name == name


def test_a_part_of_a_long_value_is_enough() -> None:
    source = random.Random(1)
    value = source.randbytes(2000)
    known = KnownIndex({"KEY_FILE": value})
    assert scanned(value[:1200], known=known) == LeakHit("KEY_FILE", "known", "raw")
    assert scanned(value[:300], known=known) is None


def test_what_waits_for_more_data_is_bounded() -> None:
    known = KnownIndex({"KEY_FILE": bytes(range(256)) * 100})
    assert 512 < known.max_bytes < 8192


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize(
    ("host", "encoding"),
    [
        ("s3cret-pass.wild.example", "raw"),
        ("x-s3cret-pass-y.wild.example", "raw"),
        ("s3cr.et-pa.ss.wild.example", "raw"),
        ("5333637265742d50617373.wild.example", "hex"),
    ],
)
def test_a_known_value_is_found_in_a_hosts_name(host: str, encoding: str) -> None:
    assert KnownIndex({"KEY": b"S3cret-Pass"}).find_in_host(host) == LeakHit(
        "KEY", "known", encoding
    )
    assert KnownIndex({"KEY": b"S3cret-Word"}).find_in_host(host) is None


@pytest.mark.requirement("NET-5")
def test_a_short_value_is_compared_with_nothing() -> None:
    """A refusal would tell a guess among few from the right one."""
    headers = [(b"X-Pin", b"s3cret1"), (b"Cookie", b"pin=s3cret1")]

    def found(value: bytes) -> bool:
        known = KnownIndex({"PIN": value})
        hit = scan_head(b"/?pin=s3cret1", headers, known=known, patterns=NO_PATTERNS)
        return bool(known or hit or scanned(b"s3cret1", known=known))

    assert not found(b"s3cret1")
    assert found(b"pin=s3cret1")


def test_many_long_values_are_made_ready_without_their_forms() -> None:
    """Thousands of forms would hold up every connection for seconds."""
    source = random.Random(3)
    texts = [base64.b64encode(source.randbytes(48_000)) for _ in range(10)]
    index = AnchorIndex((f"KEY{number}", text) for number, text in enumerate(texts))
    assert index.max_bytes == max_bytes(512)
    data = source.randbytes(5000) + texts[7][:2000]
    assert {piece.name for piece, form in index.candidates(data) if form.first(data)} == {"KEY7"}
    made = [piece for piece in index.pieces if "forms" in vars(piece)]
    assert 0 < len(made) < 10


def test_a_long_value_without_letters_is_found_by_its_beginning() -> None:
    value = bytes(range(128, 256)) * 500
    known = KnownIndex({"KEY": value})
    assert scanned(b"a" * 1000, value, known=known) == LeakHit("KEY", "known", "raw")
    made = [piece for piece in AnchorIndex([("KEY", value)]).pieces if "forms" in vars(piece)]
    assert len(made) == 12


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/" + quote(VALUE, safe="").encode(), []),
        (b"/?x=" + base64.urlsafe_b64encode(VALUE), []),
        (b"/", [(b"X-Any", VALUE)]),
        (b"/", [(b"Authorization", b"Basic " + base64.b64encode(b"me:" + VALUE))]),
    ],
)
def test_a_known_value_is_found_in_urls_and_headers(target: bytes, headers: list) -> None:
    hit = scan_head(target, headers, known=KNOWN, patterns=NO_PATTERNS)
    assert hit is not None
    assert hit.name == "DB_PASSWORD"
    clean = KnownIndex({"DB_PASSWORD": b"something else"})
    assert scan_head(target, headers, known=clean, patterns=NO_PATTERNS) is None


def test_a_pattern_is_found_behind_basic_authentication() -> None:
    token = b"ghp_" + b"a1B2" * 9
    headers = [(b"authorization", b"Basic " + base64.b64encode(b"git:" + token))]
    hit = scan_head(b"/", headers, known=KnownIndex({}), patterns=SHIPPED)
    assert hit == LeakHit("github-token", "pattern", "raw")


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_what_has_a_providers_shape_is_found_however_it_is_cut(name: str, text: bytes) -> None:
    body = b"." * 3000 + b" " + text + b"\n"
    for at in range(3000, len(body), 7):
        assert scanned(body[:at], body[at:], patterns=SHIPPED) is not None
    pieces = (body[at : at + 5] for at in range(0, len(body), 5))
    assert scanned(*pieces, patterns=SHIPPED) is not None


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_found_within_what_a_scan_keeps(name: str) -> None:
    rule = RULES[name]
    shortest, _ = re._parser.parse(rule.value.source).getwidth()  # type: ignore[attr-defined]
    lead = 0 if rule.lead is None else re._parser.parse(rule.lead.pattern).getwidth()[1]  # type: ignore[attr-defined]
    assert max(map(len, rule.words)) + lead + shortest <= SHIPPED.max_bytes


@pytest.mark.parametrize("name", RULES)
def test_a_near_miss_passes(name: str) -> None:
    assert RULES[name].not_match
    for text in RULES[name].not_match:
        assert scanned(f"{text} and more".encode(), patterns=SHIPPED) is None


def test_what_stands_before_a_pattern_counts_wherever_the_data_is_cut() -> None:
    token = b"AKIAQ4B7Z3NEWKEY2TZX"
    padding = b"." * 2000
    for before, hit in ((b"x", None), (b" ", LeakHit("aws-access-key", "pattern", "raw"))):
        body = padding + before + token
        for at in range(len(padding) - 2, len(body)):
            assert scanned(body[:at], body[at:], b" " * 600, b" ", patterns=SHIPPED) == hit


def test_what_a_request_may_hold_passes() -> None:
    """Tokens that a program gets from the server that it talks to, and how it signs in there."""
    shapes = [rule for rule in shipped().shapes if not rule.is_on_wire]
    assert {"jwt", "authorization-header", "aws-signed-url"} <= {rule.id for rule in shapes}
    for text in (text for rule in shapes for text in rule.match):
        hit = scanned(text.encode(), patterns=SHIPPED)
        assert hit is None or hit.name in RULES


def test_nothing_known_and_no_pattern_finds_nothing() -> None:
    known = KnownIndex({})
    assert not known
    assert known.max_bytes == 0
    assert scanned(VALUE, b"", VALUE, known=known) is None


def test_no_value_is_shown_by_what_holds_it() -> None:
    index = AnchorIndex([("DB_PASSWORD", VALUE)])
    shown = repr([KNOWN, index, index.pieces, index.pieces[0].forms, scanned(VALUE)])
    assert "DB_PASSWORD" in shown
    assert "horse" not in shown
