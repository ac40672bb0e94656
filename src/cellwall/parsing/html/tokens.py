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

# The elements and attributes of HTML by their meaning for a reader. Pure data.


def names(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
"""Elements without content and without an end tag."""
FORMATTING = names(
    "a abbr b bdi bdo big cite code del dfn em font i ins kbd label mark q s samp small span "
    "strike strong sub sup tt u var"
)
RECONSTRUCTED = names("a b big code em font i nobr s small strike strong tt u")
"""Browsers open these again behind a block that ended before their end tag (HTML 13.2.4.3)."""
TABLE = names("table thead tbody tfoot tr td th caption")
HEADINGS = names("h1 h2 h3 h4 h5 h6")
SECTIONS = names(
    "address article aside center details dialog dir div fieldset figcaption figure footer form "
    "header hgroup legend main menu nav option optgroup search section select summary textarea"
)
BLOCK = (
    SECTIONS
    | HEADINGS
    | TABLE
    | names(
        "audio blockquote body br canvas col colgroup dd desc dl dt embed foreignobject frame "
        "frameset head hr html iframe input li link listing marquee meta metadata noembed noframes "
        "noscript object ol p param plaintext pre rp rt script source style svg template text "
        "title track ul video xmp"
    )
)
"""Elements drawn on lines of their own. All others, unknown ones included, are drawn within the
line: `ig<x-a>nore</x-a>` is one word for a human reader."""

# Visibility

UNSEEN_ELEMENTS = {
    **dict.fromkeys(names("script style iframe noembed noframes noscript template"), "not shown"),
    **dict.fromkeys(
        names("object audio video canvas datalist desc metadata progress meter"), "stand-in"
    ),
}
"""Their content is for programs, or for browsers that lack a feature."""
MAY_HIDE = frozenset({*UNSEEN_ELEMENTS, "details", "dialog", "summary"})
"""Elements whose name alone can decide about visibility."""

# Implied end tags


class ImpliedEnd(NamedTuple):
    """Elements that a start tag ends without an end tag (HTML 13.1.2.4), and the scope of that."""

    ends: frozenset[str]
    within: frozenset[str]
    """Elements outside of which nothing is ended."""


_ROWS = ImpliedEnd(TABLE - {"table"}, names("table"))
_CELLS = ImpliedEnd(names("td th"), names("tr table"))
_TERMS = ImpliedEnd(names("dt dd"), names("dl table"))
_OPTIONS = ImpliedEnd(names("option"), names("select"))
IMPLIED_ENDS = {
    "li": ImpliedEnd(names("li"), names("ul ol menu dir table")),
    "dt": _TERMS,
    "dd": _TERMS,
    "td": _CELLS,
    "th": _CELLS,
    "tr": ImpliedEnd(names("tr td th caption"), names("table")),
    "thead": _ROWS,
    "tbody": _ROWS,
    "tfoot": _ROWS,
    "option": _OPTIONS,
    "optgroup": _OPTIONS,
    "a": ImpliedEnd(names("a"), TABLE),
}
PARAGRAPH_END = ImpliedEnd(names("p"), names("button") | TABLE)
ENDS_PARAGRAPH = (SECTIONS | HEADINGS | names("p ul ol dl li pre blockquote table hr")) - names(
    "option optgroup select textarea"
)
ENDS_ALONE = names("p br")
"""An end tag without a start tag is no element, except for these two."""

# Attributes

SHOWN_ATTRIBUTES = names("placeholder value label summary")
UNSEEN_ATTRIBUTES = names(
    "alt title aria-label aria-description aria-placeholder aria-roledescription content "
    "data-title data-content data-tooltip again"
)
LOADED_ATTRIBUTES = names("src srcset poster background data lowsrc dynsrc imagesrcset")
"""Browsers fetch these URLs without a click, so each can be a beacon."""
OPENED_ATTRIBUTES = names("href action formaction cite longdesc ping xlink:href manifest")
LOADED_HREFS = names("link image use feimage script")
BOOLEAN_ATTRIBUTES = names(
    "hidden open async defer checked disabled selected required readonly multiple autofocus "
    "controls loop muted autoplay novalidate allowfullscreen itemscope nowrap noshade reversed "
    "ismap default nomodule playsinline inert crossorigin compact download alt value class content"
)
"""Attributes that may lack a value. Any other name without one is a word."""


MAX_TOKENS = 400_000
"""Tags, attributes and texts of a page that are parsed."""

_NAME = re.compile(r"[A-Za-z][^\t\n\r\f />]*")
_BETWEEN = re.compile(r"[\t\n\r\f /]*")
_ATTRIBUTE = re.compile(r"[^\t\n\r\f />][^\t\n\r\f />=]*")
_EQUALS = re.compile(r"[\t\n\r\f ]*=[\t\n\r\f ]*")
_COMMENT_END = re.compile(r"-->|(?<!<!)--!>")
"""Browsers also end a comment at `--!>`, but not at that of `<!--!>` (HTML 13.2.5.50)."""
_BARE = re.compile(r"[^\t\n\r\f >]*")
# Attack: a browser ignores zeros before a number, however many.
_PADDING = re.compile(r"&#(?:0+(?=[0-9])|([xX])0+(?=[0-9a-fA-F]))")
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


_FOREIGN = names("svg math")
"""Elements whose content has the syntax of XML: CDATA sections, and markup in every element."""
_CDATA = "<![CDATA["


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
    foreign = 0  # open svg and math elements
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
            tag, left = _tag(page, name, left)
            at = tag.end
            yield tag
            foreign += tag.word in _FOREIGN and not tag.is_closed
            if tag.word in raw and not (is_xml and tag.is_closed):
                close = _RAW_END[tag.word].search(page, at)
                begin, at = at, end if close is None else close.start()
                at = _comment_end(page, begin, at) if foreign else at
                yield Token("raw", tag.word, begin, at)
        elif page.startswith("</", at) and (name := _NAME.match(page, at + 2)) is not None:
            # An end tag may have attributes: nobody sees the x of `</p a=">x">`.
            tag, left = _tag(page, name, left)
            at = tag.end
            kind = "end" if tag.kind == "start" else tag.kind
            foreign = max(0, foreign - (tag.word in _FOREIGN))
            yield Token(kind, tag.word, begin, at)
        elif page.startswith("<!--", at):
            # `<!-->` is a whole comment.
            ended = _COMMENT_END.search(page, at + 2)
            at = end if ended is None else ended.end()
            yield Token("comment", "", min(begin + 4, at), at if ended is None else ended.start())
        elif foreign and page.startswith(_CDATA, at):
            at = _or_end(page.find("]]>", at), end - 3) + 3
            yield Token("comment", "", begin + len(_CDATA), at)
        elif page.startswith(("<!", "<?", "</"), at):
            at = _or_end(page.find(">", at), end - 1) + 1
            yield Token("comment", "", begin + 2, at)
        else:
            at += 1
            yield Token("text", "", begin, at)


def _comment_end(page: str, begin: int, at: int) -> int:
    """The end of `page[begin:at]`, or of a comment that begins there and ends later.

    In svg and math, browsers parse markup inside style and script: the text behind `</style>` in
    `<svg><style><!-- </style></svg> text -->` is a comment. Which elements are foreign depends on
    the tree, so the longer content is taken: no reader sees the difference as text.
    """
    place = begin
    while (place := page.find("<!--", place, at)) >= 0:
        ended = _COMMENT_END.search(page, place + 2)
        if ended is None:
            return len(page)
        place = ended.end()
        at = max(at, place)
    return at


def characters(text: str) -> str:
    """Text with its character references resolved."""
    if "&" not in text:
        return text
    return html.unescape(_NO_CHARACTER.sub("\ufffd", _PADDING.sub(r"&#\1", text)))


def _or_end(found: int, end: int) -> int:
    return end if found < 0 else found


def _tag(page: str, name: re.Match[str], left: int) -> tuple[Token, int]:
    """The tag as if it were a start tag, and the tokens left; unclosed, the rest of the page."""
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
