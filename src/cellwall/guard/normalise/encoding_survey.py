"""Finds where a text may contain something encoded.

What is found is said by patterns. To send each of them through all of a text costs more than
everything else there is to do with it, and clean text has next to nothing of what they need: so one
pass in C looks for that, and the patterns are asked there. What comes out is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate

from cellwall.guard.ctext.library import Chain, Survey, SurveyResult, byte_set, run_begins
from cellwall.parsing.matching import Pattern

LONG_CHARS = 40
"""Of a run that may be base64 in disguise, or of other than English text."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
ALPHABET = f"{_LETTERS}{_DIGITS}+/"
_BASE32 = f"{_LETTERS[:26]}234567"
_HEX_OR_TURNED = f"{_DIGITS}ABCDEFabcdefNOPQRSnopqrs"
_OF_TEXT = "234567"
"""With these begin the numbers of printable ASCII characters."""
_MIN_QUADS = 4
_MIN_PAIRS = 8
_MIN_BASE32 = 16
MIN_ENCODED_CHARS = min(4 * _MIN_QUADS, 2 * _MIN_PAIRS, _MIN_BASE32, LONG_CHARS)
"""No shorter text holds an encoded run."""

Span = tuple[int, int]


def survey(image: bytes) -> SurveyResult:
    """Survey for the functions below; `image` has one byte per character."""
    return _survey().of(image, _max_places(image))


def _max_places(image: bytes) -> int:
    """Looked at one by one; in a text with more of them, a pattern goes through all of it."""
    return min(4096, len(image) // 32 + 16)


@cache
def _survey() -> Survey:
    pairs, between = (_OF_TEXT.encode(), _HEX_OR_TURNED.encode()), b" ,:;\r\n\t-xXkK0"
    return Survey(
        [
            Chain([letters.encode() for letters in _quad()], b" \t\r\n>"),
            Chain(pairs, between, is_loose=True),
            Chain(pairs[::-1], between, is_loose=True),
        ]
    )


# --- base64 of English text


def quad_spans(image: bytes, surveyed: SurveyResult) -> Iterator[Span]:
    """Four letters that are three printable ASCII characters, and again."""
    places = surveyed.chains[0]
    if places is None:
        yield from quads().spans(image)
        return
    done = 0
    for place in places:
        if place >= done and (span := quads().at(image, place)):
            yield span
            done = span[1]


@cache
def quads() -> Pattern:
    """Only as they are: with disguises among the choices, a picture drives the automaton through
    ever new states."""
    form = "".join(f"[{letters}][ \\t\\r\\n>]*" for letters in _quad())
    return Pattern(f"(?:{form}){{{_MIN_QUADS},}}={{0,2}}")


def _quad() -> list[str]:
    return [
        _base64(lambda number: 8 <= number < 32),  # 0x20 to 0x7f by its upper six bits
        _base64(lambda number: 2 <= number % 16 < 8),
        _base64(lambda number: number % 4 < 2),
        _base64(lambda _: True),
    ]


def _base64(fits: Callable[[int], bool]) -> str:
    """Its letters, also of its form for URLs, whose numbers fit."""
    letters = "".join(letter for number, letter in enumerate(ALPHABET) if fits(number))
    return letters + ("_" if "/" in letters else "") + ("-" if "+" in letters else "")


# --- digits, and long runs


@cache
def pairs() -> Pattern:
    """Pairs of hexadecimal digits that are ASCII characters."""
    between = "(?:0[xXkK]|[xXkK]0|[ ,:;\\r\\n\\t-])*"
    first, second = f"[{_OF_TEXT}]", f"[{_HEX_OR_TURNED}]"
    return Pattern(
        f"(?:{between}{first}{second}){{{_MIN_PAIRS},}}"
        f"|(?:{between}{second}{first}){{{_MIN_PAIRS},}}"
    )


@cache
def long_runs() -> Pattern:
    """Base32, and whatever is so long that it may be base64 in disguise or of other than English
    text."""
    line = f"[{_LINE}]{{{LONG_CHARS},}}"
    return Pattern(f"[{_BASE32}]{{{_MIN_BASE32},}}|{line}(?:\\r?\\n[ \\t>]*{line})*")


_LINE = "A-Za-z0-9+/_-"
_SHORT_RUN = re.compile(
    f"[{_BASE32}]{{{_MIN_BASE32},512}}+(?![{_BASE32}])"
    f"|(?![{_BASE32}]{{{_MIN_BASE32}}})[{_LINE}]{{{LONG_CHARS},512}}+(?![\\r\\n{_LINE}])".encode()
)
"""Of the `long_runs` those of one line, in another engine: four times as quick at one place, and
slower where a run goes on."""


def _run_at(image: bytes, place: int) -> Span | None:
    """The one of `long_runs` that begins at this very place."""
    match = _SHORT_RUN.match(image, place)
    return match.span() if match else long_runs().at(image, place)


_IN_BASE32 = byte_set(_BASE32.encode())
_IN_BASE64 = byte_set(ALPHABET.encode() + b"_-")


def digit_spans(image: bytes, surveyed: SurveyResult) -> Iterator[Span]:
    """Where `pairs` or `long_runs` match, whatever begins first and pairs before runs.

    Two patterns and not one: what is a separator to one is a letter to the other, and of a choice
    of both RE2 would go through all separators to come, at each of the runs that they are.
    """
    next_pairs, next_run = _Ahead(_pairs_finder(image, surveyed)), _Ahead(_run_finder(image))
    done = 0
    while True:
        found = [span for ahead in (next_pairs, next_run) if (span := ahead.of(done))]
        if not found:
            return
        span = min(found, key=lambda each: each[0])
        yield span
        done = span[1]


_Find = Callable[[int], "Span | None"]
"""The first span that begins at this place or behind it."""


class _Ahead:
    """What is found next, looked for only when the last one found was passed."""

    def __init__(self, find: _Find) -> None:
        self._find = find
        self._found: Span | None = (-1, -1)

    def of(self, place: int) -> Span | None:
        if self._found is not None and self._found[0] < place:
            self._found = self._find(place)
        return self._found


def _pairs_finder(image: bytes, surveyed: SurveyResult) -> _Find:
    if surveyed.chains[1] is None or surveyed.chains[2] is None:
        return lambda place: next(pairs().spans(image, place), None)
    events = [
        event
        for chain in (surveyed.chains[1], surveyed.chains[2])
        for event in zip(chain[1::2], chain[::2], strict=True)
    ]
    events.sort(reverse=True)
    # None of those that are left begins before the first of their places.
    lows = list(accumulate((low for _, low in events), min))

    def find(place: int) -> Span | None:
        while events:
            end, low = events[-1]
            if any(pairs().spans(image, max(low, place), end + 1)):
                return next(pairs().spans(image, max(lows[len(events) - 1], place)), None)
            events.pop()
        return None

    return find


def _run_finder(image: bytes) -> _Find:
    short = run_begins(image, _IN_BASE32, _MIN_BASE32)
    long = run_begins(image, _IN_BASE64, LONG_CHARS)
    begins = sorted({*short, *long}, reverse=True)

    def find(place: int) -> Span | None:
        # What is left of a run may be long enough.
        if place < len(image) and _IN_BASE64[image[place]]:
            span = _run_at(image, place)
            if span:
                return span
        while begins and begins[-1] < place:
            begins.pop()
        return _run_at(image, begins[-1]) if begins else None

    return find
