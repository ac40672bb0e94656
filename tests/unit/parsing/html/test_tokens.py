"""Tags, texts and comments of HTML, told apart as browsers do."""

from __future__ import annotations

import pytest

from cellwall.parsing.html import tokens as tokens_module
from cellwall.parsing.html.tokens import RAW_WITH_SCRIPTS, characters, tokens


def told(page: str, *, is_xml: bool = False) -> list[tuple[str, str, str]]:
    return [
        (token.kind, token.word, page[token.start : token.end])
        for token in tokens(page, is_xml=is_xml)
    ]


def test_tokens_are_those_of_browsers() -> None:
    page = "a<P b = 'c>'>b<!-->c<!--d--e-->f</P g>h<TITLE><b></title>i<1"
    assert told(page) == [
        ("text", "", "a"),
        ("start", "p", "<P b = 'c>'>"),
        ("text", "", "b"),
        ("comment", "", ""),
        ("text", "", "c"),
        ("comment", "", "d--e"),
        ("text", "", "f"),
        ("end", "p", "</P g>"),
        ("text", "", "h"),
        ("start", "title", "<TITLE>"),
        ("raw", "title", "<b>"),
        ("end", "title", "</title>"),
        ("text", "", "i"),
        ("text", "", "<"),
        ("text", "", "1"),
    ]


def test_the_first_attribute_of_a_name_counts_and_the_others_are_not_lost() -> None:
    (tag,) = tokens("<p Class=x CLASS=y b = 'c>' d=\"e\" f class='z' />")
    assert dict(tag.attributes) == {"class": "x", "b": "c>", "d": "e", "f": ""}
    assert tag.again == "y z"
    assert tag.is_closed


def test_what_is_without_markup_depends_on_who_reads() -> None:
    page = "<noscript><b></noscript>"
    assert [token.kind for token in tokens(page)] == ["start", "start", "end"]
    found = [token.kind for token in tokens(page, raw=RAW_WITH_SCRIPTS)]
    assert found == ["start", "raw", "end"]


def test_closed_tag_has_no_content_in_xml_alone() -> None:
    page = "<title/>a"
    assert told(page)[1:] == [("raw", "title", "a")]
    assert told(page, is_xml=True)[1:] == [("text", "", "a")]


@pytest.mark.parametrize("end", ["<p", "<p ", "<p a", "<p a=", "<p a='", "<p a='b' /"])
def test_tag_that_never_ends_is_the_rest(end: str) -> None:
    assert told(f"a{end}") == [("text", "", "a"), ("rest", "", end)]


def test_page_with_too_many_tokens_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MAX_TOKENS", 3)
    assert told("<a>b<c>d") == [("start", "a", "<a>"), ("text", "", "b"), ("cut", "", "<c>d")]
    assert told("a<b c d e>f") == [("text", "", "a"), ("cut", "", "<b c d e>f")]


def test_numbers_of_no_character_are_told_as_such() -> None:
    assert characters("a&amp;&#x41;&#99999999999999999999;") == "a&A\ufffd"
    # Attack: zeros before a number, which a browser ignores.
    assert characters(f"&#{'0' * 5000}65;&#x{'0' * 5000}42;&#00a&#x00g") == "AB\ufffda\ufffdg"
