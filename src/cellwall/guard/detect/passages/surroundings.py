"""What a whole text adds to each of its passages: its size and shape, how many passages it has, how
many of them are orders, and whether it is about attacks (GRD-2).

A whole text that asks is a prompt, one line that asks among data is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellwall.guard.ctext.passages import SCRIPTS, Passages, SurroundingsRecord
from cellwall.guard.detect.passages.reading import reader
from cellwall.guard.detect.passages.traits import trait_numbers

_SHAPES = {
    "text of lines": re.compile(r"\S[ \t]*\n\s*\S"),
    "text of paragraphs": re.compile(r"\S[ \t]*\n\s*\n\s*\S"),
    "text of data": re.compile(r"\A\s*(?:[\[{]|- ?\w+: |\w+: )"),
    "text of markup": re.compile(r"</\w+>"),
    "text of headings": re.compile(r"^#{1,4} ", re.MULTILINE),
    "text of a mail": re.compile(r"^(?:From|To|Subject|Date): ", re.MULTILINE | re.IGNORECASE),
}
_SHAPE_CHARACTERS = 8_000
_SIZES = (
    (3000, "text over 3000"),
    (1200, "text over 1200"),
    (700, "text over 700"),
    (300, "text over 300"),
    (120, "text over 120"),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the whole text adds to each of its passages."""

    traits: frozenset[str]
    script: str
    count: int


def shape_of(text: str) -> frozenset[str]:
    """Size and form of a whole text."""
    size = len(text)
    shape = {name for name, form in _SHAPES.items() if form.search(text, 0, _SHAPE_CHARACTERS)}
    shape.add(next((name for least, name in _SIZES if size >= least), "text under 120"))
    return frozenset(shape)


def read_surroundings(passages: Passages, shape: frozenset[str]) -> Surroundings:
    """What the passages of a text have in common; `shape` is that of the whole text."""
    return surroundings_of(reader().surroundings(passages, shape_bits(shape)))


def shape_bits(shape: frozenset[str]) -> int:
    """A shape, as C takes it."""
    numbers = trait_numbers().of_text
    return sum(1 << numbers[name] for name in shape)


def surroundings_of(found: SurroundingsRecord) -> Surroundings:
    """With the names of the traits."""
    return Surroundings(
        trait_numbers().text_named(found.traits), SCRIPTS[found.script], found.count
    )
