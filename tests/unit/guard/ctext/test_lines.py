"""Lines that begin with certain words, beside what a pattern says of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.ctext.library import byte_set
from cellwall.guard.ctext.lines import LineHeads
from cellwall.guard.detect.structure import chat_turns

_PARTS = st.sampled_from(
    [
        *("\n", "\n\n", "\r\n", " ", "\t", ">", "*", "**", "#", "[", "(", "|", "-", "       "),
        *("q", "question", "a", "answer", "an", "quest", ":", ".", "1", "12", "1234", ")", "]"),
        *("_", " word", "é", "\x00"),
    ]
)


@pytest.mark.requirement("GRD-2")
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(_PARTS, max_size=60).map("".join))
def test_questions_are_those_that_the_pattern_finds(text: str) -> None:
    data = text.encode()

    assert list(chat_turns._questions(data)) == list(chat_turns._QUESTION.spans(data))


def test_more_lines_than_are_wanted_are_not_told() -> None:
    heads = LineHeads(byte_set(b""), 0, (b"q",), byte_set(b":"))

    assert heads.of(b"q:\n" * 10_000, 10_000) == list(range(0, 30_000, 3))
    assert heads.of(b"q:\n" * 10_000, 9_999) is None


def test_floods_of_questions_are_found_as_well() -> None:
    data = b"q: x\na. y\n" * 2000 + b"q)\n" * 2000

    assert list(chat_turns._questions(data)) == list(chat_turns._QUESTION.spans(data))


def test_a_word_at_the_end_of_the_data_is_followed_by_nothing() -> None:
    heads = LineHeads(byte_set(b" "), 6, (b"q",), byte_set(bytes(range(256))))

    assert heads.of(b"q", 10) == heads.of(b"", 10) == []
