"""HTML from a stranger -> a short, flat, well-formed event stream of its visible text. Pure.

The library that writes Markdown walks trees by recursion, and has loops that are quadratic in the
rows of a table, the items of a list or a run of blanks. So it never sees a page: it gets these
events, whose depth, size and forms are bounded.

Left out are scripts, styles, comments, templates and all text that the page itself surely hides
(`parsing.html.visibility`): instructions for a model are put there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cellwall.parsing.html.tokens import HEADINGS, RAW_WITH_SCRIPTS, SECTIONS, Token, names, tokens
from cellwall.parsing.html.visibility import Element, OpenElements, plain

MAX_EVENTS = 80_000
MAX_CHARACTERS = 4_000_000
"""Of text, links and the indents that nested lists and quotes put before each line."""
_MAX_RENDERED = 48
_MAX_INDENTS = 8
_INDENT_CHARACTERS = 4
_MAX_TITLE = 1000

_BLANKS = re.compile(r"[ \t\n\r\f]+")
_NUMBER = re.compile(r"[0-9]{1,6}")
_RAW_TEXT = ("title", "textarea", "xmp")
"""Elements without markup inside, whose text is shown."""
_AS_WRITTEN = HEADINGS | names(
    "a b i code del pre blockquote p ul ol li dl dt dd table tr td th caption"
)
_RENDERED_AS = {
    **dict.fromkeys(SECTIONS, "div"),
    **{name: name for name in _AS_WRITTEN},
    "strong": "b",
    "em": "i",
    **dict.fromkeys(names("s strike"), "del"),
    **dict.fromkeys(names("kbd samp tt"), "code"),
    "xmp": "pre",
}
"""The tag in the outline for each element; all others leave only their text."""
_INDENTED = names("li blockquote dd")
_LISTS = names("ul ol")
_OMITTED = names("svg")
"""Drawings: a reader sees their shapes, and their labels alone make no sense."""


class OutlineEvent(NamedTuple):
    """One step of the stream; every `open` has its `close`."""

    kind: Literal["open", "close", "single", "text"]
    word: str
    """The tag, one of a few dozen, or the text."""
    extra: str = ""
    """The target of an `a`, the number of a `li` if it has one."""


@dataclass(frozen=True, slots=True)
class PageOutline:
    """The visible content of a page."""

    events: tuple[OutlineEvent, ...]
    title: str
    is_cut: bool
    """Whether the page was too large, and this is its beginning."""


def outline(page: str, *, link: Callable[[str, str], str], is_xml: bool = False) -> PageOutline:
    """The visible content; `link(base, href)` is the target to show for a link, or empty."""
    builder = _OutlineBuilder(page, link, is_xml=is_xml)
    page_tokens = tokens(page, raw=RAW_WITH_SCRIPTS, is_xml=is_xml)
    is_cut = not all(map(builder.add, page_tokens))
    builder.close()
    return PageOutline(tuple(builder.events), builder.title, is_cut)


class _OutlineBuilder:
    """Emits an event for each element and text that is seen."""

    def __init__(self, page: str, link: Callable[[str, str], str], *, is_xml: bool) -> None:
        self.events: list[OutlineEvent] = []
        self.title = ""
        self._page, self._link = page, link
        self._base: str | None = None
        self._elements = OpenElements(omitted=_OMITTED, is_xml=is_xml, on_close=self._on_close)
        self._rendered: list[str] = []
        """The tag of each open element in the outline, empty without one."""
        self._counts: Counter[str] = Counter()
        self._numbers: list[int | None] = []
        self._left = MAX_CHARACTERS

    def add(self, token: Token) -> bool:
        """False if the bounds are reached."""
        match token.kind:
            case "cut":
                return False
            case "text":
                self._text(self._page[token.start : token.end])
            case "raw" if token.word in _RAW_TEXT:
                self._text(self._page[token.start : token.end])
            case "end":
                self._elements.end(token.word)
            case "start":
                self._start(token)
        return self._left > 0 and len(self.events) < MAX_EVENTS

    def close(self) -> None:
        """Close the elements that the page left open."""
        self._elements.close()

    def _start(self, token: Token) -> None:
        element = self._elements.start(token)
        is_unseen = element.is_surely_hidden or self._is_unseen()
        if self._elements.depth == len(self._rendered):
            if not is_unseen or element.name == "base":
                self._single(element.name, token.attributes, is_unseen=is_unseen)
            return
        tag = "" if is_unseen else self._tag_for(element.name)
        self._rendered.append(tag)
        if tag:
            self._open(tag, token.attributes)

    def _tag_for(self, name: str) -> str:
        tag = _RENDERED_AS.get(name, "")
        if len(self._rendered) >= _MAX_RENDERED and self._counts.total() >= _MAX_RENDERED:
            return ""
        if tag in _INDENTED and sum(self._counts[each] for each in _INDENTED) >= _MAX_INDENTS:
            return "div"
        return tag

    def _open(self, tag: str, attributes: Mapping[str, str]) -> None:
        extra = ""
        if tag == "a":
            href = plain(attributes.get("href", "")).strip()
            extra = self._link(self._base or "", href) if href else ""
        elif tag in _LISTS:
            start = attributes.get("start", "")
            first = int(start) if _NUMBER.fullmatch(start) else 1
            self._numbers.append(first if tag == "ol" else None)
        elif tag == "li" and self._numbers and (number := self._numbers[-1]) is not None:
            extra = str(number)
            self._numbers[-1] = number + 1
        self._counts[tag] += 1
        self._emit(OutlineEvent("open", tag, extra))

    def _single(self, name: str, attributes: Mapping[str, str], *, is_unseen: bool) -> None:
        if name == "base" and self._base is None and "href" in attributes:
            self._base = plain(attributes["href"]).strip()
        if is_unseen:
            return
        if name in ("br", "hr"):
            self._emit(OutlineEvent("single", name))
        elif name == "img":
            # The alternative text without the address: a renderer of Markdown would load that,
            # which is egress that no rule has allowed.
            self._text(attributes.get("alt", ""))

    def _on_close(self, _closed: Element) -> None:
        tag = self._rendered.pop()
        if tag:
            self._counts[tag] -= 1
            if tag in _LISTS:
                self._numbers.pop()
            self._emit(OutlineEvent("close", tag))

    def _is_unseen(self) -> bool:
        return self._elements.current.is_surely_hidden

    def _text(self, raw: str) -> None:
        if self._is_unseen():
            return
        text = plain(raw)
        if self._elements.current.name == "title":
            self.title = self.title or _BLANKS.sub(" ", text).strip()[:_MAX_TITLE]
            return
        if self._counts["pre"]:
            text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "")
        else:
            text = _BLANKS.sub(" ", text)
            last = self.events[-1] if self.events else None
            # One blank, however many elements it is spread over: see the module's docstring.
            if last is not None and last.kind == "text" and last.word.endswith(" "):
                text = text.lstrip(" ")
        indents = text.count("\n") * self._indent()
        if len(text) + indents > self._left:
            text = text[: max(0, self._left // (1 + self._indent()))]
            self._left = 0
        if text:
            self._left -= indents
            self._emit(OutlineEvent("text", text))

    def _indent(self) -> int:
        return _INDENT_CHARACTERS * sum(self._counts[tag] for tag in _INDENTED)

    def _emit(self, event: OutlineEvent) -> None:
        self._left -= len(event.word) + len(event.extra)
        if event.kind != "text":
            self._left -= self._indent()
        self.events.append(event)
