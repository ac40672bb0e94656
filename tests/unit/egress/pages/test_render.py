"""HTML becomes what a reader would see, in time, whatever it is made of (NET-4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.egress.pages import outline as outline_module
from cellwall.egress.pages.outline import outline
from cellwall.egress.pages.render import Rendered, absolute_link, render
from cellwall.parsing.html import tokens as tokens_module

URL = "https://docs.example.com/a/page"

ARTICLE = """<!doctype html>
<html><head><title>The &amp; title</title><base href="/b/"><style>p { color: red }</style></head>
<body><h2>Hello, <b>world</b></h2>
<p>One <a href="x.html">link</a> with <code>snake_case</code> and <em>stress</em>
<p>Two<br>lines <img src=x.png alt="a picture">
<ul><li>one<li>two<ul><li>nested</ul><li>three</ul>
<ol start=3><li>c<li>d</ol>
<pre>  if x:
      y()
```</pre>
<blockquote>a quote<p>goes on</blockquote>
<table><caption>Numbers</caption><thead><tr><th>a<th>b</thead>
<tbody><tr><td>1|2<td>2<tr><td>3<td>4</table>
<dl><dt>Term<dd>Meaning</dl><hr>
<div>end</div></body></html>"""

MARKDOWN = """# The & title

## Hello, **world**

One [link](https://docs.example.com/b/x.html) with `snake_case` and *stress*

Two\x20\x20
lines a picture

- one
- two
  - nested
- three

3. c
4. d

````
  if x:
      y()
```
````

> a quote
>
> goes on

Numbers

| a | b |
| --- | --- |
| 1\\|2 | 2 |
| 3 | 4 |

Term
:   Meaning

---

end"""

TEXT = """The & title

Hello, world

One link with snake_case and stress

Two
lines a picture

- one
- two
- nested
- three
3. c
4. d

  if x:
      y()
```

a quote

goes on

Numbers
a\tb
1|2\t2
3\t4

Term
Meaning

end"""


def markdown(page: str) -> str:
    return render(page, form="markdown", url=URL).text


@pytest.mark.requirement("NET-4")
def test_html_becomes_markdown_text_or_stays() -> None:
    assert render(ARTICLE, form="markdown", url=URL) == Rendered(MARKDOWN, is_cut=False)
    assert render(ARTICLE, form="text", url=URL) == Rendered(TEXT, is_cut=False)
    assert render(ARTICLE, form="raw", url=URL) == Rendered(ARTICLE, is_cut=False)


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    "hidden",
    [
        *("<script>HIDDEN</script>", "<style>HIDDEN</style>", "<!-- HIDDEN -->", "<?php HIDDEN ?>"),
        *("<script>'</p>'; HIDDEN</script>", "<SCRIPT>HIDDEN</ScRiPt >", "<!-- > HIDDEN -->"),
        *("<template><p>HIDDEN</template>", "<noscript>HIDDEN</noscript>", "<svg>HIDDEN</svg>"),
        *("<iframe>HIDDEN</iframe>", "<![CDATA[HIDDEN]]>", "<svg><title>HIDDEN</title></svg>"),
        "<svg><style><!-- </style></svg> HIDDEN --></style></svg>",
        "<svg><![CDATA[ a > HIDDEN ]]></svg>",
        *("<p hidden>HIDDEN</p>", "<p HIDDEN=false>HIDDEN</p>", "<p aria-hidden=true>HIDDEN</p>"),
        *("<p style='display:none'>HIDDEN</p>", "<p style='DISPLAY : NONE !important'>HIDDEN</p>"),
        *("<p style='color:red;visibility:hidden'>HIDDEN</p>", "<p style=font-size:0>HIDDEN</p>"),
        *("<p style='font-size:0.0px'>HIDDEN</p>", "<p style='opacity: 0'>HIDDEN</p>"),
        *("<p style='display/**/:/* x */none'>HIDDEN</p>", "<p style='d\\69splay:none'>HIDDEN</p>"),
        *("<p style='display:n&#111;ne'>HIDDEN</p>", "<div hidden><p>HIDDEN<p>HIDDEN</div>"),
        *("<div hidden><b><i>HIDDEN</b></i>HIDDEN</div>", "<b><p hidden>x</b>HIDDEN</p>"),
        *("<div hidden><ul><li>HIDDEN<li>HIDDEN</ul>HIDDEN</div>", "<img hidden alt=HIDDEN>"),
        "<div hidden>" + "<div>" * 300 + "HIDDEN" + "</div>" * 300 + "</div>",
        "<div>" * 300 + "<p hidden>HIDDEN</p>" + "</div>" * 300,
    ],
)
@pytest.mark.parametrize("form", ["markdown", "text"])
def test_what_nobody_sees_is_left_out(hidden: str, form: str) -> None:
    page = f"<p>before</p>{hidden}<p>after</p>"
    text = render(page, form=form, url=URL).text  # type: ignore[arg-type]  # one of both
    assert "HIDDEN" not in text
    assert "before" in text
    assert "after" in text


@pytest.mark.parametrize(
    "shown",
    [
        *(
            "<p aria-hidden=false>SHOWN",
            "<p style='display:block'>SHOWN",
            "<p style='opacity:.5'>SHOWN",
        ),
        *("<p style='font-size:10px'>SHOWN", "<p hidden></p>SHOWN", "<p hidden>x<p>SHOWN"),
        *(
            "<div hidden>x<p></div>SHOWN",
            "<br hidden>SHOWN",
            "<script></script>SHOWN",
            "<!-->SHOWN",
        ),
        *("<table><tr hidden><td>x<tr><td>SHOWN", "<ul><li hidden>x<li>SHOWN", "<x-y>SHOWN</x-y>"),
        *(
            "</div></p></b>SHOWN",
            "a < b & <3 SHOWN",
            "<p title='<!--'>SHOWN",
            "<p a=b/>SHOWN",
        ),
    ],
)
def test_what_a_reader_sees_stays(shown: str) -> None:
    assert "SHOWN" in markdown(shown)


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    ("href", "target"),
    [
        ("x?a=1&amp;b=2", "https://docs.example.com/a/x?a=1&b=2"),
        ("//www.example.com/", "https://www.example.com/"),
        ("HTTP://www.example.com/", "HTTP://www.example.com/"),
        ("mailto:a@example.com", "mailto:a@example.com"),
        ("#part", "https://docs.example.com/a/page#part"),
        ("/a b(c)", "https://docs.example.com/a%20b%28c%29"),
        ("/ä", "https://docs.example.com/%C3%A4"),
    ],
)
def test_links_are_made_absolute(href: str, target: str) -> None:
    assert markdown(f"<a href='{href}'>text</a>") == f"[text]({target})"


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    "href",
    [
        *(
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
            "file:///x",
        ),
        *(
            "java&#x0A;script:alert(1)",
            " javascript:x",
            "\x01javascript:x",
            "http://[::1",
            "blob:x",
        ),
        *("", "x" * 3000),
    ],
)
def test_links_that_lead_elsewhere_are_left_out(href: str) -> None:
    assert markdown(f'<a href="{href}">text</a>') == "text"


def test_address_of_an_image_is_not_shown() -> None:
    assert markdown("<img src='https://evil.example/?q=1' alt='a [x](y)'>") == "a [x](y)"


def test_base_of_a_page_cannot_make_links_into_something_else() -> None:
    assert markdown("<base href='javascript:x//'><a href='y'>text</a>") == "text"
    assert absolute_link("", "y") == ""


MEGA = 1_000_000


@pytest.mark.requirement("NET-4")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("<b>" * 100_000 + "x", id="nested"),
        pytest.param("<div>" * 50_000 + "x" + "</div>" * 50_000, id="nested blocks"),
        pytest.param("<table><tr><td>" * 10_000 + "x", id="nested tables"),
        pytest.param("x<p " + "a=b " * 2 * MEGA + ">", id="attributes"),
        pytest.param("<p a='" + "x" * 10 * MEGA + "'>x", id="one long attribute"),
        pytest.param("x" + "<!-- " * MEGA, id="comments that never end"),
        pytest.param("x" + "<a" * MEGA, id="tags that never end"),
        pytest.param("x" + "<a b='" * 200_000, id="quotes that never end"),
        pytest.param("x" + "<script>" * MEGA, id="scripts that never end"),
        pytest.param("x" + "<!" * MEGA + "</" * MEGA, id="declarations that never end"),
        pytest.param("x" + " " * 5 * MEGA + "y", id="blanks"),
        pytest.param("x" + "<span> </span>" * 30_000 + "y", id="blanks in elements"),
        pytest.param("<pre>x" + " " * 2 * MEGA + "y</pre>", id="blanks in code"),
        pytest.param("<ul><li>" * 4 + "<pre>x" + "\n" * 5 * MEGA, id="lines in lists"),
        pytest.param("<ol>" + "<li>x" * 12_000, id="items"),
        pytest.param("<table><thead>" + "<tr><td>x" * 10_000, id="rows of a head"),
        pytest.param("<table>" + "<tbody><tr><td>x" * 10_000, id="bodies of a table"),
        pytest.param("<i><div>x" + "<b>" * 250 + "</i>" * 20_000, id="end tags that cross"),
        pytest.param("x&#" + "9" * 5 * MEGA + ";", id="a long number"),
        pytest.param("x" + "&" * 2 * MEGA, id="ampersands"),
        pytest.param("<pre>x" + "`" * 2 * MEGA, id="backticks"),
        pytest.param("x<p style='" + "/*" * MEGA + "'>y", id="a long style"),
        pytest.param("x" + "<" * 30_000, id="signs"),
    ],
)
@pytest.mark.slow
@pytest.mark.sample(8)
def test_hostile_page_ends_in_time_and_within_bounds(page: str) -> None:
    # Quadratic time would be minutes here, and recursion an error: no clock is needed to see it.
    found = render(page, form="markdown", url="https://docs.example.com/" + "a" * 1000)
    assert "x" in found.text
    assert len(found.text) <= 2 * outline_module.MAX_CHARACTERS


@pytest.mark.requirement("NET-4")
def test_page_with_too_much_in_it_is_cut_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "<p>one</p><p>two</p><p>three</p>"
    assert render(page, form="text", url=URL) == Rendered("one\n\ntwo\n\nthree", is_cut=False)
    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "MAX_TOKENS", 5)
        assert render(page, form="text", url=URL) == Rendered("one", is_cut=True)
    with monkeypatch.context() as patch:
        patch.setattr(outline_module, "MAX_EVENTS", 5)
        assert render(page, form="text", url=URL) == Rendered("one\n\ntwo", is_cut=True)
    with monkeypatch.context() as patch:
        patch.setattr(outline_module, "MAX_CHARACTERS", 8)
        assert render(page, form="text", url=URL) == Rendered("one\n\ntw", is_cut=True)


_PIECES = st.sampled_from(
    [
        *("<p>", "</p>", "<b>", "</b>", "<div hidden>", "</div>", "<ul>", "<ol start=5>", "<li>"),
        *("</ul>", "<table>", "<tr>", "<td>", "</table>", "<pre>", "</pre>", "<a href=x>", "</a>"),
        *(
            "<blockquote>",
            "<dd>",
            "<br>",
            "<hr/>",
            "<img alt='x'>",
            "<script>",
            "</script>",
            "<!--",
        ),
        *(
            "-->",
            "<",
            ">",
            "&lt;",
            "&#0;",
            "&#xD800;",
            "&",
            "'",
            '"',
            "`",
            "|",
            " ",
            "\n",
            "x",
            "<x ",
        ),
        *("<title>", "</title>", "<textarea>", "<base href=//y>", "<p style='", "=", "/"),
    ]
)


@settings(max_examples=150)
@given(st.lists(_PIECES, max_size=40).map("".join) | st.text(max_size=80))
def test_whatever_comes_is_rendered_and_every_element_is_closed(page: str) -> None:
    for is_xml in (False, True):
        found = outline(page, link=lambda _base, href: href, is_xml=is_xml)
        depth = 0
        for event in found.events:
            depth += {"open": 1, "close": -1}.get(event.kind, 0)
            assert depth >= 0
        assert depth == 0
        assert not found.is_cut
    for form in ("markdown", "text", "raw"):
        render(page, form=form, url=URL)
