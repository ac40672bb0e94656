"""A long text is cleaned by its parts as it is cleaned as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.normalise import cleaning
from cellwall.guard.normalise.characters import as_image, lowered
from cellwall.guard.normalise.offsets import IDENTITY
from cellwall.parsing.budget import AttemptBudget

_PLAIN = "The quick brown Fox; it JUMPS over 12 dogs.\n" * 120
_ODD = st.sampled_from(
    [
        *("\x00", "\x08", "\x08\x08", "a\x08a", "\x0c", "\x7f", "\x1f", "\x85"),
        *("\x1b[1m", "\x1b[", "\x1b]0;title\x07", "\x1b]0;", "\x1b]8;;http://a\x1b\\", "\x1b"),
        *("\x07", "\x1b\\", "\x1b[" + ";" * 64 + "m", "\x1b]" + "x" * 500, "\x1b]" + "é" * 500),
        *("\u200b", "\ufe0f", "e\u0301", "A" + "\u0301" * 6, "\u0430dmin", "\u2026", "\u0130"),
        *("\U000e0041", "\u202e", "\u03a3", "\ud800"),
    ]
)


@pytest.mark.requirement("GRD-1")
@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_PLAIN)), _ODD), min_size=1, max_size=6))
def test_parts_and_whole_come_out_the_same(places: list[tuple[int, str]]) -> None:
    text, done = "", 0
    for at, odd in sorted(places):
        text += _PLAIN[done:at] + odd
        done = at
    text += _PLAIN[done:]
    seen = cleaning.without_surrogates(text)
    letters = cleaning.uncommon(seen.encode())

    by_parts = cleaning.clean_text(text, IDENTITY, AttemptBudget(1000))
    whole = cleaning._clean_part(seen, seen.encode(), letters, IDENTITY, AttemptBudget(1000))

    assert by_parts.plain == whole.plain
    assert by_parts.masked == whole.masked
    assert by_parts.is_odd == whole.is_odd
    assert by_parts.lower == lowered(whole.plain).encode()
    assert by_parts.image == as_image(whole.plain)
    for at in range(0, len(whole.plain), 97):
        assert by_parts.track.span(at, at + 3) == whole.track.span(at, at + 3)
