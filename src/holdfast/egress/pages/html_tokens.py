"""The tags and texts of an HTML page, whatever it is made of. Pure.

Each character is looked at a bounded number of times, and the number of tokens is bounded. That
is why the standard library's parser is not used on what a stranger wrote: on many Pythons in use
an unclosed tag or comment costs it quadratic time (CVE-2025-6069), and long numbers end it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

MOST_TOKENS = 300_000
"""Tags, attributes and texts of a page that are looked at."""

_NAME = re.compile(r"[A-Za-z][^\t\n\r\f />]*")
_BETWEEN = re.compile(r"[\t\n\r\f /]*")
_ATTRIBUTE = re.compile(r"[^\t\n\r\f />][^\t\n\r\f />=]*")
_EQUALS = re.compile(r"[\t\n\r\f ]*=[\t\n\r\f ]*")
_BARE = re.compile(r"[^\t\n\r\f >]*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# Python refuses to read a number of so many digits, and no character has one.
_NO_CHARACTER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")
_NONE: Mapping[str, str] = MappingProxyType({})

# Between their tags there is no markup (HTML 13.2.5); where True, it is text.
_RAW = {
    "script": False,
    "style": False,
    "iframe": False,
    "noembed": False,
    "noframes": False,
    "noscript": False,
    "title": True,
    "textarea": True,
    "xmp": True,
}
_RAW_END = {name: re.compile(rf"</{name}(?=[\t\n\r\f />])", re.IGNORECASE) for name in _RAW}


class Token(NamedTuple):
    """`cut` is the last one of a page that has too many."""

    kind: Literal["start", "end", "text", "cut"]
    word: str = ""
    """The tag's name in small letters, or the text as it is written."""
    attributes: Mapping[str, str] = _NONE
    is_closed: bool = False
    """Written `<x/>`, which means something in XML alone."""


def tokens(page: str, *, is_xml: bool = False) -> Iterator[Token]:
    """As HTML's own tokeniser where it matters; what never ends is left out, as browsers do."""
    at, end = 0, len(page)
    left = MOST_TOKENS
    while at < end:
        left -= 1
        if left <= 0:
            yield Token("cut")
            return
        if page[at] != "<":
            begin, at = at, _or_end(page.find("<", at), end)
            yield Token("text", page[begin:at])
        elif (name := _NAME.match(page, at + 1)) is not None:
            found = _start_tag(page, name, left)
            if found is None:
                return
            token, at, left = found
            yield token
            if token.word in _RAW and not (is_xml and token.is_closed):
                begin = at
                close = _RAW_END[token.word].search(page, at)
                at = end if close is None else close.start()
                if _RAW[token.word]:
                    yield Token("text", page[begin:at])
        elif page.startswith("</", at) and (name := _NAME.match(page, at + 2)) is not None:
            yield Token("end", name[0].lower())
            at = _or_end(page.find(">", name.end()), end) + 1
        elif page.startswith("<!--", at):
            close_at = page.find("-->", at + 2)  # `<!-->` is a whole comment
            at = end if close_at < 0 else close_at + 3
        elif page.startswith(("<!", "<?", "</"), at):
            at = _or_end(page.find(">", at), end) + 1
        else:
            yield Token("text", "<")
            at += 1


def characters(text: str) -> str:
    """Text with its references resolved, and without what no text has."""
    if "&" in text:
        text = html.unescape(_NO_CHARACTER.sub("\ufffd", text))
    return _CONTROLS.sub("", text)


def _or_end(found: int, end: int) -> int:
    return end if found < 0 else found


def _start_tag(page: str, name: re.Match[str], left: int) -> tuple[Token, int, int] | None:
    """The tag, where it ends, and how many tokens are left; None if it does not end."""
    attributes: dict[str, str] = {}
    at, end = name.end(), len(page)
    while True:
        between = _BETWEEN.match(page, at)
        at = at if between is None else between.end()
        if at >= end:
            return None
        if page[at] == ">":
            is_closed = page[at - 1] == "/"
            return Token("start", name[0].lower(), attributes, is_closed), at + 1, left
        left -= 1
        if left <= 0:
            return Token("cut"), end, left
        key = _ATTRIBUTE.match(page, at)
        found = _value(page, end if key is None else key.end())
        if key is None or found is None:
            return None
        value, at = found
        attributes.setdefault(key[0].lower(), value)


def _value(page: str, at: int) -> tuple[str, int] | None:
    """What an attribute is set to, and where that ends; None if its quote is never closed."""
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
