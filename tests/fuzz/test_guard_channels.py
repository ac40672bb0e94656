"""Fuzzes the channels: any text is read and cleaned, and what was closed stays closed.

What is cleaned is held against readers that share no code with ours: markdown-it with HTML and
tables on, the standard HTML and mail parsers, and the chat services' own rules for mentions.
"""

from __future__ import annotations

import email
import email.policy
import html
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cellwall.guard.channel_formats import CHANNELS, clean, clean_header, read

FUZZ = settings(max_examples=60, deadline=None, derandomize=True)
MORE = settings(max_examples=300, deadline=None, derandomize=True)

PIECES = st.sampled_from(
    [
        *"\n\n\n`~!|[]()<>&\\@#:\"' \t-=*_{}$",
        *(
            "``",
            "```",
            "~~~",
            "\n```\n",
            "\n    ",
            "\n> ",
            "\n- ",
            "\n1. ",
            "\r\n",
            "\r",
            "<!--",
            "-->",
        ),
        *(
            "![",
            "![a](b)",
            "](",
            "]: ",
            "[x]: ",
            "[x]",
            "[a](b`c)",
            "| a | b |\n|---|---|\n",
            "---\n",
        ),
        *(
            "<img src=x>",
            "<script>",
            "</script>",
            "<b",
            "<a href='x'>",
            "<div>\n",
            "<?php ",
            "<![CDATA[",
        ),
        *(
            "javascript:x",
            "data:text/html,x",
            "&colon;",
            "&#106;",
            "&Tab;",
            "vbscript\\:y",
            "java",
            "script:",
        ),
        *(
            "https://e.example/?q={data}",
            "https://a.example/b",
            "<https://a.example>",
            "www.e.example",
        ),
        *(
            "@everyone",
            "@here",
            "<@&1>",
            "<@!12>",
            "@channel",
            "<!here>",
            "<!subteam^S1|x>",
            "everyone",
        ),
        *(
            "\u200b",
            "\u200d",
            "\u202e",
            "\U000e0041",
            "\ufe0f",
            "\ud83d",
            "é",
            "٤",
            "\x00",
            "\x1b[2J",
            "\uff20",
        ),
        *("Bcc: a@b\n", "From x\n", "\n.\n", "--b\n", "<http://x|y>", "tg://user?id=1", "word"),
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=60)
CHANNEL = st.sampled_from(sorted(CHANNELS))

RENDERERS = [
    MarkdownIt("commonmark", {"html": True}),
    MarkdownIt("js-default", {"html": True}).enable(["table", "strikethrough"]),
]
# The renderer's own check of addresses is off: ours has to do.
for renderer in RENDERERS:
    renderer.validateLink = lambda _: True  # type: ignore[method-assign]


def tokens_of(renderer: MarkdownIt, text: str) -> list:
    return [inner for token in renderer.parse(text) for inner in (token, *(token.children or ()))]


def opens_something(text: str) -> list[str]:
    """What a renderer would load, run or pass on as HTML."""
    found = []
    for renderer in RENDERERS:
        for token in tokens_of(renderer, text):
            if token.type in ("image", "html_inline", "html_block"):
                found.append(f"{token.type} {token.content}")
            if token.type == "link_open":
                target = re.sub(r"[\x00-\x20]", "", html.unescape(str(token.attrs["href"]))).lower()
                if target.startswith(("javascript:", "data:", "vbscript:", "file:")):
                    found.append(target)
    return found


def test_the_second_reader_sees_what_is_to_be_closed() -> None:
    assert (
        opens_something("![a](b) <b> [x](javascript:y)")
        == [
            "image a",
            "html_inline <b>",
            "javascript:y",
        ]
        * 2
    )


@MORE
@given(TEXTS)
@pytest.mark.requirement("GRD-2", "GRD-7")
def test_cleaned_markdown_loads_and_runs_nothing(text: str) -> None:
    once = clean("markdown", text)
    assert opens_something(once) == []
    assert opens_something(clean("markdown", once)) == []
    assert opens_something("text before\n" + once) == []


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append(data)

    def handle_decl(self, decl: str) -> None:
        self.found.append(decl)

    def handle_pi(self, data: str) -> None:
        self.found.append(data)

    def handle_data(self, data: str) -> None:
        self.text += data


def tags(text: str) -> tuple[list[str], str]:
    parser = Tags()
    parser.feed(text)
    parser.close()
    return parser.found, parser.text


@FUZZ
@given(TEXTS)
@pytest.mark.requirement("GRD-7")
def test_cleaned_html_is_text_and_says_the_same(text: str) -> None:
    assert tags("<p>x")[0] == ["p"]  # the second reader reads
    assert tags(clean("html", text)) == ([], clean("plain", text))


@FUZZ
@given(TEXTS)
@pytest.mark.requirement("GRD-7")
def test_nobody_is_called_by_what_was_cleaned(text: str) -> None:
    for channel, calls in (
        ("discord", r"@everyone|@here|<@[!&]?\d+>"),
        ("slack", r"[<>]|@(?:channel|here|everyone)|&(?!amp;|lt;|gt;)"),
    ):
        once = clean(channel, text)
        for sent in (once, clean(channel, once)):
            assert re.search(calls, re.sub(r"<https?://[^\s<>]*>", "", sent)) is None
        assert "\u200b" not in once


@FUZZ
@given(TEXTS)
@pytest.mark.requirement("GRD-7")
def test_every_special_character_for_telegram_is_escaped(text: str) -> None:
    once = clean("telegram", text)
    for sent in (once, clean("telegram", once)):
        assert re.fullmatch(
            r"(?s)(?:\\[_*\[\]()~`>#+\-=|{}.!\\]|[^_*\[\]()~`>#+\-=|{}.!\\])*", sent
        )


@FUZZ
@given(TEXTS)
@pytest.mark.requirement("GRD-7")
def test_no_header_and_no_end_of_a_mail_can_be_smuggled_in(text: str) -> None:
    value = clean_header(text)
    message = email.message_from_string(f"Subject: {value}\n\nbody", policy=email.policy.compat32)
    assert (message.keys(), message.get_payload()) == (["Subject"], "body")
    for body in (clean("email", text), clean("email", clean("email", text))):
        assert re.search(r"(?m)^(?:[!-9;-~]+:|\.|From |--)|\r", body) is None


@FUZZ
@given(CHANNEL, TEXTS)
def test_any_text_is_read_and_every_piece_has_a_place_in_it(channel: str, text: str) -> None:
    found = read(channel, text)
    for piece in found.pieces:
        start, end = piece.span(0, len(piece.text))
        assert 0 <= start <= end <= len(text)
    for hit in found.hits:
        assert 0 <= hit.start <= hit.end <= len(text)


@FUZZ
@given(CHANNEL, TEXTS)
def test_what_is_cleaned_has_nothing_that_is_not_seen(channel: str, text: str) -> None:
    assert (
        re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\U000e0041\ud800-\udfff]",
            clean(channel, text),
        )
        is None
    )
    plain = clean("plain", text)
    assert clean("plain", plain) == plain


KEYS = st.sampled_from(
    [
        "text",
        "content",
        "message",
        "blocks",
        "elements",
        "type",
        "entities",
        "offset",
        "length",
        "url",
        "embeds",
        "title",
        "fields",
        "value",
        "attachments",
        "caption",
        "reply_markup",
        "inline_keyboard",
        "other",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXTS
    | st.sampled_from(["text_link", "spoiler"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    return [text for inner in value for text in strings(inner)] if isinstance(value, list) else []


@FUZZ
@given(st.sampled_from(["telegram", "discord", "slack"]), st.lists(JSON, max_size=3), st.booleans())
@pytest.mark.requirement("GRD-7", "RED-2")
def test_no_string_of_a_message_is_missed_whatever_its_shape(
    channel: str, value: list, ascii_only: bool
) -> None:
    source = json.dumps(value, ensure_ascii=ascii_only)
    found = read(channel, source)
    said = "\n".join(piece.text for piece in found.pieces)
    for text in strings(value):
        # Slack's own markup is resolved: of a link, the words and the target are two pieces.
        if channel != "slack" or re.search(r"[<&]", text) is None:
            assert text in said
    for piece in found.pieces:
        start, end = piece.span(0, len(piece.text))
        assert 0 <= start <= end <= len(source)


HTML = st.lists(
    st.sampled_from(
        [
            "<p>",
            "</p>",
            "<b>",
            "</b>",
            "<div hidden>",
            "</div>",
            "<a href=x>",
            "</a>",
            "<br>",
            "<td>",
            "<li>",
            "<!-- c -->",
        ]
    )
    | st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    max_size=30,
).map("".join)


@FUZZ
@given(HTML)
@pytest.mark.requirement("GRD-7")
def test_html_has_the_same_text_for_the_standard_parser(page: str) -> None:
    said = "".join(
        piece.text for piece in read("html", page).pieces if piece.where.startswith("text")
    )
    assert sorted(re.sub(r"\s", "", said)) == sorted(tags(page)[1])


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "html", "calendar"]),
        st.sampled_from(["7bit", "base64", "quoted-printable"]),
        st.from_regex(r"[a-z]{4,9}( [a-zé]{4,9}){0,3}", fullmatch=True),
    ),
    min_size=1,
    max_size=4,
)


@FUZZ
@given(PARTS, st.booleans())
@pytest.mark.requirement("GRD-7")
def test_all_parts_that_the_standard_library_writes_are_read(
    parts: list, is_forwarded: bool
) -> None:
    mail = email.message.EmailMessage()
    mail["Subject"] = "Grüße an alle"
    mail.set_content("body")
    for kind, encoding, text in parts:
        cte = encoding if text.isascii() or encoding != "7bit" else "base64"
        mail.add_attachment(text, subtype=kind, cte=cte, filename="ä.txt")
    if is_forwarded:
        outer = email.message.EmailMessage()
        outer.set_content("see below")
        outer.add_attachment(mail)
        mail = outer
    said = "\n".join(piece.text for piece in read("email", mail.as_string()).pieces)
    for text in ("Grüße an alle", "ä.txt", *(text for _, _, text in parts)):
        assert text in said


@FUZZ
@given(
    st.lists(
        st.sampled_from(
            [
                "--b",
                "--b--",
                "Content-Type: multipart/mixed; boundary=b",
                'Content-Type: multipart/alternative; boundary="b"',
                "Content-Type: text/html; charset=utf-7",
                "Content-Type: message/rfc822",
                "Content-Transfer-Encoding: base64",
                "Content-Transfer-Encoding: quoted-printable",
                "Subject: =?x?b?!!?= =?utf-8?q?=zz?=",
                "",
                "",
                " folded",
                "aGk=",
                "=3D=\xff",
                "Content-Disposition: x; filename*=a'b'%ff; filename*9999999=z",
                "\ud800",
            ]
        ),
        max_size=20,
    ).map("\n".join)
)
def test_broken_mails_are_read_too(source: str) -> None:
    assert read("email", source).is_complete
