"""Hostile HTML -> a short, flat, well-formed stream of what a reader would see. Pure.

The library that makes Markdown walks trees by recursion, and has loops that are quadratic in the
rows of a table, the items of a list or a run of blanks. So it never sees a page: it gets what
leaves here, whose depth, size and forms are bounded.

Left out are scripts, styles, comments, templates and what the page itself says is not to be seen:
instructions for a model hide there. What a style sheet or a script hides is not found, nor is
text in the colour of its ground: that would need a browser.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cellwall.egress.pages.html_names import (
    ENDS,
    ENDS_PARAGRAPH,
    FORMATTING,
    INDENTS,
    LISTS,
    PARAGRAPH,
    SHOWN,
    TABLE,
    UNSEEN,
    VOID,
    Reach,
)
from cellwall.parsing.html.tokens import RAW_WITH_SCRIPTS, Token, characters, tokens

MAX_EVENTS = 80_000
MAX_CHARACTERS = 4_000_000
"""Of text, links and the indents that nested lists and quotes put before each line."""
_MAX_OPEN = 256
_MAX_LOOKS = 5_000_000
"""At what is open, for all tags together."""
_MAX_SHOWN = 48
_MAX_INDENTS = 8
_INDENT_CHARACTERS = 4
_MAX_TITLE = 1000

_BLANKS = re.compile(r"[ \t\n\r\f]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_NUMBER = re.compile(r"[0-9]{1,6}")
_RAW_TEXT = ("title", "textarea", "xmp")
"""Without markup inside, and shown."""
_MAX_STYLE = 4096
_STYLE_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_STYLE_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})[ \t\n\r\f]?")
_ZERO = re.compile(r"[+-]?0*(?:\.0*)?(?:%|[a-z]{1,4})?")


class Event(NamedTuple):
    """One step of the stream; every `open` has its `close`."""

    kind: Literal["open", "close", "single", "text"]
    word: str
    """The tag, one of a few dozen, or the text."""
    extra: str = ""
    """The target of an `a`, the number of a `li` if it has one."""


@dataclass(frozen=True, slots=True)
class View:
    """What is left of a page."""

    events: tuple[Event, ...]
    title: str
    is_cut: bool
    """Whether the page was too large, and this is its beginning."""


def view(page: str, *, link: Callable[[str, str], str], is_xml: bool = False) -> View:
    """What a reader sees; `link(base, href)` is the target to show for a link, or empty."""
    viewer = _Viewer(page, link, is_xml=is_xml)
    found = tokens(page, raw=RAW_WITH_SCRIPTS, is_xml=is_xml)
    is_cut = not all(map(viewer.take, found))
    viewer.end()
    return View(tuple(viewer.events), viewer.title, is_cut)


def is_hidden(name: str, attributes: Mapping[str, str]) -> bool:
    """Whether nobody is to see it, by its name or by what it says of itself."""
    if name in UNSEEN or "hidden" in attributes:
        return True
    if _plain(attributes.get("aria-hidden", "")).strip().lower() == "true":
        return True
    return "style" in attributes and _hides(attributes["style"])


def _hides(style: str) -> bool:
    if len(style) > _MAX_STYLE:
        return True  # nobody writes so much, and nobody reads it
    style = _STYLE_COMMENT.sub("", _plain(style))
    style = _STYLE_ESCAPE.sub(_style_character, style).replace("\\", "").lower()
    for declaration in style.split(";"):
        key, _, value = declaration.partition(":")
        value = value.replace("!important", "").strip()
        match key.strip():
            case "display":
                hides = value == "none"
            case "visibility" | "content-visibility":
                hides = value in ("hidden", "collapse")
            case "font-size" | "opacity":
                hides = bool(value) and _ZERO.fullmatch(value) is not None
            case _:
                hides = False
        if hides:
            return True
    return False


def _plain(text: str) -> str:
    """With its references resolved, and without what no text has."""
    return _CONTROLS.sub("", characters(text))


def _style_character(found: re.Match[str]) -> str:
    code = int(found[1], 16)
    return chr(code) if 0x20 <= code < 0x7F else "\ufffd"


class _Open(NamedTuple):
    name: str
    shown: str
    is_hidden: bool


@dataclass(slots=True)
class _Beyond:
    """Elements that are nested too deeply to be kept track of: only their text is."""

    open: Counter[str] = field(default_factory=Counter)
    is_hidden: bool = False
    """One of them is; then so is all until the depth is less again."""

    def start(self, name: str, *, hidden: bool) -> None:
        self.open[name] += 1
        self.is_hidden = self.is_hidden or hidden

    def end(self, name: str) -> bool:
        """Whether it was one of these that ended."""
        if not self.open[name]:
            return False
        self.open[name] -= 1
        return True


class _Viewer:
    """Keeps track of what is open, as browsers do: pages forget end tags, and cross them."""

    def __init__(self, page: str, link: Callable[[str, str], str], *, is_xml: bool) -> None:
        self.events: list[Event] = []
        self.title = ""
        self._page, self._link, self._is_xml = page, link, is_xml
        self._base: str | None = None
        self._open: list[_Open] = []
        self._named: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._numbers: list[int | None] = []
        self._hidden = 0
        self._beyond = _Beyond()
        self._left = MAX_CHARACTERS
        self._looks = _MAX_LOOKS

    def take(self, token: Token) -> bool:
        """False if no more is wanted."""
        match token.kind:
            case "cut":
                return False
            case "text":
                self._text(self._page[token.start : token.end])
            case "raw" if token.word in _RAW_TEXT:
                self._text(self._page[token.start : token.end])
            case "end":
                self._end(token.word)
            case "start":
                self._start(token)
        return self._left > 0 and self._looks > 0 and len(self.events) < MAX_EVENTS

    def end(self) -> None:
        """Close what the page has left open."""
        self._pop_to(0)

    def _start(self, token: Token) -> None:
        name, attributes = token.word, token.attributes
        if name in ENDS:
            self._end_within(ENDS[name])
        if name in ENDS_PARAGRAPH:
            self._end_within(PARAGRAPH)
        hidden = is_hidden(name, attributes)
        if name in VOID:
            self._single(name, attributes, hidden=hidden)
            return
        if self._is_xml and token.is_closed:
            return
        if len(self._open) >= _MAX_OPEN:
            self._beyond.start(name, hidden=hidden)
            return
        shown = "" if hidden or self._is_unseen() else self._shown_as(name)
        self._open.append(_Open(name, shown, hidden))
        self._named[name] += 1
        self._hidden += hidden
        if shown:
            self._show(shown, attributes)

    def _shown_as(self, name: str) -> str:
        shown = SHOWN.get(name, "")
        if len(self._open) >= _MAX_SHOWN and self._shown.total() >= _MAX_SHOWN:
            return ""
        if shown in INDENTS and sum(self._shown[tag] for tag in INDENTS) >= _MAX_INDENTS:
            return "div"
        return shown

    def _show(self, shown: str, attributes: Mapping[str, str]) -> None:
        extra = ""
        if shown == "a":
            href = _plain(attributes.get("href", "")).strip()
            extra = self._link(self._base or "", href) if href else ""
        elif shown in LISTS:
            start = attributes.get("start", "")
            first = int(start) if _NUMBER.fullmatch(start) else 1
            self._numbers.append(first if shown == "ol" else None)
        elif shown == "li" and self._numbers and (number := self._numbers[-1]) is not None:
            extra = str(number)
            self._numbers[-1] = number + 1
        self._shown[shown] += 1
        self._emit(Event("open", shown, extra))

    def _single(self, name: str, attributes: Mapping[str, str], *, hidden: bool) -> None:
        if name == "base" and self._base is None and "href" in attributes:
            self._base = _plain(attributes["href"]).strip()
        if hidden or self._is_unseen():
            return
        if name in ("br", "hr"):
            self._emit(Event("single", name))
        elif name == "img":
            # Its words without its address: whoever shows Markdown would load it, and that is a
            # way out that asks nobody.
            self._text(attributes.get("alt", ""))

    def _end(self, name: str) -> None:
        if self._beyond.end(name) or not self._named[name]:
            return
        for depth in self._inside_out():
            found = self._open[depth].name
            if found == name:
                self._pop_to(depth)
                return
            if name in FORMATTING:
                # Not out of the block it stands in, or `<b><p hidden>x</b>y` would show the y.
                is_wall = found not in FORMATTING
            else:
                is_wall = name not in TABLE and found in TABLE
            if is_wall:
                return

    def _end_within(self, reach: Reach) -> None:
        if not any(self._named[name] for name in reach.ends):
            return
        outermost = None
        for depth in self._inside_out():
            found = self._open[depth].name
            if found in reach.within:
                break
            if found in reach.ends:
                outermost = depth
        if outermost is not None:
            self._pop_to(outermost)

    def _inside_out(self) -> Iterator[int]:
        for depth in range(len(self._open) - 1, -1, -1):
            self._looks -= 1
            yield depth

    def _pop_to(self, depth: int) -> None:
        while len(self._open) > depth:
            closed = self._open.pop()
            self._beyond = _Beyond()
            self._named[closed.name] -= 1
            self._hidden -= closed.is_hidden
            if closed.shown:
                self._shown[closed.shown] -= 1
                if closed.shown in LISTS:
                    self._numbers.pop()
                self._emit(Event("close", closed.shown))

    def _is_unseen(self) -> bool:
        return bool(self._hidden) or self._beyond.is_hidden

    def _text(self, raw: str) -> None:
        if self._is_unseen():
            return
        text = _plain(raw)
        if self._open and self._open[-1].name == "title":
            self.title = self.title or _BLANKS.sub(" ", text).strip()[:_MAX_TITLE]
            return
        if self._shown["pre"]:
            text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "")
        else:
            text = _BLANKS.sub(" ", text)
            last = self.events[-1] if self.events else None
            # One blank, however many elements it is spread over: see the module's first words.
            if last is not None and last.kind == "text" and last.word.endswith(" "):
                text = text.lstrip(" ")
        indents = text.count("\n") * self._indent()
        if len(text) + indents > self._left:
            text = text[: max(0, self._left // (1 + self._indent()))]
            self._left = 0
        if text:
            self._left -= indents
            self._emit(Event("text", text))

    def _indent(self) -> int:
        return _INDENT_CHARACTERS * sum(self._shown[tag] for tag in INDENTS)

    def _emit(self, event: Event) -> None:
        self._left -= len(event.word) + len(event.extra)
        if event.kind != "text":
            self._left -= self._indent()
        self.events.append(event)
