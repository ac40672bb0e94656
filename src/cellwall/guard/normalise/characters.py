"""Classes of characters: invisible, combining, and changed by normalisation."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

from cellwall.guard.ctext.library import byte_set, letters
from cellwall.parsing.matching import Pattern

Ranges = tuple[tuple[int, int], ...]

CONTROLS: Ranges = ((0x00, 0x08), (0x0E, 0x1F), (0x7F, 0x7F))
ZERO_WIDTH: Ranges = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers: letters to Unicode, nothing to the eye
    (0x17B4, 0x17B5),
    (0x180E, 0x180E),
    (0x200B, 0x200D),
    (0x2060, 0x2065),  # word joiner and invisible operators
    (0x206A, 0x206F),
    (0x3164, 0x3164),
    (0xFEFF, 0xFEFF),  # a byte order mark in the middle
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1D173, 0x1D17A),
)
SOFT_HYPHEN: Ranges = ((0xAD, 0xAD),)
BIDI_MARKS: Ranges = ((0x061C, 0x061C), (0x200E, 0x200F))
BIDI_CONTROLS: Ranges = ((0x202A, 0x202E), (0x2066, 0x2069))
TAGS: Ranges = ((0xE0000, 0xE007F),)
SELECTORS: Ranges = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
OTHERS: Ranges = ((0x180B, 0x180D), (0x180F, 0x180F), (0xE0080, 0xE00FF), (0xE01F0, 0xE0FFF))
INVISIBLE: Ranges = (
    *ZERO_WIDTH,
    *SOFT_HYPHEN,
    *BIDI_MARKS,
    *BIDI_CONTROLS,
    *TAGS,
    *SELECTORS,
    *OTHERS,
)

STABLE: Ranges = (
    # Those that NFKC leaves alone and that never join with what stands before them. Whatever is
    # missing here is only looked at more closely; what is here stays so by Unicode's policy.
    *((0x00, 0x9F), (0xA1, 0xA7), (0xA9, 0xA9), (0xAB, 0xAE), (0xB0, 0xB1), (0xB6, 0xB7)),
    *((0xBB, 0xBB), (0xBF, 0x131), (0x14A, 0x17E), (0x180, 0x1C3), (0x1CD, 0x1F0), (0x1F4, 0x2AF)),
    *((0x38E, 0x3A1), (0x3A3, 0x3CF), (0x3FA, 0x482), (0x488, 0x52F), (0x531, 0x556)),
    *((0x559, 0x586), (0x5D0, 0x5EA), (0x600, 0x60F), (0x61B, 0x64A), (0x660, 0x66F)),
    *((0x679, 0x6D5), (0x900, 0x93B), (0x93D, 0x94C), (0x960, 0x983), (0x993, 0x9A8)),
    *((0xE01, 0xE32), (0xE34, 0xE37), (0xE3F, 0xE47), (0xE4C, 0xE5B), (0x10D0, 0x10FB)),
    *((0x13A0, 0x13F5), (0x1E00, 0x1E99), (0x1E9C, 0x1EFF), (0x2010, 0x2010), (0x2012, 0x2016)),
    *((0x2018, 0x2023), (0x2027, 0x2027), (0x2030, 0x2032), (0x2039, 0x203B), (0x20A9, 0x20BF)),
    *((0x2190, 0x222B), (0x2231, 0x2328), (0x232B, 0x2426), (0x24EB, 0x2A0B), (0x3001, 0x3029)),
    *((0x3041, 0x3096), (0x30A0, 0x30FE), (0x3105, 0x312F), (0x3400, 0x9FFC), (0xAC00, 0xD7A3)),
    *((0x1F150, 0x1F169), (0x1F170, 0x1F189), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F6D7)),
    *((0x1F900, 0x1FA53), (0x20000, 0x2A6DD)),
)

MAX_MARKS = 3
"""On one letter; Vietnamese and pointed Hebrew need no more, what is beyond is a flood."""


def re2_class(ranges: Ranges) -> str:
    """Inside of brackets, in RE2's language."""
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


def re_class(ranges: Ranges) -> str:
    """Inside of brackets, in Python's language."""
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)


MARKS = Pattern("\\pM")
HAS_ODD_MARKS = Pattern(f"\\pM{{{MAX_MARKS + 1}}}|[ -~]\\pM")
IS_FLOODED = Pattern(f"\\pM{{{MAX_MARKS + 1}}}")
HAS_STRAY_MARKS = Pattern("[ -~]\\pM")


JOINERS = "\ufe0f\u200d\u200c"
"""Joiners that emoji and some scripts need."""

COMMON = byte_set(
    bytes(
        code for code in range(0x80) if not any(first <= code <= last for first, last in CONTROLS)
    )
)


def uncommon(data: bytes) -> str:
    """Of a text in UTF-8 each character once that is a control or beyond ASCII.

    These few decide which passes a text needs: prose with quotes, dashes and accents is read
    nearly as fast as if it had none.
    """
    return letters(data, COMMON)


_OVERSTRUCK = re.compile("[^\n]\x08")
"""How manuals print bold and underlined letters."""
_COLOURED = re.compile(
    "\x1b(?:\\[[0-?]{0,64}[ -/]{0,8}[@-~]|\\][^\x07\x1b]{0,512}(?:\x07|\x1b\\\\)?)"
)


@cache
def invisible() -> re.Pattern[str]:
    """Matches characters that are not displayed."""
    return re.compile(f"[{re_class(CONTROLS)}{re_class(INVISIBLE)}]+")


def erasing(text: str) -> Iterator[re.Pattern[str]]:
    """Overstrikes and terminal sequences in the text, to be removed one after the other."""
    if "\x08" in text:
        yield _OVERSTRUCK
    if "\x1b" in text:
        yield _COLOURED


UNSTABLE = Pattern(f"[^{re2_class(STABLE)}]+")
"""Matches what normalisation may change: fast where there is little of it."""


@cache
def unstable() -> re.Pattern[str]:
    """The same, faster where there is much of it."""
    return re.compile(f"[^{re_class(STABLE)}]+")


@cache
def flood() -> re.Pattern[str]:
    """Marks beyond the first few on one letter. They also keep normalising from taking quadratic
    time, since it sorts the marks of a letter one by one."""
    ranges: list[tuple[int, int]] = []
    for code in range(0x300, 0x1E950):
        character = chr(code)
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1] = (ranges[-1][0], code)
            else:
                ranges.append((code, code))
    marks = re_class(tuple(ranges))
    # On a plain letter none of them is an accent; on others the first few may belong there.
    return re.compile(
        f"(?<=[\\x00-\\x7f])[{marks}]{{{MAX_MARKS + 1},}}|(?<=[{marks}]{{{MAX_MARKS}}})[{marks}]+"
    )


@cache
def stray_marks() -> re.Pattern[str]:
    """Marks that are left on plain letters when all that belong together have become one: lines
    through and below letters, which a reader looks past and a search does not."""
    return re.compile(
        "(?<=[\x20-\x7e])[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]+"
    )


def places(pattern: Pattern, data: bytes) -> Iterator[tuple[int, int]]:
    """Positions of matches in UTF-8 data, in characters."""
    at = end = 0
    for first, last in pattern.spans(data):
        start = end + len(data[at:first].decode())
        end = start + len(data[first:last].decode())
        at = last
        yield start, end


def those(pattern: re.Pattern[str], letters: str) -> str:
    """The letters that the pattern matches."""
    return "".join(pattern.findall(letters))


def without_surrogates(text: str) -> str:
    """The text with lone surrogates replaced; same length."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character: each character has one that is none of them."""


def as_image(plain: str) -> bytes:
    """A byte for each character."""
    return plain.encode("ascii", "replace")


def lowered(plain: str) -> str:
    """In lower case, character by character: one has a lower case of two characters, and that of
    another depends on where it stands in its word, which may reach beyond what is looked at."""
    if "\u03a3" in plain:
        plain = plain.replace("\u03a3", "\u03c3")
    folded = plain.lower()
    return folded if len(folded) == len(plain) else plain.replace("\u0130", "I").lower()


_FEW_CASED = 6


def cased_of(letters: str) -> str:
    """Those of them beyond ASCII that have a lower case, for `in_lower_case`."""
    pairs = zip(letters, lowered(letters), strict=True)
    return "".join({letter for letter, low in pairs if letter > "\x7f" and low != letter})


def in_lower_case(plain: str, cased: str) -> bytes:
    """`lowered` in UTF-8. `cased`: all letters of it beyond ASCII that have a lower case; while
    they are few it is several times as fast to replace them."""
    if len(cased) > _FEW_CASED:
        return lowered(plain).encode()
    lower = plain.encode().lower()
    for letter in cased:
        lower = lower.replace(letter.encode(), lowered(letter).encode())
    return lower


def is_mark(character: str) -> bool:
    """Whether it can change what stands before it."""
    code = ord(character)
    return (
        unicodedata.category(character)[0] == "M"
        or 0x1160 <= code <= 0x11FF
        or 0xFF9E <= code <= 0xFFDC
        or code > sys.maxunicode
    )
