"""Long texts of which only the parts with letters beyond ASCII are cleaned."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.normalise import unfold
from cellwall.guard.normalise.characters import as_image

_PLAIN = "The quick brown Fox; it JUMPS over 12 dogs.\n" * 100
_LETTERS = st.sampled_from(
    [
        *(
            "\u00e9",
            "\u00c9",
            "E\u0301",
            "\u0130",
            "\u03a3",
            "\u1e9e",
            "\u01c4",
            "\u2126",
            "\u212a",
        ),
        *("\u201c", "\u2014", "\u2026", "\u00a0", "\ufb01", "\u26a0\ufe0f", "\U0001f600", "\u200b"),
        *("\u4e2d\u6587", "\u0421\u0435\u0441\u0442", "\u0430dmin", "\ud800"),
    ]
)


@pytest.mark.requirement("GRD-1")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_PLAIN)), _LETTERS), max_size=6))
def test_bytes_and_letters_of_a_view_say_the_same(places: list[tuple[int, str]]) -> None:
    text, done = "", 0
    for at, letters in sorted(places):
        text += _PLAIN[done:at] + letters
        done = at
    text += _PLAIN[done:]

    view = unfold(text).views[0]

    assert view.lower == view.folded.encode()
    assert view.image == as_image(view.plain)
    assert view.plain.count("JUMPS") == _PLAIN.count("JUMPS") or places
    at = view.plain.rindex("dogs")
    start, end = view.span(at, at + 4)
    assert text[start:end] == "dogs"


def test_letters_at_both_ends_and_on_the_border_of_blocks_are_cleaned() -> None:
    page = "a" * 1023
    text = f"\u2026{page}\u2026{page}{page}{page}{page}{page}\u2026"

    view = unfold(text).views[0]

    assert view.plain == f"...{page}...{page}{page}{page}{page}{page}..."
    assert view.span(len(view.plain) - 3, len(view.plain)) == (len(text) - 1, len(text))
    assert view.span(3 + 1023, 3 + 1023 + 3) == (1024, 1025)


@pytest.mark.parametrize("middle", ["a\u03a3" + "." * 400 + "b", "a" + "." * 400 + "\u03a3 b"])
def test_lower_case_does_not_depend_on_what_is_left_out(middle: str) -> None:
    around = "word and word. " * 2000

    (view, *_) = unfold(around + middle + around).views

    assert view.lower == view.folded.encode()
