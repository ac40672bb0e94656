"""The classes of characters are what Unicode says."""

from __future__ import annotations

import unicodedata

import pytest

from cellwall.guard.normalise.characters import (
    INVISIBLE,
    STABLE,
    cased_of,
    in_lower_case,
    lowered,
    uncommon,
)


def seconds() -> set[int]:
    """Characters that join with what stands before them."""
    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0x30000))
    return {int(part[1], 16) for part in parts if len(part) == 2 and not part[0].startswith("<")}


def test_what_counts_as_stable_is_left_alone_by_normalising() -> None:
    joining = seconds()
    assert 0x301 in joining

    wrong = [
        hex(code)
        for first, last in STABLE
        for code in range(first, last + 1)
        if unicodedata.combining(chr(code))
        or code in joining
        or 0x1160 <= code < 0x1200
        or not unicodedata.is_normalized("NFKC", chr(code))
    ]

    assert wrong == []


def test_nothing_that_is_seen_counts_as_invisible() -> None:
    seen = {"L", "N", "P", "S", "Z"}
    fillers = {0x115F, 0x1160, 0x3164, 0xFFA0}  # letters by category, blank by design

    wrong = [
        hex(code)
        for first, last in INVISIBLE
        for code in range(first, last + 1)
        if unicodedata.category(chr(code))[0] in seen and code not in fillers
    ]

    assert wrong == []


def test_lower_case_is_as_long_as_the_text() -> None:
    text = "".join(map(chr, range(0xD800))) + "".join(map(chr, range(0xE000, 0x30000)))

    assert len(lowered(text)) == len(text)


@pytest.mark.slow
def test_each_letter_has_the_same_lower_case_alone_and_replaced() -> None:
    wrong = [
        hex(code)
        for code in (*range(0xD800), *range(0xE000, 0x30000))
        if in_lower_case(text := f"A{chr(code)} {chr(code)}B", cased_of(text))
        != lowered(text).encode()
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "text",
    ["\u00c9cole", "\u039f\u03a3 \u03a3\u039f", "\u0130A", "\u0416" * 3 + "\u00c4\u00d6\u00dc"],
)
def test_lower_case_is_the_same_however_many_letters_have_one(text: str) -> None:
    assert in_lower_case(text, cased_of(text)) == lowered(text).encode()
    assert in_lower_case(text, "ÀÁÂÃÄÅÆ" + cased_of(text)) == lowered(text).encode()


def test_letters_that_need_a_closer_look_are_told_once_each() -> None:
    text = "plain\ttext,\r\n\x0b\x0c \u201cquoted\u201d \u201cagain\u201d \x00\x1b\x7f \U0001f600\U0001f600"

    assert sorted(uncommon(text.encode())) == sorted("\x00\x1b\x7f\u201c\u201d\U0001f600")
    assert uncommon(b"nothing of the kind\n") == ""
