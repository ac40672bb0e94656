"""A text's candidates, each with what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cellwall.guard.ctext.sentences import Sentences, marked
from cellwall.guard.detect.tasks.candidates import candidates, places
from cellwall.guard.detect.tasks.features import (
    Features,
    Sentence,
    of_company,
    of_sentence,
    of_surroundings,
)
from cellwall.guard.detect.tasks.lexicon import lexicon
from cellwall.guard.normalise import View
from cellwall.guard.normalise.characters import lowered

_MAX_CUES = 30_000
_NEAR_CHARACTERS = 900


@dataclass(frozen=True, slots=True)
class Read:
    """The candidates of one text; features are made when they are asked for."""

    plain: str
    marked: bytes
    is_unwrapped: bool
    found: Sentences
    rivals: Sequence[int]
    """How many other candidates are near, for each of them."""
    end: int
    """How far it was looked at; ordinary texts never have so many cues that it ends early."""

    def sentences(self) -> Iterator[tuple[int, Sentence]]:
        for number in range(len(self.found)):
            yield number, self.sentence(number)

    def sentence(self, number: int) -> Sentence:
        plain = self.plain[slice(*self.found[number])]
        return of_sentence(plain, lowered(plain), lexicon())

    def outside(self, number: int) -> int:
        """How much of the text is not this sentence, in characters."""
        start, end = self.found[number]
        return len(self.plain) - (end - start)

    def company(self, number: int) -> Features:
        """How large the text is, and how many other candidates are near: cheap to tell."""
        return of_company(
            rivals=self.rivals[number],
            outside=self.outside(number),
            is_unwrapped=self.is_unwrapped,
        )

    def surroundings(self, number: int, sentence: Sentence) -> Features:
        """How the sentence stands among what is around it."""
        return of_surroundings(sentence, self.found[number], self.plain, lexicon())


def read(view: View, *, is_unwrapped: bool = False) -> Read:
    """Finds the candidates; `is_unwrapped` where the text came out of an encoding."""
    plain = view.plain
    text = view.image if plain.isascii() else marked(plain)
    cues = places(plain, _MAX_CUES, view.image)
    found = candidates(plain, text, cues)
    return Read(
        plain=plain,
        marked=text,
        is_unwrapped=is_unwrapped,
        found=found,
        rivals=found.rivals(_NEAR_CHARACTERS),
        end=cues[-1][1] if len(cues) >= _MAX_CUES else len(plain),
    )
