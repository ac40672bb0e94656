"""The filter between untrusted bytes and a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.interfaces.terminal import TerminalFilter, one_line, safe_text

PIECES = (
    *(b"\x1b", b"[", b"m", b"0", b";", b"\x9b", b"\xc2", b"\xe2\x80\xae", b"\r", b"\n"),
    *(b"\x1b[31m", b"\x1b]0;t\x07", b"\x1bP", b"\xf0\x9f", b"\x98\x80", b"\x7f"),
)
# Bytes in which escape sequences, controls and cut characters are frequent.
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(PIECES),
        st.binary(max_size=6),
        st.text(max_size=6).map(str.encode),
    ),
    max_size=30,
)
COLOUR = re.compile(r"\x1b\[[0-9;]{0,64}m")
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def filtered(chunks: list[bytes], *, colours: bool = True) -> bytes:
    clean = TerminalFilter(colours=colours)
    return b"".join([*map(clean.feed, chunks), clean.finish()])


@given(HOSTILE)
def test_nothing_that_a_terminal_obeys_passes_except_colours(chunks):
    shown = filtered(chunks).decode()
    assert OBEYED.search(COLOUR.sub("", shown)) is None


@given(HOSTILE)
def test_without_colours_no_control_but_line_end_and_tab_passes(chunks):
    shown = filtered(chunks, colours=False).decode()
    assert OBEYED.search(shown) is None
    assert "\r" not in shown


@given(HOSTILE)
def test_where_chunks_are_cut_makes_no_difference(chunks):
    whole = b"".join(chunks)
    single = [whole[i : i + 1] for i in range(len(whole))]
    assert filtered(chunks) == filtered([whole]) == filtered(single)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf"]), max_size=50))
def test_plain_text_passes_unchanged(text):
    assert filtered([text.encode()]) == text.encode()


@given(HOSTILE)
def test_nothing_is_swallowed(chunks):
    # Every byte is shown as itself or as something at least as long.
    whole = b"".join(chunks)
    assert len(filtered(chunks)) >= len(whole)


@pytest.mark.parametrize(
    ("given_bytes", "shown"),
    [
        (b"\x1b]0;owned\x07", b"^[]0;owned^G"),
        (b"\x1b[2J", b"^[[2J"),
        (b"\x1b[6n", b"^[[6n"),
        (b"\x1b]52;c;ZXZpbA==\x07", b"^[]52;c;ZXZpbA==^G"),
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m\x1b[0m"),
        (b"\x1b[" + b"1" * 65 + b"m", b"^[[" + b"1" * 65 + b"m"),
        (b"\x9b31m", b"\\x9b31m"),
        ("\u009b31m".encode(), b"\\x9b31m"),
        (b"\xff\xfe", b"\\xff\\xfe"),
        (b"a\x08b\x7f", b"a^Hb^?"),
        ("\u202edcba".encode(), b"\\u202edcba"),
        (b"\x1b", b"^["),
        (b"\xe2\x82", b"\\xe2\\x82"),
        (b"a\tb\r\nc", b"a\tb\r\nc"),
        ("grüße 😀".encode(), "grüße 😀".encode()),
    ],
)
def test_each_kind_of_sequence(given_bytes, shown):
    assert filtered([given_bytes]) == shown


def test_a_character_cut_by_a_chunk_waits_for_its_rest():
    clean = TerminalFilter(colours=True)
    assert [clean.feed(b"\xe2\x82"), clean.feed(b"\xac"), clean.finish()] == [
        b"",
        "€".encode(),
        b"",
    ]


@given(st.text())
def test_one_line_is_one_line_that_can_be_printed(text):
    line = one_line(text)
    assert line.encode().decode() == line
    assert len(line.splitlines()) <= 1
    assert OBEYED.search(line) is None


def test_safe_text_keeps_our_own_line_ends_alone():
    assert safe_text("a\x1b\nb\rc") == "a^[\nb^Mc"
