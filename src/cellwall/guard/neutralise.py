"""Removes attacks from a text and keeps the rest (GRD-3).

A rule seldom matches the whole attack, and half an instruction still instructs. So a likely attack
is removed with its sentence, also across wrapped lines; a clear one with the rest of its paragraph,
and with the paragraph that a colon introduces. A note states how many characters were removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_REACH = 2000
"""Maximum extension to each side, in characters."""
# Sentence ends: Latin and Arabic, then Chinese and Japanese.
_WIDE = "\u3002\uff01\uff1f"
_QUOTES = "'\"\u201d\u00bb)\\]"
_STOP = re.compile(rf"[.!?\u061f][{_QUOTES}]*(?=\s|$)|[{_WIDE}][{_QUOTES}]*|\n")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|mr|mrs|ms|dr|prof|vs|cf|no|nr|st|bzw|z\.b|ca|approx|[a-z]))\.$",
    re.IGNORECASE,
)
# A line that continues the sentence of the previous line, after quote and list markers.
_GOES_ON = re.compile(r"(?:[ \t>|*]|<br */?>)*[a-z\u00df-\u00ff\u0430-\u044f]")
_BLANK_LINE = re.compile(r"\n(?:[ \t>|]|<br */?>)*\n")
_INTRODUCED = re.compile(r":[ \t*_]*(?:<br */?>)?\s*\Z")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """A span to remove, its category, and whether it is clearly an attack."""

    span: Span
    what: str
    is_clear: bool = False


def removal_note(start: int, end: int, what: str) -> str:
    """The note that replaces a span."""
    return f"[{end - start} characters removed: {what}]"


def remove(text: str, found: Iterable[Removal]) -> str:
    """The text without the spans and their surroundings; each gap names its category."""
    parts: list[str] = []
    at = 0
    for (start, end), what in _merged((_extent(text, each), each.what) for each in found):
        parts += [text[at:start], removal_note(start, end, what)]
        at = end
    return "".join([*parts, text[at:]])


def _extent(text: str, found: Removal) -> Span:
    start, end = found.span
    begin, last = _begin(text, start), _end(text, start, end)
    if found.is_clear:
        last = _paragraph(text, last)
    return begin, last


def _begin(text: str, start: int) -> int:
    """Start of the sentence, or the limit if none is within reach."""
    least = max(0, start - _REACH)
    begin = least
    for stop in _STOP.finditer(text, least, start):
        if _is_end(text, stop):
            begin = stop.end()
    while begin < start and text[begin].isspace():
        begin += 1
    return begin


def _end(text: str, start: int, end: int) -> int:
    most = min(len(text), end + _REACH)
    # The match itself may end with the full stop.
    for stop in _STOP.finditer(text, max(start, end - 1), most):
        if stop.end() >= end and _is_end(text, stop):
            return max(end, stop.start() if stop[0] == "\n" else stop.end())
    return most


def _is_end(text: str, stop: re.Match[str]) -> bool:
    if stop[0] == "\n":
        return _GOES_ON.match(text, stop.end()) is None
    if stop[0][0] in _WIDE:
        return True
    if _ABBREVIATION.search(text, max(0, stop.start() - 12), stop.start() + 1):
        return False
    after = text[stop.end() : stop.end() + 3].lstrip(" \t")
    return not after[:1].islower()


def _paragraph(text: str, at: int) -> int:
    """End of the paragraph, or of the next one if this paragraph ends with a colon."""
    most = min(len(text), at + _REACH)
    for blank in _BLANK_LINE.finditer(text, max(0, at - 1), most):
        if _INTRODUCED.search(text, max(0, blank.start() - 16), blank.start()) is None:
            return max(at, blank.start())
    return max(at, len(text[:most].rstrip("\n")))


def _merged(spans: Iterable[tuple[Span, str]]) -> list[tuple[Span, str]]:
    merged: list[tuple[Span, str]] = []
    for (start, end), what in sorted(spans):
        if merged and start <= merged[-1][0][1]:
            (first, last), told = merged[-1]
            both = told if what in told.split(", ") else f"{told}, {what}"
            merged[-1] = ((first, max(last, end)), both)
        else:
            merged.append(((start, end), what))
    return merged
