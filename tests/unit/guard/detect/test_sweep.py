"""Words are found in one pass, and every place can be told in characters again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellwall.guard.detect.sweep import REACH_BYTES, Vocabulary, as_word
from cellwall.guard.normalise import View
from cellwall.parsing.matching import Pattern


def view(text: str) -> View:
    return View(text, text)


def test_a_word_of_two_parts_is_found_across_the_end_of_a_line() -> None:
    words = (as_word("From Now_on"),)
    for text in ("from now on", "from\nnow\ton", "from-now_on", "from*now*on"):
        sweep = Vocabulary(words).sweep(view(text))
        assert list(sweep.spans(Pattern(r"now"), words)) == [(5, 8)]


def test_only_the_neighbourhood_of_a_word_is_looked_at() -> None:
    words = (as_word("anchor"),)
    text = "target" + "." * (2 * REACH_BYTES) + "anchor target"
    found = list(Vocabulary(words).sweep(view(text)).spans(Pattern("target"), words))
    assert found == [(len(text) - 6, len(text))]


def test_what_matches_in_one_of_many_neighbourhoods_is_found_with_what_it_asks_of_its_borders() -> (
    None
):
    words = (as_word("anchor"),)
    gap = "." * (3 * REACH_BYTES)
    text = gap.join(["anchor"] * 4) + gap + "anchored\nanchor"
    sweep = Vocabulary(words).sweep(view(text))
    assert len(sweep.around(words)) == 5
    last = (len(text) - 6, len(text))
    for form in (r"(?m)^anchor", r"\nanchor", r"anchor\z"):
        found = list(sweep.spans(Pattern(form), words))
        assert found[-1][1] == last[1], form
    assert list(sweep.spans(Pattern(r"anchor\B"), words)) == [(len(text) - 15, len(text) - 9)]
    assert len(list(sweep.spans(Pattern(r"\banchor\b"), words))) == 5
    assert list(sweep.spans(Pattern(r"anchor!"), words)) == []


def test_a_second_word_must_stand_near_the_first() -> None:
    words, near = (as_word("anchor"),), (as_word("friend"),)
    far = "anchor" + "." * (4 * REACH_BYTES) + "friend"
    vocabulary = Vocabulary((*words, *near))
    assert vocabulary.sweep(view(far)).around(words, near) == []
    assert vocabulary.sweep(view("anchor friend")).around(words, near) == [(0, 13)]


def test_a_word_on_the_border_of_two_pieces_is_found() -> None:
    word = as_word("anchor")
    for shift in range(8):
        text = "." * ((512 << 10) - shift) + "anchor" + "." * 100
        assert Vocabulary((word,)).sweep(view(text)).has((word,))


@given(st.text(max_size=200).map(str.lower))
def test_bytes_become_characters_again(text: str) -> None:
    sweep = Vocabulary((b"xyz",)).sweep(view(text))
    ends, at = [0], 0
    for character in text:
        at += len(character.encode("utf-8", "surrogatepass"))
        ends.append(at)
    assert sweep.characters(ends) == {end: number for number, end in enumerate(ends)}
