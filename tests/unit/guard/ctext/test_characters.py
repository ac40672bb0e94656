"""Letters of a text and the blocks that have them, told in C as they are told letter by letter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.ctext.characters import blocks, letters
from cellwall.guard.normalise.characters import COMMON

_TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            ("plain words, ", "\n", "\x00", "\x1b[1m", "\x7f", "é", "中", "😀", "\x80")
        ),
    ),
    max_size=60,
).map("".join)


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.requirement("GRD-1")
@settings(max_examples=300, deadline=None)
@given(_TEXTS)
def test_each_letter_that_is_not_common_is_told_once(text: str) -> None:
    found = letters(utf8(text), COMMON)

    assert len(found) == len(set(found))
    assert set(found) == {one for one in text if one > "\x7f" or not COMMON[ord(one)]}


def test_more_letters_than_anybody_expects_are_all_told() -> None:
    text = "".join(chr(code) for code in range(0x80, 0x3000))

    assert letters(text.encode(), COMMON) == text


@settings(max_examples=300, deadline=None)
@given(_TEXTS, st.sampled_from((1, 3, 8, 16, 128)), st.integers(1, 20))
def test_blocks_are_told_in_bytes_and_characters(text: str, size: int, most: int) -> None:
    data = utf8(text)
    expected = []
    characters = 0
    for start in range(0, len(data), size):
        block = data[start : start + size]
        inside = sum(byte & 0xC0 != 0x80 for byte in block)
        if not all(COMMON[byte] for byte in block):
            expected.append((characters, characters + inside, start, start + len(block)))
        characters += inside

    assert blocks(data, COMMON, size, most) == expected[:most]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_what_is_no_text_is_passed_over(data: bytes) -> None:
    rare = {one for one in data.decode("utf-8", "ignore") if one > "\x7f"}

    assert rare <= set(letters(data, COMMON))
    assert len(blocks(data, COMMON, 8, 1000)) <= -(-len(data) // 8)
