"""Which styles keep text from people's eyes. Pure; no browser, so simple selectors only.

Each way of hiding is one line of `_WAYS` or one small function: what is looked at can be read
off here. Not found is what needs a layout: an element below another one, a script that hides.

A page of a few kilobytes may have one rule and a thousand elements that it is about. So of a rule
only what `_WAYS` and its kin read is kept, its values are short, each is tested once, and what the
same rules say is worked out once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from cellwall.parsing.html.colours import FAINT, NUMBER, Colour, amount, colour, is_clear
from cellwall.parsing.html.elements import names

Style = dict[str, str]
"""Properties and values in small letters, without `!important`."""

_MAX_STYLE = 8192
_MAX_VALUE = 200
"""Characters of a value that are read; each is held against a pattern."""
_MAX_TESTED = 4_096
_MAX_SELECTORS = 2_000
_MAX_CLASSES = 20
_MAX_RULES = 5_000
_MAX_SHEET = 1 << 20
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})[ \t\n\r\f]?")
_BLOCK = re.compile(r"\{([^{}]*+)(?:\}|\Z)")
_SELECTOR = re.compile(r"(?P<tag>[a-z][a-z0-9]*|\*)?(?P<mark>[.#][\w-]{1,100})?", re.IGNORECASE)
_URL = re.compile(
    r"(?:url\(\s*+|@import\s++(?=[\"']))(?:\"([^\"]*+)|'([^']*+)|([^\"')\s]++))", re.IGNORECASE
)
# Both load what stands in them as a mere string.
_LOADS_STRINGS = re.compile(r"image-set\(|src\(", re.IGNORECASE)
_STRING = re.compile(r"\"([^\"\n]*+)\"|'([^'\n]*+)'")
_ADDRESS = re.compile(r"\s*(?:[a-z][a-z0-9+.-]{0,20}:)?//", re.IGNORECASE)

_FAR_PX = -500.0
_PX_OF = {"": 1.0, "px": 1.0, "pt": 1.33, "em": 16.0, "rem": 16.0, "vw": 12.0, "vh": 8.0, "%": 12.0}
_SMALL_PX = 1.0


def parse(style: str) -> Style:
    """The declarations of a `style`; the last one of a property counts."""
    flat = _flat(style[:_MAX_STYLE])
    found: Style = {}
    for declaration in flat.split(";"):
        key, _, value = declaration.partition(":")
        key = key.strip()
        if value and key in _READ:
            found[key] = short(value.replace("!important", ""))
    return found


def short(value: str) -> str:
    """A value as it is read, in small letters; no real one that hides is longer."""
    return value.strip()[:_MAX_VALUE].lower()


def way_of_hiding(style: Mapping[str, str]) -> str:
    """How it hides what it is on, in a few words; empty if it does not. Colours are apart."""
    if not style:
        return ""
    for key in _WAYS:
        if key in style and (way := _way(key, style[key])):
            return way
    if style.get("position") in ("absolute", "fixed", "relative") and any(
        _is_far(style[side]) for side in ("left", "top", "right", "bottom") if side in style
    ):
        return "off-screen position"
    if _clips(style.get("overflow", style.get("overflow-y", ""))) and any(
        _is_small(style[key])
        for key in ("max-height", "height", "max-width", "width")
        if key in style
    ):
        return "no size"
    return ""


@lru_cache(maxsize=_MAX_TESTED)
def _way(key: str, value: str) -> str:
    test, way = _WAYS[key]
    return way if test(value) else ""


def background(style: Mapping[str, str]) -> Colour | None:
    """The ground that a style sets, if it is one plain colour."""
    for key in ("background-color", "background"):
        found = _first_colour(style[key]) if key in style else None
        if found is not None:
            return found
    return None


@lru_cache(maxsize=_MAX_TESTED)
def _first_colour(value: str) -> Colour | None:
    return next((found for word in value.split() if (found := colour(word)) is not None), None)


def is_inline(style: Mapping[str, str]) -> bool | None:
    """Whether it puts an element into the line around it; None if it does not say."""
    if style.get("float") in ("left", "right"):
        return True
    display = style.get("display", "")
    if display.startswith(("inline", "contents", "ruby")):
        return True
    return False if display.startswith(("block", "flow", "flex", "grid", "list", "table")) else None


class Look(NamedTuple):
    """What a style makes of the element that it is on."""

    style: Style
    way: str
    colour: Colour | None
    ground: Colour | None
    is_inline: bool | None

    @classmethod
    def of(cls, style: Style) -> Look:
        return cls(
            style,
            way_of_hiding(style),
            colour(style.get("color", "")),
            background(style),
            is_inline(style),
        )


PLAIN = Look({}, "", None, None, None)


def addresses(css: str) -> list[str]:
    """What a style loads."""
    flat = _flat_case(css[:_MAX_SHEET])
    found = [one[1] or one[2] or one[3] or "" for one in _URL.finditer(flat)]
    if _LOADS_STRINGS.search(flat) is not None:
        known = set(found)
        strings = (one[1] or one[2] or "" for one in _STRING.finditer(flat))
        found += (one for one in strings if one not in known and _ADDRESS.match(one) is not None)
    return [one.strip() for one in found if one.strip()]


def unescaped(css: str) -> str:
    """A style as a browser reads it: `content` is shown, and its letters may be numbers."""
    return _flat_case(css)


class Sheet(NamedTuple):
    """Rules with one simple selector, by `tag`, `.class`, `#id`, or `tag.class`."""

    rules: dict[str, Style]
    looks: dict[tuple[str, ...], Look]
    """Of the rules that were found together."""

    @classmethod
    def of(cls, blocks: list[str]) -> Sheet:
        """Of all style blocks of a page; a later rule adds to an earlier one."""
        rules: dict[str, Style] = {}
        left = _MAX_RULES
        for block in blocks:
            for selectors, declarations in _blocks(_flat(block[:_MAX_SHEET])):
                left -= 1
                if left <= 0:
                    return cls(rules, {})
                style = parse(declarations)
                if not style:
                    continue
                for selector in selectors.split(","):
                    last = selector.split()[-1:]  # `div .x` hides `.x`, if not everywhere
                    if last and _SELECTOR.fullmatch(last[0]) is not None:
                        rules.setdefault(last[0], {}).update(style)
        return cls(rules, {})

    def look_of(self, tag: str, attributes: Mapping[str, str]) -> Look:
        """What the rules say of an element."""
        if not self.rules:
            return PLAIN
        keys = ["*", tag]
        if attributes:
            written = attributes.get("class", "").lower()
            names = [f".{name}" for name in written.split(None, _MAX_CLASSES)[:_MAX_CLASSES]]
            if "id" in attributes:
                names.append(f"#{attributes['id'].strip().lower()}")
            keys += names
            keys += (f"{tag}{name}" for name in names)
        met = tuple(key for key in keys if key in self.rules)
        if not met:
            return PLAIN
        look = self.looks.get(met)
        if look is None:
            style: Style = {}
            for key in met:
                style.update(self.rules[key])
            look = Look.of(style)
            if len(self.looks) < _MAX_RULES:
                self.looks[met] = look
        return look


def _blocks(css: str) -> Iterator[tuple[str, str]]:
    """Each innermost block, and what stands between it and the brace before it."""
    for found in _BLOCK.finditer(css):
        at = found.start()
        start = max(0, at - _MAX_SELECTORS)
        start = max(start, css.rfind("{", start, at) + 1, css.rfind("}", start, at) + 1)
        yield css[start:at], found[1]


def _flat(css: str) -> str:
    return _flat_case(css).lower()


def _flat_case(css: str) -> str:
    css = _COMMENT.sub("", css) if "/*" in css else css
    if "\\" in css:
        css = _ESCAPE.sub(_character, css).replace("\\", "")
    return css


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"


def _length_px(value: str) -> float | None:
    found = NUMBER.fullmatch(value.strip())
    if found is None or (found[2] or "") not in _PX_OF:
        return None
    return float(found[1]) * _PX_OF[found[2] or ""]


def _is_small(value: str) -> bool:
    length = _length_px(value)
    return length is not None and length <= _SMALL_PX


def _is_far(value: str) -> bool:
    length = _length_px(value)
    return length is not None and (length <= _FAR_PX or length >= -20 * _FAR_PX)


def _clips(value: str) -> bool:
    return value in ("hidden", "clip")


def _is_faint(value: str) -> bool:
    return amount(value) <= FAINT


def _scales_away(value: str) -> bool:
    if re.search(r"scale[xy3d]*\(\s*0(?:\.0*)?\s*[,)]", value) is not None:
        return True
    moves = re.findall(r"translate[xyz3d]*\(([^()]{1,80})\)", value)
    return any(_is_far(part) for move in moves for part in move.split(","))


_Test = Callable[[str], bool]
_WAYS: dict[str, tuple[_Test, str]] = {
    "display": (lambda value: value == "none", "display:none"),
    "visibility": (lambda value: value in ("hidden", "collapse"), "visibility"),
    "content-visibility": (lambda value: value == "hidden", "visibility"),
    "mso-hide": (lambda value: value == "all", "display:none"),  # of mail programs
    "opacity": (_is_faint, "opacity"),
    "filter": (
        lambda value: re.search(r"opacity\(\s*+0*+(?:\.0*+)?%?\s*+\)", value) is not None,
        "opacity",
    ),
    "font-size": (_is_small, "font size"),
    "font": (
        lambda value: re.match(r"(?:.*\s)?[01](?:px|pt)?(?:/|\s)", value) is not None,
        "font size",
    ),
    "color": (is_clear, "clear colour"),
    "-webkit-text-fill-color": (is_clear, "clear colour"),
    "text-indent": (_is_far, "off-screen position"),
    "margin-left": (_is_far, "off-screen position"),
    "margin-top": (_is_far, "off-screen position"),
    "transform": (_scales_away, "transform"),
    "clip": (
        lambda value: re.search(r"rect\((?:[01](?:px)?[\s,]*){4}\)", value) is not None,
        "clip",
    ),
    "clip-path": (
        lambda value: (
            re.search(r"(?:circle|ellipse)\(0|inset\((?:[5-9]\d|100)%", value) is not None
        ),
        "clip",
    ),
}
_READ = frozenset(_WAYS) | names(
    "position left top right bottom overflow overflow-y max-height height max-width width "
    "background background-color float"
)
"""All that is looked at; a sheet of a thousand other properties costs nothing for each element."""
