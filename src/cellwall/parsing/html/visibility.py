"""The open elements of a page, and the one decision whether a human reader sees their text. Pure.

The guard and the fetched pages both ask here. The guard reads hidden text as well and only reports
that it is hidden, so a guess costs it nothing. A fetched page leaves hidden text out, so it asks
for certainty: style sheets are matched by their last simple selector only, white text may stand on
a picture, and a collapsed box opens with a click.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cellwall.parsing.html.styles import (
    BLACK,
    UNSTYLED,
    WHITE,
    Appearance,
    Colour,
    Style,
    StyleSheet,
    look_alike,
    parse_style_attribute,
    shorten,
)
from cellwall.parsing.html.tokens import (
    BLOCK,
    ENDS_PARAGRAPH,
    FORMATTING,
    IMPLIED_ENDS,
    MAY_HIDE,
    PARAGRAPH_END,
    RECONSTRUCTED,
    TABLE,
    UNSEEN_ELEMENTS,
    VOID,
    ImpliedEnd,
    Token,
    characters,
)

MAX_OPEN = 256
_MAX_CARRIED = 16
"""Further formatting elements that hide beyond their block hide until the block around ends."""
BACKGROUND_COLOUR = "background colour"
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def plain(text: str) -> str:
    """Text with its character references resolved, and without control characters."""
    return _CONTROLS.sub("", characters(text))


class Element(NamedTuple):
    """An element of a page as its reader sees it."""

    name: str
    is_inline: bool = True
    """Whether the text before, inside and behind it stands on the same line."""
    hidden_by: str = ""
    """How the element, or one around it, hides its text; empty if the text is seen."""
    is_surely_hidden: bool = False
    """Whether the page itself says so, without a guess about style sheets or pictures."""
    colour: Colour = BLACK
    background: Colour = WHITE
    has_default_colours: bool = True
    """Whether the page set neither colour."""
    hides: bool = False
    """Whether the element itself hides, not one around it."""
    surely_hides: bool = False


class OpenElements:
    """The stack of open elements, kept as browsers do: pages omit end tags, and misnest them."""

    def __init__(
        self,
        *,
        sheet: StyleSheet | None = None,
        omitted: frozenset[str] = frozenset(),
        is_xml: bool = False,
        on_close: Callable[[Element], None] = lambda _: None,
    ) -> None:
        """`omitted` elements count as surely hidden; `on_close` gets each element that ends."""
        self._sheet = sheet
        self._omitted = omitted
        self._may_hide = MAY_HIDE | omitted
        self._is_xml = is_xml
        self._on_close = on_close
        self._stack = [Element("")]
        self._depths: defaultdict[str, list[int]] = defaultdict(list)
        """Of the open elements by name; with `_walls` and `_tables` no search is needed."""
        self._walls: list[int] = []
        """Depths of elements out of which a formatting element's end tag does not reach."""
        self._tables: list[int] = []
        self._carried: list[tuple[int, Element, Element]] = []
        """Depth, formatting element, and the element at that depth before; see `_carry`."""
        self._deeper: Counter[str] = Counter()
        """Open elements below `MAX_OPEN`: only their number is kept."""

    @property
    def depth(self) -> int:
        """How many elements are on the stack."""
        return len(self._stack) - 1

    @property
    def current(self) -> Element:
        """The innermost element of the stack."""
        return self._stack[-1]

    def start(self, token: Token) -> Element:
        """Open the element of a start tag; the elements that it ends are closed before."""
        name = token.word
        closed: list[Element] = []
        # Browsers ignore the parts of a table outside of a table: they end nothing there.
        if name in IMPLIED_ENDS and (name not in TABLE or self._depths["table"]):
            closed += self._end_implied(IMPLIED_ENDS[name])
        if name in ENDS_PARAGRAPH:
            closed += self._end_implied(PARAGRAPH_END)
        element = self._open(token)
        if name not in TABLE:
            self._carry(each for each in closed if each.name != name)
        return element

    def _open(self, token: Token) -> Element:
        name = token.word
        element = self._judge(name, token.attributes)
        if name in VOID or (self._is_xml and token.is_closed):
            return element
        if self.depth >= MAX_OPEN:
            # What is hidden below this depth hides everything until the depth is less again.
            self._deeper[name] += 1
            above = self._stack[-1]
            self._stack[-1] = above._replace(
                hidden_by=above.hidden_by or element.hidden_by,
                is_surely_hidden=element.is_surely_hidden,
            )
            return element
        depth = len(self._stack)
        self._stack.append(element)
        self._depths[name].append(depth)
        if name not in FORMATTING:
            self._walls.append(depth)
        if name in TABLE:
            self._tables.append(depth)
        return element

    def end(self, name: str) -> Element | None:
        """Close the innermost element of that name; None if there is none that its tag reaches."""
        if self._deeper[name]:
            self._deeper[name] -= 1
            return Element(name, name not in BLOCK)
        depths = self._depths.get(name)
        if not depths:
            self._end_carried(name)
            return None
        # Not out of the block around: `<b><p hidden>x</b>y` would show the y.
        walls = self._walls if name in FORMATTING else () if name in TABLE else self._tables
        if walls and walls[-1] > depths[-1]:
            return None
        *closed, ended = self._close_down_to(depths[-1])
        if name not in TABLE:
            self._carry(closed)
        return ended

    def close(self) -> None:
        """Close the elements that the page left open."""
        self._close_down_to(1)

    def _carry(self, closed: Iterable[Element]) -> None:
        """Keep hiding what a formatting element hides that its own end tag has not ended.

        Browsers open it again behind its block: in `<div><b hidden></div>x` the x is not shown.
        """
        for element in closed:
            if element.hides and element.name in RECONSTRUCTED:
                top = self._stack[-1]
                if len(self._carried) < _MAX_CARRIED:
                    self._carried.append((len(self._stack) - 1, element, top))
                self._stack[-1] = top._replace(
                    hidden_by=top.hidden_by or element.hidden_by,
                    is_surely_hidden=top.is_surely_hidden or element.surely_hides,
                    colour=element.colour,
                    background=element.background,
                    has_default_colours=element.has_default_colours,
                )

    def _end_carried(self, name: str) -> None:
        if self._carried and self._carried[-1][1].name == name:
            depth, _, before = self._carried.pop()
            if depth == len(self._stack) - 1:
                self._stack[depth] = before

    def _end_implied(self, implied: ImpliedEnd) -> list[Element]:
        wall = max(
            (self._depths[name][-1] for name in implied.within if self._depths[name]), default=0
        )
        outermost = len(self._stack)
        for name in implied.ends:
            depths = self._depths[name]
            if depths and depths[-1] > wall:
                outermost = min(outermost, depths[bisect_right(depths, wall)])
        return self._close_down_to(outermost)

    def _close_down_to(self, depth: int) -> list[Element]:
        """Pop elements; returned with the carried ones, the outermost last."""
        popped: list[Element] = []
        while len(self._stack) > depth:
            closed = self._stack.pop()
            at = len(self._stack)
            self._deeper.clear()
            self._depths[closed.name].pop()
            for depths in (self._walls, self._tables):
                if depths and depths[-1] == at:
                    depths.pop()
            self._on_close(closed)
            popped.append(closed)
        carried: list[Element] = []
        while self._carried and self._carried[-1][0] >= len(self._stack):
            carried.append(self._carried.pop()[1])
        return [*carried, *popped]

    def _judge(self, name: str, attributes: Mapping[str, str]) -> Element:
        above = self._stack[-1]
        matched = UNSTYLED if self._sheet is None else self._sheet.appearance_of(name, attributes)
        style = _own_style(attributes)
        look = _with_attributes(matched, name, attributes, style) if attributes else matched
        is_inline = name not in BLOCK if look.is_inline is None else look.is_inline
        if look is UNSTYLED and not attributes and name not in self._may_hide:
            return above._replace(name=name, is_inline=is_inline, hides=False, surely_hides=False)
        colour = look.colour or above.colour
        background = look.background or above.background
        has_default_colours = above.has_default_colours and not (look.colour or look.background)
        by_markup, is_sure = _hidden_by_markup(name, attributes)
        own = by_markup or look.hidden_by
        has_own_colours = look.colour is not None or look.background is not None
        if not own and has_own_colours and look_alike(colour, background):
            own = BACKGROUND_COLOUR
        hidden_by = above.hidden_by or own
        if not hidden_by and not has_default_colours and look_alike(colour, background):
            hidden_by = BACKGROUND_COLOUR
        elif hidden_by == BACKGROUND_COLOUR and not look_alike(colour, background):
            hidden_by = ""  # an element inside that sets another colour is seen again
        if name == "summary" and above.name == "details" and hidden_by == "collapsed details":
            hidden_by = ""
        surely_hides = is_sure or name in self._omitted or _hides_by_itself(style)
        return Element(
            name,
            is_inline,
            hidden_by,
            above.is_surely_hidden or surely_hides,
            colour,
            background,
            has_default_colours,
            bool(own),
            surely_hides,
        )


def _own_style(attributes: Mapping[str, str]) -> Style:
    return parse_style_attribute(plain(attributes["style"])) if "style" in attributes else {}


def _with_attributes(
    matched: Appearance, name: str, attributes: Mapping[str, str], own: Style
) -> Appearance:
    """The rules of the sheets, overridden by the element's own attributes."""
    style: Style = {}
    if name in ("font", "basefont") and "color" in attributes:
        style["color"] = shorten(plain(attributes["color"]))
    if "bgcolor" in attributes:
        style["background"] = shorten(plain(attributes["bgcolor"]))
    style |= matched.style
    style |= own
    return Appearance.of(style) if style != matched.style else matched


def _hidden_by_markup(name: str, attributes: Mapping[str, str]) -> tuple[str, bool]:
    """How the element's name or attributes hide it, and whether that is certain."""
    if name in UNSEEN_ELEMENTS:
        return f"{UNSEEN_ELEMENTS[name]}: {name}", True
    if "hidden" in attributes:
        return "hidden attribute", True
    if plain(attributes.get("aria-hidden", "")).strip().lower() == "true":
        return "aria-hidden", True
    if name == "input" and plain(attributes.get("type", "")).strip().lower() == "hidden":
        return "hidden input", True
    if name in ("details", "dialog") and "open" not in attributes:
        return f"collapsed {name}", False
    if name == "font" and attributes.get("size", "").strip() in ("0", "-7"):
        return "font size", False
    return "", False


def _hides_by_itself(own: Style) -> bool:
    """Whether the element's own style hides it, whatever stands around it."""
    if not own:
        return False
    look = Appearance.of(own)
    return bool(look.hidden_by) or (
        look.colour is not None
        and look.background is not None
        and look_alike(look.colour, look.background)
    )
