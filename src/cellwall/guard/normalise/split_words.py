"""Words that markup splits: `Ig<b></b>nore`, `pre<!-- -->vious`, `instruc**tions`.

A reader sees the word, and so does a model; a search for it sees two. Markup inside of words is
ordinary in pages and in code, so it is removed only around words of instructions, as they read
without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from cellwall.guard.ctext.inline import Edits, patch_lines
from cellwall.guard.normalise.disguises import STEMS
from cellwall.guard.normalise.inline_escapes import CharactersLeft, DecodedLines
from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.matching import Pattern

_TAG = "<!--[^<>]{0,60}-->|</?[A-Za-z][^<>]{0,60}>"
_SIGN = r"[*~`]{1,3}|__|\\"
_INSIDE = re.compile(rf"(?:(?:{_TAG}){{1,8}}|{_SIGN})(?=[A-Za-z])")
_ANY = re.compile(rf"{_TAG}|{_SIGN}")
_LETTERS = re.compile(r"[A-Za-z]{1,16}")
_MAX_SPLITS = 64
"""Of one word."""
_REACH_CHARS = 240
_WORDS = sorted({stem.split()[0] for stem in STEMS if stem.split()[0].isalpha()})
_WORD = re.compile("|".join(_WORDS))

_Span = tuple[int, int]


@cache
def _gate() -> Pattern:
    """The first letters of a word of instructions, and what may be markup."""
    begins = sorted({word[:size] for word in _WORDS for size in range(1, len(word))})
    return Pattern(rf"\b(?i:{'|'.join(begins)})(?:[<*~`\\]|__)")


def join_split_words(
    plain: str, image: bytes, attempts: AttemptBudget, room: CharactersLeft
) -> Iterator[DecodedLines]:
    """The lines around split words of instructions, without markup."""
    places: list[_Span] = []
    done = 0
    for start, end in _gate().spans(image):
        if start < done:  # a later letter of the same word; without this, quadratic in its length
            continue
        if not attempts.spend():
            break
        word, done = _read(plain, start, end)
        if _WORD.search(word) is not None:
            places.append((start, done))
    if edits := Edits.of(_removed(plain, places)):
        data = image if plain.isascii() else plain.encode()
        yield DecodedLines(("markup",), patch_lines(image, data, edits, room()))


def _read(plain: str, start: int, end: int) -> tuple[str, int]:
    """The word that begins in this span, in lower case without its markup, and its end."""
    letters = _LETTERS.match(plain, start, end)
    parts = []
    at = start
    for _ in range(_MAX_SPLITS):
        if letters is None:
            break
        parts.append(letters[0])
        at = letters.end()
        markup = _INSIDE.match(plain, at)
        if markup is None:
            break
        letters = _LETTERS.match(plain, markup.end())
    return "".join(parts).lower(), at


def _removed(plain: str, places: Iterable[_Span]) -> Iterator[tuple[int, int, str]]:
    """The markup around the places, each once."""
    done = 0
    for start, end in places:
        for found in _ANY.finditer(plain, max(done, start - _REACH_CHARS), end + _REACH_CHARS):
            yield *found.span(), ""
            done = found.end()
