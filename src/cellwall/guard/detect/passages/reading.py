"""Reads the passages of a text (GRD-2).

A passage is a sentence or a line. C splits the text and finds the traits of each passage, see
`ctext/passages.py`; tests/plain_passages has the same in plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cellwall.guard.ctext.passages import SCRIPTS, PassageReader, Passages, SplitText
from cellwall.guard.detect.passages.lexicon import lexicon
from cellwall.guard.detect.passages.traits import trait_numbers, vocabulary
from cellwall.parsing.matching import WordIndex


@dataclass(frozen=True, slots=True)
class TextPassage:
    """One passage, with what it says by itself."""

    start: int
    end: int
    traits: frozenset[str]
    script: str


def read_passages(text: str) -> Passages:
    """The passages of a text that have letters, in order."""
    split = SplitText(text)
    low = split.in_lower_case()
    data = low.text.encode("utf-8", "surrogatepass")
    # All phrases are searched at once: a text can have a thousand in a thousand passages.
    return reader().read(split, low, data, _phrase_index().places(data, len(data) * 64))


def passage_of(passages: Passages, number: int) -> TextPassage:
    """One of them, with the names of its traits."""
    found = passages[number]
    traits = trait_numbers().named(found.traits)
    return TextPassage(found.start, found.end, traits, SCRIPTS[found.script])


@cache
def reader() -> PassageReader:
    """For the shipped lexicon."""
    return PassageReader(vocabulary())


@cache
def _phrase_index() -> WordIndex:
    return WordIndex([phrase.encode() for phrase, _ in lexicon().phrases])
