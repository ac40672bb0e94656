"""What a search for a text finds in a record, and that the filters never miss it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit.searchable_text import contains, encoded_text, searchable
from cellwall.audit.text_filter import (
    PAGES,
    FilterRows,
    Place,
    add_grams,
    matching_units,
    query_places,
)

DIGEST = b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
LINE = (
    b'{"action_id":"act_1","body":{"code":"caf\\u00e9"},"id":"evt_%b","interface":"sdk",'
    b'"kind":"intent","prev":"%b","principal":"ann","seq":4711,"session_id":"sbx_7",'
    b'"time":"2026-01-31T12:00:00.000000Z","v":3}'
) % (b"0123456789abcdefghjkmnpqrs", DIGEST)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("", True),
        ("caf\u00e9", True),
        ("\u00e9", True),
        ("Caf\u00e9", False),  # case matters
        ("ann", True),
        ("sbx_7", True),
        ("evt_0123456789abcdefghjkmnpqrs", True),
        ("evt_0123", True),
        ("0123", True),
        ("1234", False),  # inside an id
        ("9f86d081", False),  # the link
        ("4711", False),  # the number
        ("2026-01", False),  # the time
        ("kind", True),
        ('"kind":"intent"', False),  # quotes in a text are escaped
    ],
)
def test_the_text_of_a_record(text: str, is_found: bool) -> None:
    assert contains(searchable(LINE), encoded_text(text)) is is_found


@pytest.mark.parametrize(
    ("text", "wanted", "is_found"),
    [
        (DIGEST, b"9f86", True),
        (DIGEST, DIGEST, True),
        (b'"' + DIGEST, b"9f86d081", True),
        (DIGEST, b"f86d", False),
        (DIGEST + b" 86d0", b"86d0", True),
        (b"internationalizations", b"nation", True),  # no digits: a word
        (b"a" * 19 + b"1", b"a1", True),  # too few digits
        (b"1" * 19, b"11", True),  # too short
        (b"x" * 100_000 + b"111", b"x1", False),
    ],
)
def test_ids_and_digests_are_found_by_their_beginning(
    text: bytes, wanted: bytes, is_found: bool
) -> None:
    assert contains(text, wanted) is is_found


def test_a_line_that_was_not_written_by_us_is_text_as_a_whole() -> None:
    assert searchable(b'{"id":"other"}') == b'{"id":"other"}'


def filters(*texts: bytes) -> dict[int, bytes]:
    """The pages for one unit per text."""
    rows = FilterRows()
    for unit, text in enumerate(texts):
        grams: set[int] = set()
        add_grams(grams, text)
        rows.add(unit, grams)
    return dict(enumerate(rows.pages(len(texts))))


def units(wanted: bytes, *texts: bytes) -> list[int]:
    return matching_units(filters(*texts), query_places(wanted), len(texts))


letters = st.text(alphabet='ab1 "\\\u00e9\U0001f600', max_size=60)
runs = st.text(alphabet="abc123", min_size=10, max_size=40)
texts = st.lists(letters | runs | st.sampled_from([DIGEST.decode(), " ", "/"]), max_size=6)


@given(parts=texts, data=st.data())
def test_a_filter_never_misses_a_text(parts: list[str], data: st.DataObject) -> None:
    whole = "".join(parts)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    text, wanted = encoded_text(whole), encoded_text(whole[start:end])
    if contains(text, wanted):
        assert units(wanted, text) == [0]


@given(st.text(max_size=80), st.text(max_size=20))
def test_a_filter_of_any_unicode_never_misses_a_text(whole: str, wanted: str) -> None:
    text = encoded_text(whole + wanted + whole)
    if contains(text, encoded_text(wanted)):
        assert units(encoded_text(wanted), text) == [0]


def test_a_filter_rules_out_other_texts() -> None:
    texts = [json.dumps({"word": f"w{number}ord"}).encode() for number in range(200)]
    found = units(b"w77ord", *texts)
    assert 77 in found
    assert len(found) < 5
    assert units(b"nothing like this", *texts) == []


@pytest.mark.parametrize("wanted", [b"", b"a", b"abc"])
def test_a_short_text_has_no_filter(wanted: bytes) -> None:
    assert query_places(wanted) == []


def test_a_huge_text_asks_for_a_bounded_number_of_rows() -> None:
    places: list[Place] = query_places(encoded_text("".join(map(str, range(100_000)))))
    assert len(places) <= 16
    assert all(0 <= page < PAGES for page, *_ in places)


def test_rows_that_go_on_are_those_that_were_written() -> None:
    texts = [b"first words", b"second words", b"third words"]
    pages = filters(*texts)
    rows = FilterRows.of([pages[number] for number in range(PAGES)], 3)
    grams: set[int] = set()
    add_grams(grams, b"fourth words")
    rows.add(10, grams)
    again = dict(enumerate(rows.pages(11)))
    assert matching_units(again, query_places(b"second"), 11) == [1]
    assert matching_units(again, query_places(b"words"), 11) == [10, 2, 1, 0]
