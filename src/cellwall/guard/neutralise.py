"""Takes what was found out of a text and keeps the rest (GRD-3).

The words that a rule knows are seldom the whole of it, and half an instruction still instructs. So
a likely attack goes by the sentence, over the ends of lines as far as it runs on; a clear one goes
with all that follows it in its paragraph, and with what its colon introduces. In the place of it
stands how much was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_REACH = 2000
"""How far a sentence or paragraph is followed to both sides, in characters."""
# Latin, then the full stops and marks of Chinese, Japanese and Arabic.
_WIDE = "\u3002\uff01\uff1f"
_QUOTES = "'\"\u201d\u00bb)\\]"
_STOP = re.compile(rf"[.!?\u061f][{_QUOTES}]*(?=\s|$)|[{_WIDE}][{_QUOTES}]*|\n")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|mr|mrs|ms|dr|prof|vs|cf|no|nr|st|bzw|z\.b|ca|approx|[a-z]))\.$",
    re.IGNORECASE,
)
# A line that goes on with the sentence before it, behind the signs of quoted mail and of lists.
_GOES_ON = re.compile(r"(?:[ \t>|*]|<br */?>)*[a-z\u00df-\u00ff\u0430-\u044f]")
_BLANK_LINE = re.compile(r"\n(?:[ \t>|]|<br */?>)*\n")
_INTRODUCED = re.compile(r":[ \t*_]*(?:<br */?>)?\s*\Z")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """Where something was found, what it is, and whether it is clear that it is an attack."""

    span: Span
    what: str
    is_clear: bool = False


def removal_note(start: int, end: int, what: str) -> str:
    """What stands in the place of a span."""
    return f"[{end - start} characters removed: {what}]"


def remove(text: str, found: Iterable[Removal]) -> str:
    """The text without what was found and what belongs to it; each gap with its category."""
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
    """Of the sentence; from as far as is followed where there is no beginning."""
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
    # What was found may itself end with the full stop.
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
    """Up to the next blank line; and the next paragraph, too, if this one ends with a colon."""
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
