"""Secrets in traffic, in any form and however it is cut (NET-5, SEC-5)."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cellwall.egress.inspection.body_filters import EchoFilter, EchoIndex, SentValue
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns
from cellwall.parsing.credentials.known_forms import PIECE_BYTES, forms, pieces

PLACEHOLDER = b"hfsecret_key_abcdefghijklmnopqrstuvwxyz"
NO_PATTERNS = Patterns()

TRICKY = (
    b"%",
    b"%0",
    b"%2",
    b"\\",
    b"\\u00",
    b"\\x",
    b"0",
    b"x",
    b"0x",
    b"&",
    b"&#",
    b"&#x",
    b";",
    b"+",
    b"=",
    b"n",
    b"\n",
    b"5c",
)
"""What may swallow the first or last byte of a value when escapes around it are undone."""

values = st.one_of(
    st.binary(min_size=8, max_size=24),
    st.text("abcXYZ019_-.", min_size=8, max_size=40).map(str.encode),
    st.text("ab%\\\"'/+ &#;<é€😀\n", min_size=8, max_size=16).map(str.encode),
    st.text("0123456789abcdef", min_size=8, max_size=16).map(str.encode),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=3), st.just(8)),
    st.sampled_from(TRICKY).map(lambda part: part * 8),
)
around = st.one_of(
    st.binary(max_size=40), st.lists(st.sampled_from(TRICKY), max_size=4).map(b"".join)
)


def mixed(value: bytes, random: Random, escape: Callable[[int], bytes]) -> bytes:
    share = random.choice((0.0, 0.1, 0.5, 1.0))
    return b"".join(escape(byte) if random.random() < share else bytes([byte]) for byte in value)


def any_case(digits: str, random: Random) -> bytes:
    return "".join(random.choice((c.upper(), c.lower())) for c in digits).encode()


def url(value: bytes, random: Random) -> bytes:
    return mixed(value, random, lambda byte: b"%" + any_case(f"{byte:02x}", random))


def escaped(value: bytes, random: Random) -> bytes:
    return mixed(value, random, lambda byte: b"\\x" + any_case(f"{byte:02x}", random))


def as_json(value: bytes, random: Random) -> bytes:
    text = text_of(value)
    if text is None or (value.isascii() and random.random() < 0.3):
        return mixed(value, random, lambda byte: b"\\u00" + any_case(f"{byte:02x}", random))
    written = json.dumps(text, ensure_ascii=random.random() < 0.5)[1:-1]
    return (written.replace("/", "\\/") if random.random() < 0.5 else written).encode()


def as_html(value: bytes, random: Random) -> bytes:
    text = text_of(value)
    if text is None:
        return value
    errors = "xmlcharrefreplace"
    if random.random() < 0.5:
        return html.escape(text).encode(random.choice(("ascii", "utf-8")), errors)
    number = random.choice(("&#{};", "&#{:03};", "&#x{:x};", "&#X{:X};", "&#x{:04x};"))
    share = random.choice((0.1, 0.5, 1.0))
    letters = (number.format(ord(c)) if random.random() < share else c for c in text)
    return "".join(letters).encode()


def text_of(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def as_base64(value: bytes, random: Random) -> bytes:
    before, after = random.randbytes(random.randrange(9)), random.randbytes(random.randrange(9))
    encoded = base64.b64encode(before + value + after, random.choice((b"+/", b"-_")))
    columns = random.choice((4, 60, 64, 76, 10_000))
    lines = [encoded[at : at + columns] for at in range(0, len(encoded), columns)]
    wrap = random.choice((b"\n", b"\r\n", b"\\n", b"\\r\\n", b"%0A", b"%0d%0a"))
    plus, slash = random.choice(((b"+", b"/"), (b"%2B", b"%2f"), (b"\\u002b", b"\\/")))
    return wrap.join(line.replace(b"+", plus).replace(b"/", slash) for line in lines)


def as_hex(value: bytes, random: Random) -> bytes:
    gap = random.choice((b"", b" ", b":", b"-", b",", b"\n", b"\\x", b", 0x", b"0x", b"%0A"))
    return gap.join(any_case(f"{byte:02x}", random) for byte in value)


ENCODERS = (
    lambda value, _: value,
    lambda value, _: value[::-1],
    url,
    escaped,
    as_json,
    as_html,
    as_base64,
    as_hex,
)


@st.composite
def encoded_values(draw: st.DrawFn) -> tuple[bytes, bytes]:
    value = draw(values)
    random = draw(st.randoms(use_true_random=False))
    return value, draw(st.sampled_from(ENCODERS))(value, random)


@st.composite
def rubble(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A value, and data that is full of it, of its beginnings, ends and near misses."""
    value = draw(values)
    random = draw(st.randoms(use_true_random=False))
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        part = draw(st.sampled_from(ENCODERS))(value, random)
        cut = draw(st.integers(0, 3))
        parts += [(part, part[:-1], part[1:], part[: len(part) // 2])[cut], draw(around)]
    return value, b"".join(parts)


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return [data[a:b] for a, b in pairwise(places)]


cuts = st.lists(st.integers(0, 10_000), max_size=12)


def scanned(value: bytes, parts: list[bytes]) -> bool:
    scan = LeakScan(KnownIndex({"KEY": value}), NO_PATTERNS)
    for part in parts:
        scan.feed(part)
    return scan.feed(b"") is not None


def filtered(value: bytes, parts: list[bytes]) -> bytes:
    told = SentValue(name="KEY", placeholder=PLACEHOLDER.decode(), value=value)
    echoes = EchoFilter(EchoIndex([told]))
    return b"".join([*map(echoes.feed, parts), echoes.end()])


def stands_in(value: bytes, data: bytes) -> bool:
    """The slow truth: every form tried at every place."""
    return any(
        form.walk(data, place) is not None
        for piece in pieces(value)
        for form in forms(piece)
        for place in range(len(data))
    )


def cleaned(value: bytes, data: bytes) -> bytes:
    """The slow truth: all forms that overlap become one placeholder."""
    every = [form for piece in pieces(value) for form in forms(piece)]
    out = b""
    covered = 0
    for place in range(len(data)):
        ends = [end for form in every if (end := form.walk(data, place)) is not None]
        if ends and place >= covered:
            out += PLACEHOLDER
        covered = max([covered, *ends])
        out += data[place : place + 1] if place >= covered else b""
    return out


@pytest.mark.requirement("NET-5")
@given(encoded_values(), around, around, cuts)
@settings(max_examples=300, deadline=None)
def test_a_value_is_found_in_any_form_between_any_bytes_and_however_it_is_cut(
    encoded: tuple[bytes, bytes], before: bytes, after: bytes, places: list[int]
) -> None:
    value, written = encoded
    assert scanned(value, cut_up(before + written + after, places))


@given(rubble(), cuts)
@settings(max_examples=150, deadline=None)
def test_the_fast_scan_agrees_with_trying_every_form_at_every_place(
    case: tuple[bytes, bytes], places: list[int]
) -> None:
    value, data = case
    assert scanned(value, cut_up(data, places)) == stands_in(value, data)


@pytest.mark.requirement("SEC-5")
@given(rubble(), cuts)
@settings(max_examples=150, deadline=None)
def test_an_echo_is_replaced_the_same_way_however_the_answer_is_cut(
    case: tuple[bytes, bytes], places: list[int]
) -> None:
    value, data = case
    assert filtered(value, cut_up(data, places)) == cleaned(value, data)


@pytest.mark.requirement("SEC-5")
@given(encoded_values(), around, around, cuts)
@settings(max_examples=150, deadline=None)
def test_no_form_of_a_value_comes_back(
    encoded: tuple[bytes, bytes], before: bytes, after: bytes, places: list[int]
) -> None:
    value, written = encoded
    answer = filtered(value, cut_up(before + written + after, places))
    assert PLACEHOLDER in answer
    assert not any(stands_in(value, part) for part in answer.split(PLACEHOLDER))


@given(st.binary(max_size=400), cuts)
@settings(max_examples=100, deadline=None)
@example(b"hunter2-hunter2-hunter", [3, 4, 9])
def test_an_answer_without_the_value_stays_as_it_is(data: bytes, places: list[int]) -> None:
    assert filtered(b"hunter2-hunter2-hunter2", cut_up(data, places)) == data


@pytest.mark.parametrize("length", [PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_a_long_value_is_found_and_replaced_whole(length: int) -> None:
    random = Random(length)
    value = random.randbytes(length)
    places = [random.randrange(length) for _ in range(5)]
    parts = cut_up(b"before" + value + b"after", places)
    assert scanned(value, parts)
    assert filtered(value, parts) == b"before" + PLACEHOLDER * len(pieces(value)) + b"after"
