"""HTML: the text that a reader sees, and all text that only a program reads (GRD-7).

Every text of a page is extracted; a wrong guess about visibility changes `is_hidden`, never
whether a text is scanned.
"""

from __future__ import annotations

import html
import re

from cellwall.guard.channels.addresses import beacon_trick, host_of, is_disguised, runs_code
from cellwall.guard.channels.markdown_clean import visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.parsing.html.styles import StyleSheet, linked_urls, unescape_css
from cellwall.parsing.html.tokens import (
    BOOLEAN_ATTRIBUTES,
    ENDS_ALONE,
    LOADED_ATTRIBUTES,
    LOADED_HREFS,
    OPENED_ATTRIBUTES,
    SHOWN_ATTRIBUTES,
    UNSEEN_ATTRIBUTES,
    Token,
    characters,
    tokens,
)
from cellwall.parsing.html.visibility import BACKGROUND_COLOUR, Element, OpenElements

_MAX_NESTED_PAGES = 3
_MAX_ATTRIBUTE_NAME = 40
_MAX_TAG_NAME = 12
_MAX_LINK_TEXT = 300
_MIN_HIDDEN_LETTERS = 25
"""Fewer hidden letters are a symbol or a number, not a message."""
_DECEPTIVE = ("font size", "opacity", "transparent colour", BACKGROUND_COLOUR, "transform")
"""Ways of hiding without an honest use; collapsed boxes and texts for screen readers are common."""
_DROPPED = "\x02"
_KEPT = re.compile(f"[^{_DROPPED}]+")
_LETTERS = re.compile(r"[^\W\d_]")


def read(text: str) -> Extracted:
    """All text of a page, in groups by what it is and how it is hidden."""
    gathering = Gathering()
    HtmlExtractor(gathering, text, text).read()
    return gathering.result()


def clean(text: str) -> str:
    """Text that stands in a page, or in an attribute, as nothing but text."""
    return html.escape(visible(text), quote=True)


class HtmlExtractor:
    """Walks over one page. `page` is what is taken apart, `source` what the pieces are made of:
    of equal length, and different where another format has its own markup."""

    def __init__(self, gathering: Gathering, page: str, source: str, *, depth: int = 0) -> None:
        self._gathering = gathering
        self._page = page
        self._source = source
        self._depth = depth
        self._elements = OpenElements(on_close=self._on_close)
        self._glue = ""
        self._link: tuple[str, int, list[str]] | None = None
        self._deceptive: dict[str, tuple[int, int, int]] = {}
        self._has_base = False
        self._known: set[str] = set()

    def read(self) -> None:
        found = list(tokens(self._page))
        blocks = [
            self._source[token.start : token.end]
            for token in found
            if token.kind == "raw" and token.word == "style"
        ]
        self._elements = OpenElements(sheet=StyleSheet.of(blocks), on_close=self._on_close)
        for token in found:
            self._add_token(token)
            if self._gathering.is_full:
                self._gathering.is_complete = False
                break
        self._end_link(len(self._source))
        for letters, start, end in self._deceptive.values():
            if letters >= _MIN_HIDDEN_LETTERS:
                self._gathering.note("text-unseen", start, end)

    def _add_token(self, token: Token) -> None:
        start, end = token.start, token.end
        match token.kind:
            case "text":
                self._text(start, end)
            case "start":
                self._start(token)
            case "end":
                self._end(token.word, start)
                if end - start > len(token.word) + 4:
                    self._add("end tag", start, end)
            case "comment":
                self._add("comment", start, end)
            case "raw":
                self._raw(token)
            case "rest" | "cut":
                self._add("unfinished tag", start, end)

    def _add(self, where: str, start: int, end: int, *, is_hidden: bool = True) -> None:
        text = self._source[start:end]
        if text.strip():
            self._gathering.add(text, where, start, end, is_hidden=is_hidden)

    # Elements

    def _start(self, token: Token) -> None:
        name, attributes = token.word, token.attributes
        if len(name) > _MAX_TAG_NAME:
            self._add_other(name, token)
        element = self._elements.start(token)
        if not element.is_inline:
            self._glue = "\n"
        if attributes:
            self._attributes(token, element)
        if token.again:
            # A model that reads the source sees the repeated attributes as well.
            self._words("again", characters(token.again).strip(), token, is_unseen=True)
        if name == "a":
            self._end_link(token.start)
            self._link = (characters(attributes.get("href", "")).strip(), token.start, [])

    def _end(self, name: str, at: int) -> None:
        if name == "a":
            self._end_link(at)
        ended = self._elements.end(name)
        if name in ENDS_ALONE if ended is None else not ended.is_inline:
            self._glue = "\n"

    def _on_close(self, closed: Element) -> None:
        if not closed.is_inline:
            self._glue = "\n"

    # Text

    def _text(self, start: int, end: int) -> None:
        hidden_by = self._elements.current.hidden_by
        where = f"text hidden by {hidden_by}" if hidden_by else "text"
        for kept in _KEPT.finditer(self._page, start, end):
            text = characters(self._source[kept.start() : kept.end()])
            self._gathering.add(
                text, where, kept.start(), kept.end(), is_hidden=bool(hidden_by), glue=self._glue
            )
            self._glue = ""
            if hidden_by in _DECEPTIVE:
                letters, first, _ = self._deceptive.get(hidden_by, (0, kept.start(), 0))
                if letters < _MIN_HIDDEN_LETTERS:
                    letters += len(_LETTERS.findall(text[:200]))
                self._deceptive[hidden_by] = (letters, first, kept.end())
            if self._link is not None and not hidden_by:
                self._link[2].append(text[:_MAX_LINK_TEXT])

    def _raw(self, token: Token) -> None:
        start, end = token.start, token.end
        match token.word:
            case "title" | "textarea" | "xmp":
                text = characters(self._source[start:end]).strip()
                is_hidden = bool(self._elements.current.hidden_by)
                self._gathering.add(text, token.word, start, end, is_hidden=is_hidden)
            case "style":
                self._add("style", start, end)
                if "\\" in self._source[start:end]:
                    plain = unescape_css(self._source[start:end])
                    self._gathering.add(plain, "style unescaped", start, end, is_hidden=True)
                self._loads(linked_urls(self._source[start:end]), token)
            case _:
                self._add(token.word, start, end)

    # Attributes and addresses

    def _attributes(self, token: Token, element: Element) -> None:
        for key, written in token.attributes.items():
            value = characters(written).strip()
            if not value:
                if key not in BOOLEAN_ATTRIBUTES:
                    self._add_other(key, token)
            elif not self._add_address(key, value, token, element):
                self._words(key, value, token, is_unseen=bool(element.hidden_by))

    def _add_address(self, key: str, value: str, token: Token, element: Element) -> bool:
        """Addresses, and pages within the page."""
        name = token.word
        if key == "style":
            if "(" in value:
                self._loads(linked_urls(value), token)
            return False
        if key == "srcdoc" and self._depth < _MAX_NESTED_PAGES:
            inner = Gathering()
            HtmlExtractor(inner, value, value, depth=self._depth + 1).read()
            # The frame's own text is never shown, the page in it is.
            is_hidden = element.hidden_by not in ("", "not shown: iframe")
            place = (token.start, token.end)
            self._gathering.take(
                inner.result(), lambda *_: place, prefix="srcdoc", is_hidden=is_hidden
            )
        elif key in LOADED_ATTRIBUTES or (key.endswith("href") and name in LOADED_HREFS):
            self._loads(_sources(key, value), token)
            if key.endswith("srcset"):
                self._add_other(value, token)
        elif key in OPENED_ATTRIBUTES:
            self._opens(value, token)
        elif name == "meta" and key == "content":
            self._meta(value, token)
        else:
            return False
        return True

    def _words(self, key: str, value: str, token: Token, *, is_unseen: bool) -> None:
        if key in SHOWN_ATTRIBUTES:
            where = f"attribute {key}"
        elif key in UNSEEN_ATTRIBUTES:
            where, is_unseen = f"attribute {key}", True
        elif key.startswith("on"):
            where, is_unseen = "script", True
        else:
            if " " in value or len(value) > _MAX_ATTRIBUTE_NAME:
                self._add_other(value, token)
            return
        self._gathering.add(value, where, token.start, token.end, is_hidden=is_unseen)

    def _add_other(self, text: str, token: Token) -> None:
        """What no browser shows and a model reads; each once, for pages repeat their classes."""
        if text not in self._known:
            self._known.add(text)
            self._gathering.add(text, "other attributes", token.start, token.end, is_hidden=True)

    def _meta(self, value: str, token: Token) -> None:
        attributes = token.attributes
        what = (
            attributes.get("name") or attributes.get("property") or attributes.get("http-equiv", "")
        )
        what = characters(what).strip().lower()[:60]
        if what == "refresh":
            _, _, url = value.partition("=")
            if url:
                self._loads([url.strip(" '\"")], token)
        self._gathering.add(value, f"meta {what}", token.start, token.end, is_hidden=True)

    def _loads(self, urls: list[str], token: Token) -> None:
        for url in urls:
            self._address(url, token, is_automatic=True)

    def _opens(self, url: str, token: Token) -> None:
        self._address(url, token, is_automatic=False)
        if runs_code(url):
            self._gathering.note("link-script", token.start, token.end)

    def _address(self, url: str, token: Token, *, is_automatic: bool) -> None:
        if url.startswith("#"):
            if len(url) > _MAX_ATTRIBUTE_NAME or " " in url:
                self._add_other(url, token)
            return
        self._gathering.add(url, "address", token.start, token.end, is_hidden=True)
        if token.word == "base":
            self._has_base = self._has_base or bool(host_of(url))
        # Relative ones stay on the page's own host, unless the page has named another.
        # What that host's own name carries is told of the tag that names it.
        full = f"//base/{url}" if self._has_base and not host_of(url) else url
        trick = beacon_trick(full, is_automatic=is_automatic)
        if trick:
            self._gathering.note(trick, token.start, token.end)
        elif is_automatic and runs_code(url) and not url.lower().startswith("data:image"):
            self._gathering.note("link-script", token.start, token.end)

    def _end_link(self, at: int) -> None:
        if self._link is None:
            return
        target, start, shown = self._link
        self._link = None
        if is_disguised("".join(shown)[:_MAX_LINK_TEXT], target):
            self._gathering.note("link-disguised", start, at)


def _sources(key: str, value: str) -> list[str]:
    if not key.endswith("srcset"):
        return [value]
    return [part.split()[0] for part in value.split(",")[:50] if part.split()]
