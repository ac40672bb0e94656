"""Sentences told in C, beside the same sentences told letter by letter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.ctext.sentences import marked
from cellwall.guard.detect.tasks import candidates as cues

_CUES = st.sampled_from([word.decode() for word in cues._cues().index._words])
_AROUND = st.sampled_from(
    [
        *(" ", "\t", "\n", "\n\n", "\r\n", "\v", "\x1c", "\x85", "\u00a0", "\u3000"),
        *(". ", "? ", "! ", ".", "?", "|", ":", "`", '"', "'", ")", "]", "(", "<", "\\", ",", "}"),
        *("#", "*", "/", ">", "-", ";", "%", "\u2022", "\u201d", "\u2019", "\\n", "\\t"),
        *("a", "B", "7", "é", "\U0001f600", "İ", "\ud800", "\x00", "two words ", "x" * 120),
    ]
)
_TEXTS = st.lists(st.one_of(_CUES, _AROUND), max_size=60).map("".join)


def one_by_one(text: str, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    lengths = cues._cues().lengths
    for at, number in sorted((end - lengths[number], number) for number, end in places):
        done = found[-1][1] if found else 0
        span = cues.sentence_of(text, at, number) if at >= done else None
        if span is not None and span[0] >= done:
            found.append(span)
    return found


@pytest.mark.requirement("GRD-2")
@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(_TEXTS)
def test_sentences_are_those_that_are_told_one_by_one(text: str) -> None:
    places = cues.places(text, 1000)

    found = cues.candidates(text, marked(text), places)

    assert [tuple(found[number]) for number in range(len(found))] == one_by_one(text, places)


@settings(max_examples=300, deadline=None)
@given(_TEXTS, st.sampled_from((0, 5, 900)))
def test_rivals_are_those_that_are_near(text: str, near: int) -> None:
    found = cues.candidates(text, marked(text), cues.places(text, 1000))
    spans = [found[number] for number in range(len(found))]

    assert found.rivals(near) == [
        sum(here.start - near <= other.start <= here.end + near for other in spans) - 1
        for here in spans
    ]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_a_marked_text_has_a_byte_for_each_character(text: str) -> None:
    told = marked(text)

    assert len(told) == len(text)
    assert all(
        byte == ord(one) if one < "\x80" else byte >= 0x80
        for byte, one in zip(told, text, strict=True)
    )


def test_places_that_are_not_in_the_text_are_passed_over() -> None:
    far = [(number, 10_000) for number in range(20)]

    assert len(cues.candidates("Write a poem.", b"Write a poem.", far)) == 0
    with pytest.raises(IndexError):
        cues.candidates("", b"", [])[0]
