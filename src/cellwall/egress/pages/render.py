"""Fetched HTML rendered as Markdown or plain text (NET-4). Pure.

markdownify writes the Markdown from the outline of a page. That can take one or two seconds of
processor time, so `render` must not be called on an event loop.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urljoin

from bs4 import BeautifulSoup
from bs4.element import NavigableString, Tag
from markdownify import ATX, MarkdownConverter

from cellwall.egress.pages.outline import OutlineEvent, PageOutline, outline
from cellwall.parsing.html.tokens import names

PageForm = Literal["markdown", "text", "raw"]

_MAX_LINK = 2048
_MAX_FENCE = 64
_LINK_SCHEMES = ("http://", "https://", "mailto:")
_LINK_SAFE = "/:?#@!$&'*+,;=%~[]"
_BACKTICKS = re.compile(r"`{3,}")
# Line breaks before and after an element, in plain text.
_BREAKS = dict.fromkeys(names("p pre blockquote table hr h1 h2 h3 h4 h5 h6 dl"), 2) | dict.fromkeys(
    names("div ul ol li dt dd tr caption br"), 1
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text for the reader."""

    text: str
    is_cut: bool


def render(page: str, *, form: PageForm, url: str, is_xml: bool = False) -> Rendered:
    """HTML in the requested form; `url` is the base of its links."""
    if form == "raw":
        return Rendered(page, is_cut=False)

    def link(base: str, href: str) -> str:
        return absolute_link(join_url(url, base), href)

    content = outline(page, link=link, is_xml=is_xml)
    text = _markdown(content) if form == "markdown" else _text(content)
    return Rendered(text, content.is_cut)


def absolute_link(url: str, href: str) -> str:
    """The target of a link, in characters that cannot end a Markdown destination; else empty.

    Only web and mail addresses: `javascript:` and `data:` hold a program or a page of their own.
    """
    joined = join_url(url, href)
    if not joined.lower().startswith(_LINK_SCHEMES):
        return ""
    target = quote(joined, safe=_LINK_SAFE, errors="replace")
    return target if len(target) <= _MAX_LINK else ""


def join_url(url: str, href: str) -> str:
    """`urljoin` without its errors; empty where the result is too long or malformed."""
    if len(href) > _MAX_LINK:
        return ""
    try:
        return urljoin(url, href)
    except ValueError:
        return ""


def _markdown(content: PageOutline) -> str:
    events = content.events
    if content.title and not any(event.word == "h1" and event.kind == "open" for event in events):
        heading = (
            OutlineEvent("open", "h1"),
            OutlineEvent("text", content.title),
            OutlineEvent("close", "h1"),
        )
        events = heading + events
    return _Markdown().convert_soup(_tree(events)).strip()


def _tree(events: Sequence[OutlineEvent]) -> BeautifulSoup:
    """Built node by node: no lenient parser reads text from a stranger."""
    soup = BeautifulSoup("", "html.parser")
    open_tags: list[Tag] = [soup]
    for event in events:
        match event.kind:
            case "text":
                open_tags[-1].append(NavigableString(event.word))
            case "close":
                open_tags.pop()
            case "single":
                open_tags[-1].append(Tag(name=event.word))
            case "open":
                tag = Tag(name=event.word)
                if event.extra:
                    tag["href" if event.word == "a" else "value"] = event.extra
                open_tags[-1].append(tag)
                open_tags.append(tag)
    return soup


class _Markdown(MarkdownConverter):
    """Without the methods that visit all siblings of each node, or trust a fixed code fence."""

    def __init__(self) -> None:
        super().__init__(
            heading_style=ATX,
            bullets="-",
            # `snake_case` stays as it was written.
            escape_asterisks=False,
            escape_underscores=False,
            strip_pre=None,
        )

    def convert_li(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  # the library's
        number = el.get("value")
        bullet = f"{number}. " if number else "- "
        lines = text.strip().split("\n")
        indent = " " * len(bullet)
        rest = [f"{indent}{line}" if line else "" for line in lines[1:]]
        return "\n".join([bullet + lines[0], *rest]) + "\n" if lines[0] else "\n"

    def convert_tr(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  # the library's
        cells = sum(isinstance(cell, Tag) and cell.name in ("td", "th") for cell in el.contents)
        before = el.previous_sibling
        while before is not None and not (isinstance(before, Tag) and before.name == "tr"):
            before = before.previous_sibling
        row = f"|{text}\n"
        return row if before is not None or not cells else f"{row}|{' --- |' * cells}\n"

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  # the library's
        cell = text.strip().replace("\n", " ").replace("|", "\\|")
        return f" {cell} |"

    convert_th = convert_td

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  # the library's
        longest = max((len(fence_run) for fence_run in _BACKTICKS.findall(text)), default=2)
        fence = "`" * (min(longest, _MAX_FENCE) + 1)
        text = text.strip("\n")
        return f"\n\n{fence}\n{text}\n{fence}\n\n" if text.strip() else ""


def _text(content: PageOutline) -> str:
    """Plain text: one line per line, an empty line between blocks, code unchanged."""
    lines = _LineWriter()
    if content.title:
        lines.put(content.title)
        lines.end(2)
    for event in content.events:
        if event.kind == "text":
            lines.put(event.word)
        elif event.word in ("td", "th"):
            lines.put("\t" if event.kind == "close" else "")
        elif event.word in _BREAKS:
            lines.end(_BREAKS[event.word])
            lines.is_code = (event.word, event.kind) == ("pre", "open")
            if (event.word, event.kind) == ("li", "open"):
                lines.mark = f"{event.extra}. " if event.extra else "- "
    return lines.text()


class _LineWriter:
    """Line breaks are held back until text follows, so that several in a row count once."""

    def __init__(self) -> None:
        self.mark = ""
        """A list marker for the next text."""
        self.is_code = False
        self._pieces: list[str] = []
        self._breaks = 0

    def put(self, text: str) -> None:
        is_new = self._breaks or self.mark or not self._pieces
        if is_new and not self.is_code:
            text = text.lstrip()
        if text:
            self._pieces += ["\n" * self._breaks, self.mark, text]
            self._breaks, self.mark = 0, ""

    def end(self, breaks: int) -> None:
        if self._pieces and not self.mark:
            self._breaks = max(self._breaks, breaks)

    def text(self) -> str:
        lines = "".join(self._pieces).split("\n")
        return "\n".join(line.rstrip() for line in lines).strip("\n")
