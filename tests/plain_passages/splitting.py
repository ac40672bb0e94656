"""Splits a text into passages: sentences and lines, and short lines that are parts of one sentence
(GRD-2)."""

# ruff: noqa: RUF001  # stops, quotes and words of other scripts are what is looked for
from __future__ import annotations

import re
from collections.abc import Iterator

MAX_PASSAGE_CHARACTERS = 600
_BREAK = re.compile(
    r"\n(?![ \t>|*#]*[a-z])|(?<=[.!?])[\"')\]*_]{0,3}\s+(?![a-z])"
    r"|(?<=[a-z0-9%])[.!?](?=[A-Z](?:[a-z]|[A-Z]{1,12}:))"
    r"|\\n|(?<=[。！？।؟])|<!--|-->|</?(?:p|div|td|tr|li|br|h[1-6]|span|caption|a|b|title)\b[^<>]{0,80}>"
)
# Vowel signs and other marks that belong to a letter, which `\w` leaves out: without them, words
# of Hindi, Bengali, Thai and others are cut in the middle.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0903\u093a-\u094f"
    "\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc-\u09cd\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0a81-\u0a83"
    "\u0abc-\u0acd\u0b82\u0bbe-\u0bcd\u0c00-\u0c03\u0c3e-\u0c56\u0d02\u0d03\u0d3e-\u0d4d\u0e31"
    "\u0e34-\u0e3a\u0e47-\u0e4e"
)
LETTERS = rf"[^\W\d_]+(?:[{_MARKS}]+[^\W\d_]*)*"
# A line that is a part of a sentence: some words, and neither a stop nor a mark of data.
_PART_OF_SENTENCE = re.compile(
    rf"[ \t]*(?:[>|] ?)?{LETTERS}(?:[ ,'’-]{{1,2}}{LETTERS}){{0,6}},?[ \t\r]*\n?"
)
_MAX_PARTS, _PART_CHARACTERS = 16, 60


def split_passages(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each passage that has letters.

    Attack: a sentence broken into short lines that begin with capitals, so that no line says much.
    Short lines without a stop, one directly below the other, are one passage with the short line
    that ends them."""
    held, parts = (0, 0), 0
    for start, end in _split(text):
        is_short = end - start <= _PART_CHARACTERS
        is_part = is_short and _PART_OF_SENTENCE.fullmatch(text, start, end) is not None
        if parts and start == held[1] and is_short and end - held[0] <= MAX_PASSAGE_CHARACTERS:
            held, parts = (held[0], end), parts + 1
            if is_part and parts < _MAX_PARTS:
                continue
            is_part = False
        elif parts:
            yield held
            held = (start, end)
        else:
            held = (start, end)
        parts = int(is_part)
        if not parts:
            yield held
    if parts:
        yield held


def _split(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    for end in [*(found.end() for found in _BREAK.finditer(text)), len(text)]:
        while at < end:
            stop = min(end, at + MAX_PASSAGE_CHARACTERS)
            if stop - at > 40 or any(map(str.isalpha, text[at:stop])):
                yield at, stop
            at = stop
