"""A tokenizer for HTML: tags, texts and comments with their offsets. Pure.

Time is linear and the number of tokens is bounded. The standard library's parser is not used on
untrusted pages: on many Python versions an unclosed tag or comment costs quadratic time
(CVE-2025-6069), and long numbers raise. Nothing is dropped: a model that gets the source reads also
what browsers ignore.
"""

from __future__ import annotations

import html
import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

MAX_TOKENS = 400_000
"""Tags, attributes and texts of a page that are parsed."""

_NAME = re.compile(r"[A-Za-z][^\t\n\r\f />]*")
_BETWEEN = re.compile(r"[\t\n\r\f /]*")
_ATTRIBUTE = re.compile(r"[^\t\n\r\f />][^\t\n\r\f />=]*")
_EQUALS = re.compile(r"[\t\n\r\f ]*=[\t\n\r\f ]*")
_BARE = re.compile(r"[^\t\n\r\f >]*")
# `int` refuses numbers of so many digits, and no character has one.
_NO_CHARACTER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")
_NONE: Mapping[str, str] = MappingProxyType({})
_MAX_AGAIN = 10_000

RAW = frozenset(("script", "style", "iframe", "title", "textarea", "xmp", "noembed", "noframes"))
"""Elements without markup between their tags (HTML 13.2.5)."""
RAW_WITH_SCRIPTS = RAW | {"noscript"}
"""The same in a browser that runs scripts."""
_RAW_END = {
    name: re.compile(rf"</{name}(?=[\t\n\r\f />])", re.IGNORECASE) for name in RAW_WITH_SCRIPTS
}


class Token(NamedTuple):
    """`raw` is the content of an element without markup; `rest` begins with an unclosed tag;
    `cut` is the rest of a page with too many tokens."""

    kind: Literal["start", "end", "text", "comment", "raw", "rest", "cut"]
    word: str
    """The tag name in lower case; for `raw`, that of the element."""
    start: int
    end: int
    attributes: Mapping[str, str] = _NONE
    """As written, with character references; the first one of each name."""
    again: str = ""
    """The values of repeated attributes, which browsers ignore."""
    is_closed: bool = False
    """Written `<x/>`, which has a meaning in XML only."""


def tokens(page: str, *, raw: Container[str] = RAW, is_xml: bool = False) -> Iterator[Token]:
    """Tokenize as browsers do where it matters. `raw`: elements without markup inside."""
    at, end = 0, len(page)
    left = MAX_TOKENS
    while at < end:
        left -= 1
        if left <= 0:
            yield Token("cut", "", at, end)
            return
        begin = at
        if page[at] != "<":
            at = _or_end(page.find("<", at), end)
            yield Token("text", "", begin, at)
        elif (name := _NAME.match(page, at + 1)) is not None:
            tag, left = _start_tag(page, name, left)
            at = tag.end
            yield tag
            if tag.word in raw and not (is_xml and tag.is_closed):
                close = _RAW_END[tag.word].search(page, at)
                begin, at = at, end if close is None else close.start()
                yield Token("raw", tag.word, begin, at)
        elif page.startswith("</", at) and (name := _NAME.match(page, at + 2)) is not None:
            at = _or_end(page.find(">", name.end()), end - 1) + 1
            yield Token("end", name[0].lower(), begin, at)
        elif page.startswith("<!--", at):
            close_at = page.find("-->", at + 2)  # `<!-->` is a whole comment
            at = end if close_at < 0 else close_at + 3
            yield Token("comment", "", min(begin + 4, at), at if close_at < 0 else at - 3)
        elif page.startswith(("<!", "<?", "</"), at):
            at = _or_end(page.find(">", at), end - 1) + 1
            yield Token("comment", "", begin + 2, at)
        else:
            at += 1
            yield Token("text", "", begin, at)


def characters(text: str) -> str:
    """Text with its character references resolved."""
    if "&" not in text:
        return text
    return html.unescape(_NO_CHARACTER.sub("\ufffd", text))


def _or_end(found: int, end: int) -> int:
    return end if found < 0 else found


def _start_tag(page: str, name: re.Match[str], left: int) -> tuple[Token, int]:
    """The tag and the tokens left; for an unclosed tag, the rest of the page."""
    begin, at, end = name.start() - 1, name.end(), len(page)
    attributes: dict[str, str] = {}
    again: list[str] = []
    room = _MAX_AGAIN
    while True:
        between = _BETWEEN.match(page, at)
        at = at if between is None else between.end()
        if page[at : at + 1] == ">":
            said, is_closed = " ".join(again), page[at - 1] == "/"
            word = name[0].lower()
            return Token("start", word, begin, at + 1, attributes, said, is_closed), left
        left -= 1
        if left <= 0:
            return Token("cut", "", begin, end), left
        key = _ATTRIBUTE.match(page, at)
        found = None if key is None else _value(page, key.end())
        if key is None or found is None:
            return Token("rest", "", begin, end), left
        value, at = found
        word = key[0].lower()
        if word not in attributes:
            attributes[word] = value
        elif room > 0 and value:
            again.append(value[:room])
            room -= len(value) + 1


def _value(page: str, at: int) -> tuple[str, int] | None:
    """The value of an attribute and its end; None if its quote is never closed."""
    equals = _EQUALS.match(page, at)
    if equals is None:
        return "", at
    at = equals.end()
    quote = page[at : at + 1]
    if quote in ("'", '"') and quote:
        close = page.find(quote, at + 1)
        return None if close < 0 else (page[at + 1 : close], close + 1)
    bare = _BARE.match(page, at)
    return ("", at) if bare is None else (bare[0], bare.end())
