"""CSS that hides text from a human reader. Pure; no layout, so simple selectors only.

Each way of hiding is one line of `_HIDING` or one small function. Not detected is hiding that needs
a layout: an element that covers another one, a script that hides.

A page of a few kilobytes may have one rule that matches a thousand elements. So a rule keeps only
the properties that `_HIDING` and the functions below read, values are cut to `_MAX_VALUE`, each
value is tested once, and the appearance for one set of rules is computed once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from cellwall.parsing.html.tokens import names

Style = dict[str, str]
"""Properties and values in lower case, without `!important`."""
Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
_MAX_STYLE = 8192
_MAX_VALUE = 200
"""Characters of a value that are kept; each value is matched with a pattern."""
_MAX_CACHED = 4_096
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
# Both functions load a URL that is written as a mere string.
_LOADS_STRINGS = re.compile(r"image-set\(|src\(", re.IGNORECASE)
_STRING = re.compile(r"\"([^\"\n]*+)\"|'([^'\n]*+)'")
_ABSOLUTE_URL = re.compile(r"\s*(?:[a-z][a-z0-9+.-]{0,20}:)?//", re.IGNORECASE)

_IMPORTANT = re.compile(r"!\s*+important")
_CALC = re.compile(r"calc\(\s*+([^()]*+)\)")
_NUMBER = re.compile(r"([+-]?(?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?:e[+-]?\d{1,2})?)(%|[a-z]{1,4})?")
_ZERO = re.compile(r"[+-]?(?:0+(?:\.0*)?|\.0+)(?:%|[a-z]{1,4})?")
_MAX_FAINT = 0.05
"""Opacity up to which text is not seen."""
_FAR_PX = -500.0
_PX_OF = {"": 1.0, "px": 1.0, "pt": 1.33, "em": 16.0, "rem": 16.0, "vw": 12.0, "vh": 8.0, "%": 12.0}
_PX_OF |= {"in": 96.0, "cm": 37.8, "mm": 3.78, "q": 0.945, "pc": 16.0, "ex": 8.0, "ch": 8.0}
_PX_OF |= {"vmin": 8.0, "vmax": 12.0}
_SMALL_PX = 1.0
_MAX_COLOUR_DISTANCE = 24
"""Two colours that differ by no more than this in each channel look the same."""
_HEX_COLOUR = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})")
_RGB = re.compile(r"rgba?\(([^()]{1,80})\)")
_WITH_ALPHA = re.compile(r"(?:rgb|hsl)a?\(([^()]{1,80})\)")
_NAMED_COLOURS: dict[str, Colour] = {
    name: (int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16))
    for name, code in re.findall(
        r"([a-z]+) ([0-9a-f]{6})",
        "white ffffff snow fffafa ivory fffff0 ghostwhite f8f8ff floralwhite fffaf0 "
        "mintcream f5fffa azure f0ffff aliceblue f0f8ff whitesmoke f5f5f5 black 000000 "
        "gray 808080 grey 808080 silver c0c0c0 lightgray d3d3d3 lightgrey d3d3d3 red ff0000 "
        "green 008000 lime 00ff00 blue 0000ff navy 000080 yellow ffff00 orange ffa500 "
        "purple 800080 maroon 800000 teal 008080 aqua 00ffff cyan 00ffff "
        "fuchsia ff00ff magenta ff00ff ",
    )
}

# Declarations


def parse_style(style: str) -> Style:
    """The declarations of a block; a value that hides is not overridden within its block.

    A browser ignores a later declaration whose value is invalid or less important.
    """
    found: Style = {}
    for declaration in _normalise_css(style).lower().split(";"):
        key, _, value = declaration.partition(":")
        key = key.strip()
        if value and key in _READ and not (key in _HIDING and _hides(key, found.get(key, ""))):
            found[key] = shorten(_IMPORTANT.sub("", value))
    return found


def parse_style_attribute(style: str) -> Style:
    """The same for an attribute; one that is too long to be read counts as hiding."""
    return parse_style(style) if len(style) <= _MAX_STYLE else {"display": "none"}


def shorten(value: str) -> str:
    """A value as it is compared, in lower case; no real value that hides is longer."""
    return value.strip()[:_MAX_VALUE].lower()


def linked_urls(css: str) -> list[str]:
    """The URLs that a style sheet or a declaration loads."""
    text = _normalise_css(css[:_MAX_SHEET])
    found = [one[1] or one[2] or one[3] or "" for one in _URL.finditer(text)]
    if _LOADS_STRINGS.search(text) is not None:
        known = set(found)
        strings = (one[1] or one[2] or "" for one in _STRING.finditer(text))
        found += (
            one for one in strings if one not in known and _ABSOLUTE_URL.match(one) is not None
        )
    return [one.strip() for one in found if one.strip()]


def unescape_css(css: str) -> str:
    """CSS as a browser reads it: `content` is shown, and its letters may be escapes."""
    return _normalise_css(css)


def _normalise_css(css: str) -> str:
    css = _COMMENT.sub("", css) if "/*" in css else css
    if "\\" in css:
        css = _ESCAPE.sub(_unescape, css).replace("\\", "")
    return css


def _unescape(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"


# Appearance


class Appearance(NamedTuple):
    """The effect of a style on the element that has it."""

    style: Style
    hidden_by: str
    """The way it hides the element, in a few words; empty if it does not. Colours are apart."""
    colour: Colour | None
    background: Colour | None
    is_inline: bool | None
    """Whether the element is drawn within the line around it; None: the style does not say."""

    @classmethod
    def of(cls, style: Style) -> Appearance:
        return cls(
            style,
            _hiding_of(style),
            _colour(style.get("color", "")),
            _background(style),
            _is_inline(style),
        )


UNSTYLED = Appearance({}, "", None, None, None)


def look_alike(one: Colour, other: Colour) -> bool:
    """Whether text of the one colour on a background of the other is not seen."""
    return all(abs(a - b) <= _MAX_COLOUR_DISTANCE for a, b in zip(one, other, strict=True))


def _hiding_of(style: Mapping[str, str]) -> str:
    if not style:
        return ""
    for key in _HIDING:
        if key in style and (reason := _hides(key, style[key])):
            return reason
    if style.get("position") in ("absolute", "fixed", "relative") and any(
        _is_any_far(style[side])
        for side in ("left", "top", "right", "bottom", "inset")
        if side in style
    ):
        return "off-screen position"
    overflow = " ".join(style.get(key, "") for key in ("overflow", "overflow-x", "overflow-y"))
    if not {"hidden", "clip"}.isdisjoint(overflow.split()) and any(
        _is_small(style[key]) for key in _SIZES if key in style
    ):
        return "no size"
    return ""


@lru_cache(maxsize=_MAX_CACHED)
def _hides(key: str, value: str) -> str:
    test, reason = _HIDING[key]
    return reason if value and test(value) else ""


def _background(style: Mapping[str, str]) -> Colour | None:
    for key in ("background-color", "background"):
        found = _first_colour(style[key]) if key in style else None
        if found is not None:
            return found
    return None


@lru_cache(maxsize=_MAX_CACHED)
def _first_colour(value: str) -> Colour | None:
    return next((found for word in value.split() if (found := _colour(word)) is not None), None)


def _is_inline(style: Mapping[str, str]) -> bool | None:
    if style.get("float") in ("left", "right"):
        return True
    display = style.get("display", "")
    if display.startswith(("inline", "contents", "ruby")):
        return True
    return False if display.startswith(("block", "flow", "flex", "grid", "list", "table")) else None


class StyleSheet(NamedTuple):
    """Rules with one simple selector, by `tag`, `.class`, `#id`, or `tag.class`."""

    rules: dict[str, Style]
    appearances: dict[tuple[str, ...], Appearance]
    """For the selectors that matched together."""

    @classmethod
    def of(cls, blocks: list[str]) -> StyleSheet:
        """All style blocks of a page; a later rule adds to an earlier one."""
        rules: dict[str, Style] = {}
        left = _MAX_RULES
        for block in blocks:
            for selectors, declarations in _blocks(_normalise_css(block[:_MAX_SHEET]).lower()):
                left -= 1
                if left <= 0:
                    return cls(rules, {})
                style = parse_style(declarations)
                if not style:
                    continue
                for selector in selectors.split(","):
                    last = selector.split()[-1:]  # `div .x` hides `.x`, if not everywhere
                    if last and _SELECTOR.fullmatch(last[0]) is not None:
                        rules.setdefault(last[0], {}).update(style)
        return cls(rules, {})

    def appearance_of(self, tag: str, attributes: Mapping[str, str]) -> Appearance:
        """The effect of the rules on an element."""
        if not self.rules:
            return UNSTYLED
        keys = ["*", tag]
        if attributes:
            written = attributes.get("class", "").lower()
            marks = [f".{name}" for name in written.split(None, _MAX_CLASSES)[:_MAX_CLASSES]]
            if "id" in attributes:
                marks.append(f"#{attributes['id'].strip().lower()}")
            keys += marks
            keys += (f"{tag}{mark}" for mark in marks)
        met = tuple(key for key in keys if key in self.rules)
        if not met:
            return UNSTYLED
        appearance = self.appearances.get(met)
        if appearance is None:
            style: Style = {}
            for key in met:
                style.update(self.rules[key])
            appearance = Appearance.of(style)
            if len(self.appearances) < _MAX_RULES:
                self.appearances[met] = appearance
        return appearance


def _blocks(css: str) -> Iterator[tuple[str, str]]:
    """Each innermost block, and the text between it and the brace before it."""
    for found in _BLOCK.finditer(css):
        at = found.start()
        start = max(0, at - _MAX_SELECTORS)
        start = max(start, css.rfind("{", start, at) + 1, css.rfind("}", start, at) + 1)
        yield css[start:at], found[1]


# Values


@lru_cache(maxsize=_MAX_CACHED)
def _colour(value: str) -> Colour | None:
    value = value.strip()
    if value in _NAMED_COLOURS:
        return _NAMED_COLOURS[value]
    if _HEX_COLOUR.fullmatch(value) is not None:
        digits = value[1:]
        if len(digits) < 6:
            digits = "".join(digit * 2 for digit in digits)
        return int(digits[0:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)
    found = _RGB.fullmatch(value)
    numbers = re.findall(r"(\d{1,3})(?:\.\d*)?(%?)", found[1]) if found is not None else []
    if len(numbers) < 3:
        return None
    red, green, blue = (
        min(255, round(int(number) * 2.55) if percent else int(number))
        for number, percent in numbers[:3]
    )
    return red, green, blue


def _is_transparent(value: str) -> bool:
    if value == "transparent":
        return True
    if _HEX_COLOUR.fullmatch(value) is not None and len(value) in (5, 9):
        return value.endswith("0" * (1 if len(value) == 5 else 2))
    found = _WITH_ALPHA.fullmatch(value)
    parts = re.split(r"[,/\s]+", found[1].strip()) if found is not None else []
    return len(parts) == 4 and _is_faint(parts[3])


def _is_faint(value: str) -> bool:
    value = _CALC.sub(r"\1", value).strip()
    if _ZERO.fullmatch(value):
        return True
    found = _NUMBER.fullmatch(value.strip())
    return found is not None and float(found[1]) / (100.0 if found[2] == "%" else 1.0) <= _MAX_FAINT


def _length_px(value: str) -> float | None:
    value = _CALC.sub(r"\1", value).strip()
    if _ZERO.fullmatch(value):
        return 0.0
    found = _NUMBER.fullmatch(value.strip())
    if found is None or (found[2] or "") not in _PX_OF:
        return None
    return float(found[1]) * _PX_OF[found[2] or ""]


def _is_small(value: str) -> bool:
    length = _length_px(value)
    return length is not None and length <= _SMALL_PX


def _is_far(value: str) -> bool:
    length = _length_px(value)
    return length is not None and (length <= _FAR_PX or length >= -20 * _FAR_PX)


def _is_any_far(value: str) -> bool:
    return any(map(_is_far, value.split()))


def _scales_to_nothing(value: str) -> bool:
    return any(_ZERO.fullmatch(part) is not None for part in value.split()[:2])


def _moves_away(value: str) -> bool:
    if re.search(r"scale[xy3d]*\(\s*0(?:\.0*)?\s*[,)]", value) is not None:
        return True
    moves = re.findall(r"translate[xyz3d]*\(([^()]{1,80})\)", value)
    return any(_is_far(part) for move in moves for part in move.split(","))


def _matches(pattern: str) -> Callable[[str], bool]:
    search = re.compile(pattern).search
    return lambda value: search(value) is not None


_HIDING: dict[str, tuple[Callable[[str], bool], str]] = {
    "display": (lambda value: value == "none", "display:none"),
    "visibility": (lambda value: value in ("hidden", "collapse"), "visibility"),
    "content-visibility": (lambda value: value in ("hidden", "collapse"), "visibility"),
    "mso-hide": (lambda value: value == "all", "display:none"),  # Outlook
    "opacity": (_is_faint, "opacity"),
    "filter": (_matches(r"opacity\(\s*+0*+(?:\.0*+)?%?\s*+\)"), "opacity"),
    "font-size": (_is_small, "font size"),
    "font": (_matches(r"\A(?:.*\s)?[01](?:px|pt)?(?:/|\s)"), "font size"),
    "color": (_is_transparent, "transparent colour"),
    "-webkit-text-fill-color": (_is_transparent, "transparent colour"),
    "text-indent": (_is_far, "off-screen position"),
    "margin-left": (_is_far, "off-screen position"),
    "margin-top": (_is_far, "off-screen position"),
    "margin": (_is_any_far, "off-screen position"),
    "transform": (_moves_away, "transform"),
    "scale": (_scales_to_nothing, "transform"),
    "translate": (_is_any_far, "transform"),
    "clip": (_matches(r"rect\((?:[01](?:px)?[\s,]*){4}\)"), "clip"),
    "clip-path": (_matches(r"(?:circle|ellipse)\(0|inset\((?:[5-9]\d|100)%"), "clip"),
}
"""By property: a test of its value, and the reason that a report names."""
_SIZES = names(
    "max-height height max-width width max-block-size block-size max-inline-size inline-size"
)
_READ = (
    frozenset(_HIDING)
    | _SIZES
    | names(
        "position left top right bottom inset overflow overflow-x overflow-y "
        "background background-color float"
    )
)
"""All properties that are read; a sheet of a thousand others costs nothing for each element."""
