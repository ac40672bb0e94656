"""One decision about what a human reader sees of a page, for the guard and for fetched pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.parsing.html.styles import StyleSheet
from cellwall.parsing.html.tokens import tokens
from cellwall.parsing.html.visibility import MAX_OPEN, Element, OpenElements, plain

pytestmark = pytest.mark.requirement("GRD-7", "NET-4")


def seen(page: str, *, sheet: str = "") -> tuple[str, str]:
    """The text that is seen, and the text that a fetched page keeps."""
    elements = OpenElements(sheet=StyleSheet.of([sheet]))
    shown = kept = ""
    for token in tokens(page):
        text = page[token.start : token.end]
        if token.kind == "start":
            elements.start(token)
        elif token.kind == "end":
            elements.end(token.word)
        elif token.kind == "text":
            shown += "" if elements.current.hidden_by else text
            kept += "" if elements.current.is_surely_hidden else text
    return shown, kept


@pytest.mark.parametrize(
    "page",
    [
        "<p hidden>x</p>",
        "<b><p hidden>x</b>x</p>",
        "<div><b hidden></div>x",
        "<div><p><b hidden></p></div>x",
        "<div><b hidden><i hidden></div></i>x",
        "<p><b style='display:none'>x<p>x",
        "<div>" * (MAX_OPEN + 50) + "<p hidden>x</p>x",
        "<p style='display:none;display:bogus'>x",
        "<p style='display:none!important;display:block'>x",
        "<p style='font-size:0ch'>x",
        "<p style='font-size:0000000000000'>x",
        "<p style='position:absolute;left:-9999px'>x",
        "<p style='color:#fff;background:#fefefe'>x",
        "<p style='" + "a:b;" * 3_000 + "'>x",
        "<p style='display:\x01none'>x",
        "<iframe>x</iframe>",
        "<td><div hidden><td>x",
    ],
)
def test_hidden_text_is_seen_by_neither_reader(page: str) -> None:
    assert seen(page) == ("", "")


@pytest.mark.parametrize(
    "page",
    [
        "<details>x",
        "<dialog>x",
        "<font color=white>x",
        "<p style='color:white'>x",
        "<p class=a>x",
        "<div hidden><font color=white></div>x",
    ],
)
def test_a_guess_marks_text_as_hidden_and_leaves_it_in_a_fetched_page(page: str) -> None:
    assert seen(page, sheet="div .a { display: none }") == ("", "x")


@pytest.mark.parametrize(
    "page",
    [
        "<p style='display:none'></p>x",
        "<b hidden></b>x",
        "<p><b hidden></p></b>x",
        "<a hidden></a><a>x</a>",
        "<table><tr><td><b hidden></td><td>x",
        "<p hidden><p>x",
        "<p style='font-size: ;height: ;overflow:hidden'>x",
        "<div style='background:#000'><b style='color:#fff'>x",
        "<p><span style='display:none'><div>x",
        "<details><summary>x",
    ],
)
def test_text_that_is_seen_is_not_hidden(page: str) -> None:
    assert seen(page) == ("x", "x")


def test_elements_end_where_browsers_end_them() -> None:
    closed: list[str] = []
    elements = OpenElements(on_close=lambda element: closed.append(element.name))
    for token in tokens("<ul><li>a<li>b<p>c<div>d</div></ul><table><tr><td>e</b><tr>"):
        if token.kind == "start":
            elements.start(token)
        elif token.kind == "end":
            elements.end(token.word)
    assert closed == ["li", "p", "div", "li", "ul", "td", "tr"]
    elements.close()
    assert (closed[7:], elements.depth, elements.current) == (["tr", "table"], 0, Element(""))


def test_plain_text_has_its_references_resolved_and_no_controls() -> None:
    assert plain("a&amp;\x00b&#99999999999;") == "a&b\ufffd"


_PIECES = st.sampled_from(
    [
        *("<p>", "</p>", "<b>", "</b>", "<b hidden>", "<div hidden>", "<div>", "</div>", "<ul>"),
        *("<li>", "</ul>", "<table>", "<tr>", "<td>", "</table>", "<a href=x>", "</a>", "<br>"),
        *("<i style='display:none'>", "</i>", "<font color=white>", "</font>", "x", "<option>"),
    ]
)


@settings(max_examples=200)
@given(st.lists(_PIECES, max_size=60).map("".join))
def test_every_element_is_closed_once_and_depth_is_bounded(page: str) -> None:
    opened = closed = 0

    def on_close(_: Element) -> None:
        nonlocal closed
        closed += 1

    elements = OpenElements(on_close=on_close)
    for token in tokens(page):
        if token.kind == "start":
            before = elements.depth + closed
            elements.start(token)
            opened += elements.depth + closed - before
        elif token.kind == "end":
            elements.end(token.word)
        assert 0 <= elements.depth <= MAX_OPEN
        assert elements.depth == opened - closed
    elements.close()
    assert (elements.depth, opened) == (0, closed)
