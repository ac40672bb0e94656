"""Runs and chains of bytes, beside what Python's own patterns say of them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.ctext.library import byte_set
from cellwall.guard.ctext.survey import Chain, Survey, run_begins

_SURVEY = Survey(
    [Chain([b"a", b"b"], b" "), Chain([b"12"], b" 1", is_loose=True), Chain([b"x"], b"")],
    tokens=((b"%", b"0123"), (b"u", b"+"), (b"=", b"AB", b"AB")),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from((b"a", b"b", b"c", b"aaaa", b"bb")), max_size=40).map(b"".join))
def test_runs_are_those_of_a_pattern(data: bytes) -> None:
    expected = [match.start() for match in re.finditer(rb"[ab]{5,}", data)]

    assert run_begins(data, byte_set(b"ab"), 5, 1000) == expected
    told = run_begins(data, byte_set(b"ab"), 5, 1)
    assert told == (expected if len(expected) <= 1 else None)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from((b"a", b"b", b" ", b"ab" * 8, b"a  b" * 8)), max_size=30).map(b"".join)
)
def test_chains_are_told_by_their_begins(data: bytes) -> None:
    chain = re.compile(rb"(?=(?:a *b *){7}a *b)")
    expected = [match.start() for match in chain.finditer(data) if data[match.start()] == ord("a")]

    assert _SURVEY.of(data, 1000).chains[0] == expected


def test_what_is_passed_over_may_belong_to_a_chain() -> None:
    chain = _SURVEY.of(b"zz" + b"2 1 " * 12 + b"zz", 1000).chains[1]

    assert chain is not None
    low, end = chain[:2]
    assert low <= 2 < end
    assert _SURVEY.of(b"1" * 15, 1000).chains[1] == []


def test_tokens_are_two_bytes_of_their_kinds() -> None:
    told = _SURVEY.of(b"%0 %9 u+ u %%1 +u% =A =AB==BA", 1000)

    assert told.tokens == [0, 6, 12, 22, 26]
    assert _SURVEY.of(b"%0%0%0", 2).tokens is None
    assert _SURVEY.of(b"", 1).tokens == []
