"""Values found again by their keyed digests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import VaultError
from cellwall.secrets.values import KnownDigests, digest_of, parse_known, tokens

KEY = bytes(range(32))
KNOWN = (
    KnownDigests()
    .with_value(KEY, "TOKEN", b"hunter2hunter2")
    .with_value(KEY, "PADDED", b"c2VjcmV0IQ==")
    .with_value(KEY, "URL", b"https://u:p@example.com/x?y=z")
    .with_value(KEY, "SHORT", b"abc")
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"hunter2hunter2", ("TOKEN",)),
        (b'{"password": "hunter2hunter2"}', ("TOKEN",)),
        (b"x=1&token=hunter2hunter2&y=2", ("TOKEN",)),
        (b"https://user:hunter2hunter2@example.com/", ("TOKEN",)),
        (b"Authorization: Bearer c2VjcmV0IQ==\r\n", ("PADDED",)),
        (b"key=c2VjcmV0IQ==;", ("PADDED",)),
        (b"<https://u:p@example.com/x?y=z>", ("URL",)),
        (b"'c2VjcmV0IQ==' hunter2hunter2", ("PADDED", "TOKEN")),
        (b"hunter2hunter3", ()),
        (b"xhunter2hunter2", ()),
        (b"abc", ()),
        (b"", ()),
    ],
)
def test_values_are_found_where_they_stand_as_words(text, names):
    assert KNOWN.find(KEY, text) == names


@pytest.mark.requirement("SEC-1")
def test_without_the_key_they_say_nothing():
    assert KNOWN.find(bytes(32), b"hunter2hunter2") == ()
    assert digest_of(KEY, b"hunter2hunter2").encode() in KNOWN.to_bytes()
    assert b"hunter2" not in KNOWN.to_bytes()


def test_they_come_back_from_bytes():
    assert parse_known(KNOWN.to_bytes()) == KNOWN
    with pytest.raises(VaultError):
        parse_known(b"[[1]]")


@given(st.binary(min_size=6, max_size=80), st.binary(max_size=40), st.binary(max_size=40))
def test_a_value_between_blanks_is_always_found(value, before, after):
    is_word = not any(byte <= 0x20 or byte in b"\"'`<>\\\x85\xa0" for byte in value)
    known = KnownDigests().with_value(KEY, "TOKEN", value)
    if is_word:
        assert known.find(KEY, before + b" " + value + b" " + after) == ("TOKEN",)


def test_a_row_of_borders_costs_little():
    assert len(list(tokens(b"=" * 100_000))) < 10_000
