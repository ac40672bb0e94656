"""HTML: what a reader sees, and all that only a program reads (GRD-7).

The tables say what is looked at. Everything that a page holds is taken out; a wrong guess about
styles changes `is_hidden`, never whether a text is seen.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from cellwall.guard.channels.addresses import beacon_trick, host_of, is_disguised, runs_code
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.channels.visible import visible
from cellwall.parsing.html import styles
from cellwall.parsing.html.colours import BLACK, WHITE, Colour, look_alike
from cellwall.parsing.html.elements import (
    BLOCK,
    ENDED_BY,
    ENDS_ALONE,
    LOADED_ATTRIBUTES,
    LOADED_HREFS,
    MAY_HIDE,
    OPENED_ATTRIBUTES,
    SHOWN_ATTRIBUTES,
    SWITCHES,
    UNSEEN_ATTRIBUTES,
    UNSEEN_ELEMENTS,
    VOID,
)
from cellwall.parsing.html.tokens import Token, characters, tokens

_MAX_OPEN = 256
_MAX_INSIDE = 3
_LONG = 40
_LONG_TAG = 12
_MAX_SHOWN_LINK = 300
_TELLING = 25
"""Characters that somebody took the trouble to hide; fewer are a symbol or a number."""
_DECEPTIVE = ("font size", "opacity", "clear colour", "colour of the ground", "transform")
"""Ways that serve nobody; what is folded away, or kept for screen readers, is on every page."""
_DROPPED = "\x02"
_KEPT = re.compile(f"[^{_DROPPED}]+")
_LETTERS = re.compile(r"[^\W\d_]")


class _Open(NamedTuple):
    name: str
    is_inline: bool
    """Whether what stands before and behind it is on the same line."""
    way: str
    """How it, or what it stands in, is hidden."""
    colour: Colour
    ground: Colour
    is_preset: bool = True
    """Whether neither colour was set by the page."""


def read(text: str) -> Extracted:
    """All text of a page, in groups by what it is and how it is hidden."""
    gathering = Gathering()
    Reader(gathering, text, text).read()
    return gathering.result()


def clean(text: str) -> str:
    """Text that stands in a page, or in an attribute, as nothing but text."""
    return html.escape(visible(text), quote=True)


class Reader:
    """Walks over one page. `page` is what is taken apart, `source` what the pieces are made of:
    of equal length, and different where another format has its own markup."""

    def __init__(self, gathering: Gathering, page: str, source: str, *, depth: int = 0) -> None:
        self._gathering = gathering
        self._page = page
        self._source = source
        self._depth = depth
        self._open = [_Open("", True, "", BLACK, WHITE)]
        self._named: Counter[str] = Counter()
        self._beyond = 0
        self._glue = ""
        self._link: tuple[str, int, list[str]] | None = None
        self._unseen: dict[str, tuple[int, int, int]] = {}
        self._sheet = styles.Sheet({}, {})
        self._has_base = False
        self._known: set[str] = set()

    def read(self) -> None:
        found = list(tokens(self._page))
        blocks = [
            self._source[token.start : token.end]
            for token in found
            if token.kind == "raw" and token.word == "style"
        ]
        self._sheet = styles.Sheet.of(blocks)
        for token in found:
            self._take(token)
            if self._gathering.is_full:
                self._gathering.is_complete = False
                break
        self._end_link(len(self._source))
        for letters, start, end in self._unseen.values():
            if letters >= _TELLING:
                self._gathering.note("text-unseen", start, end)

    def _take(self, token: Token) -> None:
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
        while name in ENDED_BY.get(self._open[-1].name, ()):
            self._pop()
        if len(name) > _LONG_TAG:
            self._other(name, token)
        element = self._judged(name, attributes, self._look(name, attributes))
        if not element.is_inline:
            self._glue = "\n"
        if attributes:
            self._attributes(token, element)
        if token.again:
            # A model that reads the source sees the others as well.
            self._words("again", characters(token.again).strip(), token, is_unseen=True)
        if name in VOID:
            return
        if len(self._open) > _MAX_OPEN:
            # Only how deep it is, is forgotten: what is hidden out there counts for all below.
            self._beyond += 1
            if element.way:
                self._open[-1] = self._open[-1]._replace(way=element.way)
            return
        self._open.append(element)
        self._named[name] += 1
        if name == "a":
            self._end_link(token.start)
            self._link = (characters(attributes.get("href", "")).strip(), token.start, [])

    def _look(self, name: str, attributes: Mapping[str, str]) -> styles.Look:
        look = self._sheet.look_of(name, attributes)
        if not attributes:
            return look
        own: styles.Style = {}
        if name in ("font", "basefont") and "color" in attributes:
            own["color"] = styles.short(characters(attributes["color"]))
        if "bgcolor" in attributes:
            own["background"] = styles.short(characters(attributes["bgcolor"]))
        own.update(look.style if own else {})
        if "style" in attributes:
            own = {**look.style, **own, **styles.parse(characters(attributes["style"]))}
        return styles.Look.of(own) if own and own != look.style else look

    def _judged(self, name: str, attributes: Mapping[str, str], look: styles.Look) -> _Open:
        above = self._open[-1]
        is_inline = name not in BLOCK if look.is_inline is None else look.is_inline
        if look is styles.PLAIN and not attributes and name not in MAY_HIDE:
            return _Open(name, is_inline, *above[2:])
        colour = look.colour or above.colour
        ground = look.ground or above.ground
        is_preset = above.is_preset and look.colour is None and look.ground is None
        way = above.way or self._way(name, attributes) or look.way
        if not way and not is_preset and look_alike(colour, ground):
            way = "colour of the ground"
        elif way == "colour of the ground" and not look_alike(colour, ground):
            way = ""  # a box inside that sets another colour is seen again
        if name == "summary" and above.name == "details" and way == "collapsed details":
            way = ""
        return _Open(name, is_inline, way, colour, ground, is_preset)

    @staticmethod
    def _way(name: str, attributes: Mapping[str, str]) -> str:
        if name in UNSEEN_ELEMENTS:
            return f"{UNSEEN_ELEMENTS[name]}: {name}"
        if "hidden" in attributes:
            return "hidden attribute"
        if characters(attributes.get("aria-hidden", "")).strip().lower() == "true":
            return "aria-hidden"
        if name == "input" and characters(attributes.get("type", "")).strip().lower() == "hidden":
            return "hidden input"
        if name in ("details", "dialog") and "open" not in attributes:
            return f"collapsed {name}"
        if name == "font" and attributes.get("size", "").strip() in ("0", "-7"):
            return "font size"
        return ""

    def _end(self, name: str, at: int) -> None:
        if self._beyond:
            self._beyond -= 1
            if name in BLOCK:
                self._glue = "\n"
            return
        if name == "a":
            self._end_link(at)
        if name in ENDS_ALONE and not self._named[name]:
            self._glue = "\n"
        while self._named[name]:
            if self._pop() == name:
                return

    def _pop(self) -> str:
        closed = self._open.pop()
        self._named[closed.name] -= 1
        if not closed.is_inline:
            self._glue = "\n"
        return closed.name

    # Text

    def _text(self, start: int, end: int) -> None:
        way = self._open[-1].way
        where = f"text hidden by {way}" if way else "text"
        for kept in _KEPT.finditer(self._page, start, end):
            text = characters(self._source[kept.start() : kept.end()])
            self._gathering.add(
                text, where, kept.start(), kept.end(), is_hidden=bool(way), glue=self._glue
            )
            self._glue = ""
            if way in _DECEPTIVE:
                letters, first, _ = self._unseen.get(way, (0, kept.start(), 0))
                if letters < _TELLING:
                    letters += len(_LETTERS.findall(text[:200]))
                self._unseen[way] = (letters, first, kept.end())
            if self._link is not None and not way:
                self._link[2].append(text[:_MAX_SHOWN_LINK])

    def _raw(self, token: Token) -> None:
        start, end = token.start, token.end
        match token.word:
            case "title" | "textarea" | "xmp":
                text = characters(self._source[start:end]).strip()
                is_hidden = bool(self._open[-1].way)
                self._gathering.add(text, token.word, start, end, is_hidden=is_hidden)
            case "style":
                self._add("style", start, end)
                if "\\" in self._source[start:end]:
                    plain = styles.unescaped(self._source[start:end])
                    self._gathering.add(plain, "style unescaped", start, end, is_hidden=True)
                self._loads(styles.addresses(self._source[start:end]), token)
            case _:
                self._add(token.word, start, end)

    # Attributes and addresses

    def _attributes(self, token: Token, element: _Open) -> None:
        for key, written in token.attributes.items():
            value = characters(written).strip()
            if not value:
                if key not in SWITCHES:
                    self._other(key, token)
            elif not self._leads_on(key, value, token):
                self._words(key, value, token, is_unseen=bool(element.way))

    def _leads_on(self, key: str, value: str, token: Token) -> bool:
        """Addresses, and pages within the page."""
        name = token.word
        if key == "style":
            if "(" in value:
                self._loads(styles.addresses(value), token)
            return False
        if key == "srcdoc" and self._depth < _MAX_INSIDE:
            inner = Gathering()
            Reader(inner, value, value, depth=self._depth + 1).read()
            is_hidden = bool(self._open[-1].way)
            place = (token.start, token.end)
            self._gathering.take(
                inner.result(), lambda *_: place, prefix="srcdoc", is_hidden=is_hidden
            )
        elif key in LOADED_ATTRIBUTES or (key.endswith("href") and name in LOADED_HREFS):
            self._loads(_sources(key, value), token)
            if key.endswith("srcset"):
                self._other(value, token)
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
            if " " in value or len(value) > _LONG:
                self._other(value, token)
            return
        self._gathering.add(value, where, token.start, token.end, is_hidden=is_unseen)

    def _other(self, text: str, token: Token) -> None:
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
            if len(url) > _LONG or " " in url:
                self._other(url, token)
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
        if is_disguised("".join(shown)[:_MAX_SHOWN_LINK], target):
            self._gathering.note("link-disguised", start, at)


def _sources(key: str, value: str) -> list[str]:
    if not key.endswith("srcset"):
        return [value]
    return [part.split()[0] for part in value.split(",")[:50] if part.split()]
