"""Known values are found in windows, and their beginnings at the end of one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.parsing.credentials.known_forms import forms
from cellwall.parsing.credentials.known_values import (
    PREFIX_BYTES,
    AnchorIndex,
    KnownValueMatches,
    PrefixIndex,
)

VALUE = b"tok-5f9c/2e+81d7=="
INDEX = AnchorIndex([("TOKEN", VALUE)])
BEGINNINGS = PrefixIndex(INDEX)


def test_matches_come_from_left_to_right() -> None:
    window = VALUE + b" " + base64.b64encode(VALUE) + b" " + VALUE
    matches = KnownValueMatches(INDEX, window)
    found = []
    place = 0
    while (match := matches.first(place)) is not None:
        start, place, name = match
        found.append((start, name))
    assert found == [(0, "TOKEN"), (19, "TOKEN"), (44, "TOKEN")]


def test_a_value_has_begun_with_its_first_byte() -> None:
    told = [BEGINNINGS.prefix_start(b"say " + VALUE[:size]) for size in range(len(VALUE))]
    assert told == [4] * len(VALUE)


def test_what_is_whole_or_no_beginning_waits_for_nothing() -> None:
    assert BEGINNINGS.prefix_start(b"") == 0
    assert BEGINNINGS.prefix_start(b"tool") == 4
    assert BEGINNINGS.prefix_start(b"x" + VALUE) == len(VALUE) + 1
    assert PrefixIndex(AnchorIndex([])).prefix_start(b"anything") == 8


def test_only_what_is_behind_the_start_counts() -> None:
    assert BEGINNINGS.prefix_start(b"tok-") == 0
    assert BEGINNINGS.prefix_start(b"tok-", 1) == 4


@pytest.mark.parametrize("value", [VALUE, b"abccba" * 4, "größe-des-wertes".encode(), b"\xff" * 9])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_form_has_begun_with_its_third_byte(value: bytes, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(forms(value)))
    written = b"".join(data.draw(st.sampled_from(unit)) for unit in form.units)
    size = data.draw(st.integers(PREFIX_BYTES, len(written)))
    begun = PrefixIndex(AnchorIndex([("A", value)])).prefix_start(b" " + written[:size])
    is_whole = form.first(written[:size]) is not None
    assert is_whole or begun <= 1
