"""The traits of passages in plain Python: by regular expressions, one after the other.

What C does (`guard/ctext`) is tested against it.
"""

from __future__ import annotations

from plain_passages.reading import TextPassage, read_passage
from plain_passages.splitting import split_passages
from plain_passages.surroundings import Surroundings, read_surroundings, shape_of
from plain_passages.words import phrase_classes


def read(text: str) -> tuple[list[TextPassage], Surroundings]:
    """The passages of a text, and what the text adds to each."""
    passages = []
    for start, end in split_passages(text):
        low = text[start:end].lower()
        passages.append(read_passage(text, start, end, low, phrase_classes(low)))
    return passages, read_surroundings(passages, shape_of(text))
