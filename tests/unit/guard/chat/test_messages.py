"""Chat messages: every field of the tables is read, and no string outside them is missed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellwall.guard.channel_formats import Piece, clean, read
from cellwall.guard.chat import discord, slack, telegram

pytestmark = pytest.mark.requirement("GRD-7")

CHATS = {"telegram": telegram, "discord": discord, "slack": slack}
FIELDS = [(name, *field) for name, chat in CHATS.items() for field in chat.FIELDS.items()]
PLACE = "https://e.example/?q={conversation}"


def rules(channel: str, message: Any) -> list[str]:
    source = message if isinstance(message, str) else json.dumps(message)
    return [hit.rule.removeprefix("channel.") for hit in read(channel, source).hits]


def nested(path: str, value: Any) -> Any:
    for key in reversed(path.split(".")):
        value = {key: [value] if key in ("embeds", "fields", "entities") else value}
    return value


@pytest.mark.parametrize(("channel", "path", "role"), FIELDS)
def test_every_field_of_the_tables_is_read(channel: str, path: str, role: str) -> None:
    source = json.dumps(nested(path, "some words"))
    (piece,) = read(channel, source).pieces
    is_hidden = role not in ("shown", "label")
    assert (piece.text, piece.is_hidden) == ("some words", is_hidden)
    assert source[slice(*piece.span(0, len(piece.text)))] == "some words"
    if role == "link":
        assert rules(channel, nested(path, PLACE)) == ["link-template"]
    if role == "image":
        assert rules(channel, nested(path, PLACE)) == ["beacon-template"]


@pytest.mark.parametrize("channel", CHATS)
def test_messages_within_messages_are_read_alike(channel: str) -> None:
    field = "content" if channel == "discord" else "text"
    for container in CHATS[channel].CONTAINERS:
        source = json.dumps({container: [{field: "words"}]})
        assert read(channel, source).pieces == (Piece("words", f"{container}[0].{field}", False),)


@pytest.mark.parametrize("channel", CHATS)
def test_strings_where_no_table_looks_are_hidden_text(channel: str) -> None:
    source = json.dumps({"odd key": {"text": [1, None, True, {"a": "inner"}, "last"]}, "type": "x"})
    assert read(channel, source).pieces == (
        Piece("odd key\na", "names of keys", True),
        Piece("inner", "odd key.text[3].a", True),
        Piece("last", "odd key.text[4]", True),
        Piece("x", "ids and types", True),
    )


@pytest.mark.parametrize("channel", CHATS)
@pytest.mark.parametrize(
    "source",
    [
        "",
        "hello",
        '"a string"',
        "12",
        "null",
        '{"text": "a"',
        "{'text': 'a'}",
        "[1, 2",
        "NaN",
        "\ud800{",
    ],
)
def test_what_is_no_message_is_text(channel: str, source: str) -> None:
    found = read(channel, source)
    assert found.pieces == ((Piece(source, "text", False),) if source else ())
    assert found.is_complete


@pytest.mark.parametrize("channel", CHATS)
def test_escapes_hide_nothing_in_what_is_nearly_a_message(channel: str) -> None:
    assert Piece("ignore", "string", True) in read(channel, '{"text": "ign\\u006fre"').pieces
    deep = "[" * 100_000 + '"ign\\u006fre"' + "]" * 100_000
    assert Piece("ignore", "string", True) in read(channel, deep).pieces


@pytest.mark.parametrize("channel", CHATS)
def test_a_key_that_is_there_twice_is_told_and_both_are_read(channel: str) -> None:
    found = read(channel, '{"title": "a", "title": "b"}')
    assert [piece.text for piece in found.pieces] == ["a\nb"]
    assert [hit.rule for hit in found.hits] == ["channel.json-twice"]


@pytest.mark.parametrize("channel", CHATS)
@pytest.mark.parametrize(
    "source",
    [
        '{"a":' * 900 + '"deep"' + "}" * 900,
        json.dumps(["deep"] * 20_000),
        json.dumps({"text": 10**300, "content": -1, "x": "deep"}),
        '{"x": ' + "1" * 50_000 + ', "text": "deep"}',
        '\ufeff{"content": "deep", "text": "deep\x00\x01"}',
        '{"text": "\\ud83d deep"}',
        json.dumps({"text": "deep " * 900_000}),
        '"' * 100_001 + "deep",
        "{" + "\\" * 100_000 + "deep",
    ],
)
def test_hostile_messages_are_read_to_their_end(channel: str, source: str) -> None:
    found = read(channel, source)
    assert found.is_complete
    assert any("deep" in piece.text for piece in found.pieces)


# Telegram


def test_entities_count_in_utf_16() -> None:
    text = "\U0001f600 see bank.com and this"
    entities = [
        {"type": "text_link", "offset": 7, "length": 8, "url": "https://e.example/"},
        {"type": "spoiler", "offset": 20, "length": 4},
        {"type": "pre", "offset": 0, "length": 2, "language": "words"},
    ]
    found = read("telegram", json.dumps({"text": text, "entities": entities}))
    assert [hit.rule for hit in found.hits] == ["channel.link-disguised"]
    assert Piece("this", "text spoiler", True) in found.pieces
    assert Piece("words", "entities[2].language", True) in found.pieces


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        (
            {"type": "text_link", "offset": 0, "length": 1, "url": "https://e.example"},
            ["link-unseen"],
        ),
        (
            {"type": "text_link", "offset": 0, "length": 1, "url": PLACE},
            ["link-unseen", "link-template"],
        ),
        ({"type": "text_link", "offset": 2, "length": 4, "url": "https://e.example"}, []),
        ({"type": "text_link", "offset": -1, "length": 4, "url": "https://e.example"}, []),
        ({"type": "text_link", "offset": 10**9, "length": 1, "url": 5}, []),
        ({"type": "text_link", "offset": "0", "length": None}, []),
        ({"type": ["x"], "offset": True}, []),
        ([["type", "text_link"]], []),
        ("text_link", []),
    ],
)
def test_entities_of_any_shape(entity: Any, expected: list[str]) -> None:
    assert rules("telegram", {"caption": "\u2060 text", "caption_entities": [entity]}) == expected


# Discord and Slack


@pytest.mark.parametrize(
    ("channel", "message", "expected"),
    [
        ("discord", {"content": "[bank.com](https://e.example)"}, ["link-disguised"]),
        ("discord", {"content": f"see {PLACE}"}, ["link-template"]),
        (
            "discord",
            {"embeds": [{"description": f"![a]({PLACE})"}]},
            ["beacon-template", "link-template"],
        ),
        ("slack", {"text": "<https://e.example|bank.com>"}, ["link-disguised"]),
        ("slack", {"text": "<https://e.example|\u200b>"}, ["link-unseen"]),
        ("slack", {"text": f"<{PLACE}|here>"}, ["link-template"]),
        ("slack", {"blocks": [{"type": "image", "image_url": PLACE}]}, ["beacon-template"]),
        ("slack", {"text": "<https://bank.com/x|bank.com> <!here> <@U1|me>"}, []),
    ],
)
def test_tricks_are_told(channel: str, message: Any, expected: list[str]) -> None:
    assert rules(channel, message) == expected


def test_a_spoiler_is_hidden() -> None:
    assert read("discord", "a ||b c||").pieces == (
        Piece("a ||b c||", "text", False),
        Piece("b c", "text spoiler", True),
    )


def test_rich_text_is_read_to_its_leaves() -> None:
    section = {"type": "rich_text_section", "elements": [{"type": "text", "text": "one"}]}
    quote = {"type": "rich_text_list", "elements": [section]}
    found = read("slack", json.dumps({"blocks": [{"type": "rich_text", "elements": [quote]}]}))
    assert found.pieces == (
        Piece("rich_text\nrich_text_list\nrich_text_section\ntext", "ids and types", True),
        Piece("one", "blocks[0].elements[0].elements[0].elements[0].text", False),
    )


def test_slack_shows_words_and_keeps_targets_apart() -> None:
    assert read("slack", "see <https://a.example/x|this> &lt;now&gt;").pieces == (
        Piece("https://a.example/x", "text address", True),
        Piece("see this <now>", "text", False),
    )


@pytest.mark.parametrize(
    ("channel", "text", "sent"),
    [
        ("telegram", "a_b*c [x] 1.5!", "a\\_b\\*c \\[x\\] 1\\.5\\!"),
        ("telegram", "back\\slash", "back\\\\slash"),
        ("telegram", "[label](https://a.example/b)", "label \\(https://a\\.example/b\\)"),
        ("telegram", PLACE, "hxxps://e\\[\\.\\]example/?q\\=\\{conversation\\}"),
        ("telegram", "tg://user?id=1", "tg ://user?id\\=1"),
        ("discord", "@everyone and @here", "@ everyone and @ here"),
        ("discord", "@\u200beveryone \uff20here", "@ everyone @ here"),
        ("discord", "<@1> <@!2> <@&3>", "\\<@ 1\\> \\<@ !2\\> \\<@ &3\\>"),
        ("discord", "*b* _i_ `c` ||s||", "\\*b\\* \\_i\\_ \\`c\\` \\|\\|s\\|\\|"),
        ("discord", "# h\n- i\n1. j\n> q", "\\# h\n\\- i\n\\1. j\n\\> q"),
        ("discord", "[label](https://a.example/b)", "label (<https://a.example/b>)"),
        ("discord", "see https://a.example/@here.", "see <https://a.example/%40here>."),
        ("discord", PLACE, "hxxps://e\\[.\\]example/?q={conversation}"),
        ("discord", "[x](javascript:y)", "x (javascript:y)"),
        (
            "slack",
            "<!channel> @here <!subteam^S1|x>",
            "&lt;! channel&gt; @ here &lt;! subteam^S1|x&gt;",
        ),
        ("slack", "a & b < c", "a &amp; b &lt; c"),
        ("slack", "<https://e.example|bank.com>", "bank.com (https://e.example)"),
        ("slack", f"<{PLACE}|x>", "x (hxxps://e[.]example/?q={conversation})"),
        ("plain", "a\u200bb\r\nc\x1b[2Jd\U000e0041", "ab\nc[2Jd"),
    ],
)
def test_what_is_sent_calls_nobody_and_loads_nothing(channel: str, text: str, sent: str) -> None:
    assert clean(channel, text) == sent
