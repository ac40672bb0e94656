"""Colours of CSS as the eye tells them apart. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

Colour = tuple[int, int, int]
_NEAR = 24
"""Two colours that differ by so little in each part are one for the eye."""
NUMBER = re.compile(r"([+-]?(?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}))(%|[a-z]{1,4})?")
FAINT = 0.05
"""Of what lets the ground through, the share from which on it is seen."""
_MAX_KEPT = 4_096
_HEX_COLOUR = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})")
_RGB = re.compile(r"rgba?\(([^()]{1,80})\)")
_NAMED: dict[str, Colour] = {
    "white": (255, 255, 255),
    "snow": (255, 250, 250),
    "ivory": (255, 255, 240),
    "ghostwhite": (248, 248, 255),
    "floralwhite": (255, 250, 240),
    "mintcream": (245, 255, 250),
    "azure": (240, 255, 255),
    "aliceblue": (240, 248, 255),
    "whitesmoke": (245, 245, 245),
    "black": (0, 0, 0),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
    "silver": (192, 192, 192),
    "lightgray": (211, 211, 211),
    "lightgrey": (211, 211, 211),
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "lime": (0, 255, 0),
    "blue": (0, 0, 255),
    "navy": (0, 0, 128),
    "yellow": (255, 255, 0),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
    "maroon": (128, 0, 0),
    "teal": (0, 128, 128),
    "aqua": (0, 255, 255),
    "cyan": (0, 255, 255),
    "fuchsia": (255, 0, 255),
    "magenta": (255, 0, 255),
}
WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)


@lru_cache(maxsize=_MAX_KEPT)
def colour(value: str) -> Colour | None:
    """One that is written plainly; None for what is not known."""
    value = value.strip()
    if not value:
        return None
    if value in _NAMED:
        return _NAMED[value]
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


def is_clear(value: str) -> bool:
    """Whether a colour lets all through."""
    if value == "transparent":
        return True
    if _HEX_COLOUR.fullmatch(value) is not None and len(value) in (5, 9):
        return value.endswith("0" * (1 if len(value) == 5 else 2))
    found = _RGB.fullmatch(value)
    parts = re.split(r"[,/\s]+", found[1].strip()) if found is not None else []
    return len(parts) == 4 and amount(parts[3]) <= FAINT


def look_alike(one: Colour, other: Colour) -> bool:
    """Whether text of the one colour on the other is not seen."""
    return all(abs(a - b) <= _NEAR for a, b in zip(one, other, strict=True))


def amount(value: str) -> float:
    """A share between nothing and all; all if it is none."""
    found = NUMBER.fullmatch(value.strip())
    if found is None:
        return 1.0
    return float(found[1]) / (100.0 if found[2] == "%" else 1.0)
