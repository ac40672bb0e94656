"""Markdown: the text, and what its markup and its HTML keep from the reader (GRD-7).

What hides is found by patterns that need one pass each; where they see markup that a renderer
would not, text is said to be hidden that is not, never the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cellwall.guard.channels.addresses import URL, beacon_trick, is_disguised, runs_code
from cellwall.guard.channels.html import HtmlExtractor
from cellwall.guard.channels.markdown_clean import DRAWN, visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.parsing.html.tokens import characters

_FRONT = re.compile(
    r"\A\ufeff?(---|\+\+\+)[ \t]*\n(.*?)\n(?:---|\+\+\+|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
_FENCE = re.compile(r"^[ \t>*+-]{0,40}(`{3,}|~{3,})(?P<info>[^\n]*)$", re.MULTILINE)
_INFO = re.compile(r"\W*([\w-]{1,40})")
_CODE = re.compile(r"(?<!`)(`{1,3})(?!`)[^`\n]{1,1000}(?<!`)\1(?!`)")
# Each part ends at a character that it cannot take, so no input makes them try many ways.
_DESTINATION = r"<(?P<angle>[^<>\n]*+)>|(?P<bare>[^\s()]*+(?:\([^\s()]*+\)[^\s()]*+)*)"
_TITLE = r"\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|\((?P<round>[^()]*+)\)"
LINK = re.compile(
    rf"(?P<image>!?)\[(?P<label>[^\[\]]*+)\]\(\s*+(?:{_DESTINATION})(?:\s++(?:{_TITLE}))?\s*+\)"
)
_DEFINITION = re.compile(
    r"^[ \t>]{0,12}\[(?!\^)(?P<label>[^\[\]\n]{1,999})\]:"
    r"[ \t]*+\n?[ \t]*+(?P<target>\S++)(?P<title>[^\n]*+)",
    re.MULTILINE,
)
_IMAGE_LABEL = re.compile(r"!\[([^\[\]\n]{0,999})\](?:\[([^\[\]\n]{1,999})\])?(?!\()")
_AUTOLINK = re.compile(r"<((?:[A-Za-z][A-Za-z0-9+.-]{1,31}:|[\w.+-]{1,64}@)[^\s<>]*)>")

_DROPPED = "\x02"
"""Stands in the page for characters that are a piece of their own."""
_LITERAL = "\x01"
"""Stands for a `<` that begins no tag."""


def read(text: str) -> Extracted:
    """The visible text, and separately titles, targets, comments and hidden HTML."""
    gathering = Gathering()
    page = _Page(gathering, text)
    page.front_matter()
    page.code()
    page.links()
    page.definitions()
    page.autolinks()
    page.bare_addresses()
    HtmlExtractor(gathering, page.masked(), text).read()
    return gathering.result()


def links_of(gathering: Gathering, text: str, where: str, start: int, end: int) -> None:
    """The links in a short text, such as a field of a message."""
    for found in LINK.finditer(text):
        url = target_of(found)
        address(gathering, url, where, start, end, is_automatic=bool(found["image"]))
        if is_disguised(found["label"], url):
            gathering.note("link-disguised", start, end)


def target_of(found: re.Match[str]) -> str:
    """Target of a link, with references resolved."""
    return characters(found["angle"] or found["bare"] or "").strip()


def address(
    gathering: Gathering, url: str, where: str, start: int, end: int, *, is_automatic: bool
) -> None:
    """Note an address, and what it is used for."""
    gathering.add(url, f"{where} address".strip(), start, end, is_hidden=True)
    note_address(gathering, url, start, end, is_automatic=is_automatic)


def note_address(
    gathering: Gathering, url: str, start: int, end: int, *, is_automatic: bool
) -> None:
    """Note the trick that an address is used for, if any."""
    trick = beacon_trick(url, is_automatic=is_automatic)
    if trick:
        gathering.note(trick, start, end)
    if runs_code(url):
        gathering.note("link-script", start, end)


class _Page:
    """A text whose parts are blanked out once they are parsed."""

    def __init__(self, gathering: Gathering, text: str) -> None:
        self._gathering = gathering
        self._text = text
        self._cover: list[tuple[int, int, str]] = []
        self._known: set[int] = set()
        """Starts of the addresses that were parsed."""

    def front_matter(self) -> None:
        found = _FRONT.match(self._text)
        if found is not None:
            self._hide(found[2], "front matter", found.start(2), found.end(2))
            self._cover.append((found.start(), found.end(), _DROPPED))

    def code(self) -> None:
        # Tags in code are text; one `<script>` in a sentence must not swallow the rest.
        if "<" not in self._text:
            return
        for start, end in self._fenced():
            self._cover.append((start, end, _LITERAL))
        for found in _CODE.finditer(self._text):
            if "<" in found[0]:
                self._cover.append((*found.span(), _LITERAL))

    def _fenced(self) -> Iterator[tuple[int, int]]:
        start, mark, is_drawn = 0, "", False
        for found in _FENCE.finditer(self._text):
            if not mark:
                start, mark = found.start(), found[1]
                info = _INFO.match(found["info"][:80])
                is_drawn = info is not None and info[1].lower() in DRAWN
            elif found[1].startswith(mark) and not found["info"].strip():
                if not is_drawn:
                    yield start, found.end()
                mark = ""
        if mark and not is_drawn:
            yield start, len(self._text)

    def links(self) -> None:
        if "](" not in self._text:
            return
        for found in LINK.finditer(self._text):
            start, end = found.span()
            url = target_of(found)
            self._known |= {found.start("angle"), found.start("bare")}
            address(self._gathering, url, "", start, end, is_automatic=bool(found["image"]))
            title = found["double"] or found["single"] or found["round"] or ""
            self._hide(title, "link title", start, end)
            if found["image"]:
                self._hide(found["label"], "image text", *found.span("label"))
                self._cover.append((start, end, _DROPPED))
                continue
            if is_disguised(found["label"], url):
                self._gathering.note("link-disguised", start, end)
            if URL.match(url) is not None and not visible(found["label"]).strip():
                self._gathering.note("link-unseen", start, end)
            self._cover.append((start, found.start("label"), _DROPPED))
            self._cover.append((found.end("label"), end, _DROPPED))

    def definitions(self) -> None:
        if "]:" not in self._text:
            return
        images = {(found[2] or found[1]).casefold() for found in _IMAGE_LABEL.finditer(self._text)}
        for found in _DEFINITION.finditer(self._text):
            start, end = found.span()
            is_automatic = found["label"].casefold() in images
            url = characters(found["target"]).strip("<>")
            self._known |= {found.start("target"), found.start("target") + 1}
            note_address(self._gathering, url, start, end, is_automatic=is_automatic)
            self._hide(found[0].strip(), "reference definition", start, end)
            self._cover.append((start, end, _DROPPED))

    def autolinks(self) -> None:
        for found in _AUTOLINK.finditer(self._text):
            start, end = found.span()
            self._cover.append((start, start + 1, _LITERAL))
            if found.start(1) not in self._known:
                self._known.add(found.start(1))
                note_address(self._gathering, found[1], start, end, is_automatic=False)

    def bare_addresses(self) -> None:
        if "://" not in self._text:
            return
        for found in URL.finditer(self._text):
            start, end = found.span()
            trick = "" if start in self._known else beacon_trick(found[0], is_automatic=False)
            if trick == "link-template":
                self._gathering.note(trick, start, end)

    def masked(self) -> str:
        """The text with parsed parts blanked out; same length."""
        if not self._cover:
            return self._text
        parts: list[str] = []
        at = 0
        for first, end, cover in sorted(self._cover):
            start = max(first, at)
            if end <= start:
                continue
            parts.append(self._text[at:start])
            if cover == _DROPPED:
                parts.append(_DROPPED * (end - start))
            else:
                parts.append(self._text[start:end].replace("<", _LITERAL))
            at = end
        parts.append(self._text[at:])
        return "".join(parts)

    def _hide(self, text: str, where: str, start: int, end: int) -> None:
        if text.strip():
            self._gathering.add(text, where, start, end, is_hidden=True)
