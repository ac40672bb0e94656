"""Lines that begin with certain words, beside what a pattern says of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.guard.detect.structure import turns
from holdfast.guard.native.library import byte_set
from holdfast.guard.native.lines import line_heads

_PARTS = st.sampled_from(
    [
        *("\n", "\n\n", "\r\n", " ", "\t", ">", "*", "**", "#", "[", "(", "|", "-", "       "),
        *("q", "question", "a", "answer", "an", "quest", ":", ".", "1", "12", "1234", ")", "]"),
        *("_", " word", "é", "\x00"),
    ]
)


@pytest.mark.requirement("GRD-2")
@settings(max_examples=800, deadline=None)
@given(st.lists(_PARTS, max_size=60).map("".join))
def test_questions_are_those_that_the_pattern_finds(text: str) -> None:
    data = text.encode()

    assert list(turns._questions(data)) == list(turns._QUESTION.spans(data))


def test_more_lines_than_anybody_expects_are_all_told() -> None:
    lines = line_heads(b"q:\n" * 10_000, byte_set(b""), 0, (b"q",), byte_set(b":"))

    assert lines == list(range(0, 30_000, 3))


def test_a_word_at_the_end_of_the_data_is_followed_by_nothing() -> None:
    assert line_heads(b"q", byte_set(b" "), 6, (b"q",), byte_set(bytes(range(256)))) == []
    assert line_heads(b"", byte_set(b" "), 6, (b"q",), byte_set(b":")) == []
