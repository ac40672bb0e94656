"""Whatever the text is: hits stand in it, and what was hidden comes back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.pii import Pseudonyms, find

PIECES = st.sampled_from(
    ["ann@example.com", "@", "é@ü.de", "+49 30 901820", "020 7946 0018", "415-555-2671", "tel ",
     "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "536-90-4399", "ssn ", "536904399",
     "8.8.8.8", "2001:4860:4860::8888", "00:1b:44:11:3a:b7", "born ", "1980-01-02", "生年月日",
     "221B Baker Street, London NW1 6XE", "Hauptstraße 5, 10115 Berlin", "[mail-1-abcdefgh]",
     "[mail-1-", "abcdefgh]", "[", "]", "-", "1", "12", " ", "\n", "(", ")", "+", ".", ":", "\ud800",
     "\udfff", "\x00", "😀", "\u00a0", "passport ", "A1", "[literal-1-"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PIECES, max_size=24).map("".join), st.text(max_size=80))


@pytest.mark.requirement("GRD-6")
@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_hits_stand_in_the_text_one_behind_the_other(text: str) -> None:
    at = 0
    for hit in find(text):
        assert at <= hit.start < hit.end <= len(text)
        at = hit.end


@pytest.mark.requirement("GRD-6")
@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_what_was_hidden_comes_back_exactly(texts: list[str]) -> None:
    session = Pseudonyms()
    given_out = [session.hide(text) for text in texts]
    assert [session.restore(hidden) for hidden in given_out] == texts
    # Also when a text is made of tokens of this very session, and hidden once more.
    again = session.hide(given_out[0] + texts[-1] + given_out[0])
    assert session.restore(again) == given_out[0] + texts[-1] + given_out[0]
