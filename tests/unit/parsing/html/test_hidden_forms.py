"""Text that browsers do not show is no part of a fetched page; text that they show is scanned."""

from __future__ import annotations

import pytest

from cellwall.egress.pages.render import render
from cellwall.guard.channels import html

pytestmark = pytest.mark.requirement("GRD-7")


def fetched(page: str) -> str:
    return render(page, form="text", url="https://example.com/").text


@pytest.mark.parametrize(
    ("hidden", "seen"),
    [
        ("display:none ! important", "display:block ! important"),
        ("font-size:1e-3px", "font-size:1e1px"),
        ("opacity:1e-9", "opacity:9e-1"),
        ("opacity:calc(0)", "opacity:calc(1)"),
        ("position:absolute;left:-99in", "position:absolute;left:1in"),
        ("font-size:.1mm", "font-size:5mm"),
        ("font-size:calc(0px)", "font-size:calc(12px)"),
        ("scale:0", "scale:1 .5"),
        ("translate:0 -9999px", "translate:0 9px"),
        ("color:hsla(0,0%,0%,0)", "color:hsla(0,0%,0%,1)"),
        ("margin:0 0 0 -9999px", "margin:0 0 0 -9px"),
        ("position:fixed;inset:-9999px auto auto 0", "position:fixed;inset:0"),
        ("block-size:0;overflow:hidden", "block-size:9em;overflow:hidden"),
        ("height:0;overflow:hidden hidden", "height:9em;overflow:hidden hidden"),
        ("width:0;overflow-x:clip", "width:0;overflow-x:visible"),
    ],
)
def test_a_style_that_hides_is_known_in_each_spelling(hidden, seen):
    assert fetched(f'<p style="{hidden}">attack</p>page') == "page"
    assert "text" in fetched(f'<p style="{seen}">text</p>page')


@pytest.mark.parametrize("name", ["progress", "meter"])
def test_content_of_a_gauge_is_not_shown(name):
    assert fetched(f"<{name} value=1>attack</{name}>page") == "page"


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_value_in_an_end_tag_is_not_shown(quote):
    page = f"<b>a</b x={quote}> attack {quote}>page"
    assert fetched(page) == "apage"
    found = [(piece.text, piece.is_hidden) for piece in html.read(page).pieces]
    assert any("attack" in text and is_hidden for text, is_hidden in found)
    assert ("apage", False) in found


def test_an_end_tag_without_its_bracket_ends_the_page():
    assert fetched("<b>a</b x='> rest") == "a"
    assert any("rest" in piece.text for piece in html.read("<b>a</b x='> rest").pieces)


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<!-- x --!>&#105;gn<b>ore</b><!-- -->", "ignore"),
        ("<!----!>seen<!-- -->", "seen"),
        ("<!-->seen", "seen"),
        ("<!--!>attack-->seen", "seen"),
        ("<!-- attack --! >-->seen", "seen"),
    ],
)
def test_a_comment_ends_where_browsers_end_it(page, shown):
    assert fetched(page) == shown
    pieces = html.read(page).pieces
    assert [piece.text for piece in pieces if not piece.is_hidden] == [shown]
